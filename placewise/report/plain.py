"""What is shown, as plain text: no word of the user's is markup or control."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.text import Text

from placewise._util.text import visible


def lines(*parts: RenderableType, width: int = 120) -> str:
    """Renderables as text without colour: tables fit the width, sentences stay whole, no line ends in spaces."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    for part in parts:
        console.print(printable(part), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def printable(part: RenderableType) -> RenderableType:
    """A sentence as text that is no markup and has no control characters; anything else as it is."""
    return shown_text(part) if isinstance(part, str) else part


def plain(*parts: RenderableType, width: int = 120) -> str:
    """The same as `lines`, without blank lines at its end."""
    return lines(*parts, width=width).rstrip() + "\n"


def shown_text(words: str, *, style: str = "") -> Text:
    """Words of others as text."""
    return Text(visible(words), style=style)
