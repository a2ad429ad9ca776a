"""Characters that cannot be seen, made visible."""

import re
import unicodedata

# What steers a terminal or turns the order of what it shows; lines and tabs are left alone.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Text in which a character that has no shape, or that moves others, shows as its code or symbol."""
    return "".join(map(_visible_character, text))


def harmless(text: str) -> str:
    """Text for a terminal: a control character other than a line break or a tab shows as in :func:`visible`."""
    return _STEERING.sub(lambda found: _visible_character(found[0]), text)


def harmless_json(text: str) -> str:
    """JSON for a terminal: the same characters as in :func:`harmless` are escaped as JSON does it."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return {"\n": "↵", "\t": "⇥", "\x7f": "␡"}.get(character, chr(0x2400 + code))
    # Control, format, surrogate, unassigned, and separators of lines.
    unseen = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp")
    return f"\\u{{{code:x}}}" if unseen else character
