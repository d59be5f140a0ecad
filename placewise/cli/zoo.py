"""placewise zoo: models by name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from placewise.cli import options as opt
from placewise.cli.command import guarded, show, show_json

app = typer.Typer(help="Models by name: the workloads of the placement literature.", no_args_is_help=True)


@app.command("list")
@guarded
def list_(as_json: opt.Json = False) -> None:
    """List the models that 'zoo:NAME' stands for, wherever a command takes a model."""
    from placewise.zoo.registry import describe, names

    entries = [describe(name) for name in names()]
    if as_json:
        show_json([_document(entry) for entry in entries])
        return
    from placewise.reporting.console import rows_table

    show(rows_table(("name", "", "source"), [(f"zoo:{entry.name}", entry.summary, entry.paper) for entry in entries]))


@app.command("show")
@guarded
def show_one(
    name: Annotated[str, typer.Argument(help="As in 'placewise zoo list', with or without 'zoo:'.")],
    as_json: opt.Json = False,
) -> None:
    """Describe a model: its source, and the sizes that --dim changes."""
    from placewise.zoo.registry import describe

    entry = describe(name.removeprefix("zoo:"))
    if as_json:
        show_json(_document(entry))
        return
    from placewise.reporting.console import rows_table

    show(f"zoo:{entry.name}: {entry.summary}", f"source: {entry.paper}", "")
    show(rows_table(("dimension", "default "), [(dim, str(size)) for dim, size in entry.dims.items()]))


def _document(entry: Any) -> dict[str, Any]:
    return {"name": entry.name, "summary": entry.summary, "paper": entry.paper, "dims": dict(entry.dims)}
