"""Words of others in our sentences: control characters are shown, and never obeyed; what has no end is cut."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

_BREAKS = (0x2028, 0x2029)
_TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Controls that let what follows read from the other side."""
_HALVES = range(0xD800, 0xE000)
"""Halves of characters, which no encoding can write: of file names that are not text, for example."""
_SHOWN = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_SHOWN |= {code: f"\\u{code:04x}" for code in (*_BREAKS, *_TURNS, *_HALVES)}


def visible(text: str) -> str:
    r"""One line: control characters (C0, C1), breaks of lines and changes of direction are written out, ``\x1b``."""
    return text.translate(_SHOWN)


def dim_options(names: Iterable[str], size: int = 1) -> str:
    """What gives these dimensions a size on the command line, fit to be pasted: ``--dim batch=1 --dim 'seq len=1'``."""
    return " ".join(f"--dim {shlex.quote(f'{name}={size}')}" for name in names)


def shortened(text: str, longest: int) -> str:
    """Beginning and end of a text of more than `longest` characters."""
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 1]}…{text[-end:]}"
