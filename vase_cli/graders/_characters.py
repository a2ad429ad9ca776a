"""One spelling per character: the characters of answers as ASCII and LaTeX commands."""

import re
import unicodedata
from functools import partial

_CHARACTERS = str.maketrans({
    **{chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(94)},  # full-width forms
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff"),
    **dict.fromkeys(map(chr, range(32))),
    **dict.fromkeys("\t\r\n\v\f", " "),
    "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "±": r"\pm ", "∛": "√[3]",
    "π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in ", "∅": r"\emptyset ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "°": r"^\circ ", "⁄": "/", "∕": "/", "’": "'", "′": "'", "″": "''",
    "≈": r"\approx ", "≡": r"\equiv ", "∗": "*", "∙": r"\cdot ", "º": r"^\circ ", "˚": r"^\circ ", "↉": "0",
})  # fmt: skip


# Superscript and subscript digits and signs, fractions of one character, and small forms, as Unicode decomposes them.
_FORMS: dict[str, dict[str, str]] = {"<super>": {}, "<sub>": {}, "<fraction>": {}, "<small>": {}}
for code in (*range(0xA0, 0x100), *range(0x2070, 0x209D), *range(0x2150, 0x215F), *range(0xFE50, 0xFE6C)):
    form, _, decomposed = unicodedata.decomposition(chr(code)).partition(" ")
    spelled = "".join(chr(int(part, 16)) for part in decomposed.split())
    if form in _FORMS and (form != "<super>" or spelled not in ("a", "o")):
        _FORMS[form][chr(code)] = spelled.replace("\u2212", "-")


def _plain_forms(text: str) -> str:
    for form, mark in (("<super>", "^"), ("<sub>", "_")):
        forms = _FORMS[form]
        text = re.sub(f"[{''.join(forms)}]+", partial(_script, forms, mark), text)
    text = re.sub(f"[{''.join(_FORMS['<small>'])}]", lambda small: _FORMS["<small>"][small[0]], text)
    return re.sub(f"[{''.join(_FORMS['<fraction>'])}]", _one_character_fraction, text)


def _script(forms: dict[str, str], mark: str, characters: re.Match[str]) -> str:
    digits = "".join(forms[character] for character in characters[0])
    return f"{mark}{digits}" if len(digits) == 1 else f"{mark}{{{digits}}}"


def _one_character_fraction(character: re.Match[str]) -> str:
    top, _, bottom = _FORMS["<fraction>"][character[0]].partition("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}"


def clean(text: str) -> str:
    """One spelling per character: full-width, dashes, spaces, controls, signs that LaTeX has a command for."""
    return re.sub(r" {2,}", " ", _plain_forms(text).translate(_CHARACTERS)).strip()
