"""The app: every verb and what they have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from placewise.cli.compare import compare
from placewise.cli.devices import devices
from placewise.cli.diff import diff
from placewise.cli.execute import run
from placewise.cli.explain import explain
from placewise.cli.export import export
from placewise.cli.inspect import inspect
from placewise.cli.place import place
from placewise.cli.price import check, simulate
from placewise.cli.profile import profile
from placewise.cli.report import report
from placewise.cli.train import train
from placewise.cli.zoo import app as zoo

app = typer.Typer(
    name="placewise",
    help="Decide which device runs each operation of a neural network, and prove how good the answer is.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (place, inspect, check, simulate, explain, diff, compare, devices, run, export, profile, report, train):
    app.command()(command)
app.add_typer(zoo, name="zoo")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"placewise {version('placewise')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass
