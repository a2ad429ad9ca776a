"""Read pictures."""

import struct
import zlib
from typing import NamedTuple


class Picture(NamedTuple):
    """A PNG as it decodes."""

    width: int
    height: int
    rows: list[bytes]

    def at(self, x: int, y: int) -> str:
        return "#" + self.rows[y][3 * x : 3 * x + 3].hex()


def decode(content: bytes) -> Picture:
    """A PNG of 8-bit RGB without filters, every chunk checked."""
    assert content[:8] == bytes.fromhex("89504e470d0a1a0a")
    place, chunks = 8, []
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        kind, data = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", content, place + 8 + length)[0] == zlib.crc32(kind + data)
        chunks.append((kind, data))
        place += length + 12
    assert [kind for kind, _ in chunks] == [b"IHDR", b"pHYs", b"IDAT", b"IEND"]
    width, height, *form = struct.unpack(">IIBBBBB", chunks[0][1])
    assert form == [8, 2, 0, 0, 0]
    pixels = zlib.decompress(chunks[2][1])
    assert len(pixels) == height * (1 + 3 * width) and set(pixels[:: 1 + 3 * width]) == {0}
    return Picture(width, height, [pixels[y * (1 + 3 * width) + 1 :][: 3 * width] for y in range(height)])
