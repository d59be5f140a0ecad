"""Words of others on a terminal: control characters are shown, and never obeyed."""

from __future__ import annotations

_BREAKS = (0x2028, 0x2029)
_TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Controls that let what follows read from the other side."""
_SHOWN = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_SHOWN |= {code: f"\\u{code:04x}" for code in (*_BREAKS, *_TURNS)}


def visible(text: str) -> str:
    r"""One line: control characters (C0, C1), breaks of lines and changes of direction are written out, ``\x1b``."""
    return text.translate(_SHOWN)
