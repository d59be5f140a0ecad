"""Renderables as plain text. Names and messages are never read as markup, and control characters are escaped."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.text import Text

from placewise._util.text import visible


def lines(*parts: RenderableType, width: int = 120) -> str:
    """Renderables as text without colour: tables fit `width`, sentences stay on one line, no line ends in spaces."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    for part in parts:
        console.print(printable(part), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def printable(part: RenderableType) -> RenderableType:
    """A string as text without markup or control characters; anything else unchanged."""
    return shown_text(part) if isinstance(part, str) else part


def plain(*parts: RenderableType, width: int = 120) -> str:
    """The text of `lines`, without blank lines at its end."""
    return lines(*parts, width=width).rstrip() + "\n"


def shown_text(words: str, *, style: str = "") -> Text:
    """A string as text without markup or control characters."""
    return Text(visible(words), style=style)
