"""Makes foreign text safe to show: what would act on a terminal or hide on a page becomes a visible escape.

Probe text may hold anything. Control characters, invisible format characters (such as direction overrides), line
separators and lone surrogates are written as their code, backslash x1b or u202e; markup is left to the escaping of
each output.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def show_hidden(text: str, *, keep: str = "") -> str:
    """Returns the text with every hidden character escaped, except those in `keep`."""
    return "".join(c if c in keep or unicodedata.category(c) not in _HIDDEN else _escape(c) for c in text)


def clip(text: str, limit: int) -> str:
    """Returns at most `limit` characters, the last three of them dots if some were cut."""
    return text if len(text) <= limit else text[: max(limit - 3, 0)] + "..."


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
