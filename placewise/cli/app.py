"""The app: every verb and what they have in common."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "place": "place",
    "fit": "fit",
    "inspect": "inspect",
    "check": "price",
    "judge": "price",
    "explain": "explain",
    "diff": "diff",
    "compare": "compare",
    "sweep": "sweep",
    "devices": "devices",
    "doctor": "doctor",
    "run": "execute",
    "export": "export",
    "profile": "profile",
    "report": "report",
    "train": "train",
    "zoo": "zoo",
    "cache": "cache",
}
"""Every verb, and the module of this package that holds it: only that of the verb at hand is imported."""


ALIASES = {"simulate": "judge"}
"""Former names of verbs, which still work."""


class _Verbs(TyperGroup):
    """Loads a verb when it is named; all of them for --help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, [ALIASES.get(args[0], args[0]), *args[1:]])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"placewise.cli.{COMMANDS[cmd_name]}")
        verb = typer.Typer(context_settings=CONTEXT)
        if cmd_name == "zoo":
            return typer.main.get_group(module.app)
        verb.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(verb)


CONTEXT = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    cls=_Verbs,
    name="placewise",
    help="Decide which device runs each operation of a neural network, and prove how good the answer is.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


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
