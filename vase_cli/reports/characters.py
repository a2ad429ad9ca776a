"""Characters that cannot be seen, made visible."""

import unicodedata


def visible(text: str) -> str:
    """Text in which a character that has no shape, or that moves others, shows as its code or symbol."""
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return {"\n": "↵", "\t": "⇥", "\x7f": "␡"}.get(character, chr(0x2400 + code))
    # Control, format, surrogate, unassigned, and separators of lines.
    unseen = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp")
    return f"\\u{{{code:x}}}" if unseen else character
