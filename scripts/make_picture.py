"""Draw the picture of the README: what `placewise place` really prints, as SVG.

`python scripts/make_picture.py` places the example below and writes docs/images/place.svg.
"""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

import placewise as pw
from placewise.reporting.console import result_view

ROOT = Path(__file__).parent.parent
COMMAND = (
    "placewise place examples/models/bert_base.onnx -d 2xL4,cpu --dim batch=8 --dim seq=128 --objective throughput"
)
# Rich's own frame loads a font from the network; this one uses what the reader has.
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Place the example and draw what is printed."""
    os.chdir(ROOT)
    plan = pw.place(
        "examples/models/bert_base.onnx", devices="2xL4,cpu", objective="throughput", dims={"batch": 8, "seq": 128}
    )
    console = Console(record=True, width=124, file=StringIO(), highlight=False, force_terminal=True)
    console.print(f"$ {COMMAND}", style="dim")
    console.print(result_view(plan.result))
    target = Path("docs/images/place.svg")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(console.export_svg(title="placewise", theme=MONOKAI, code_format=FRAME, unique_id="placewise"))
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
