"""The app: every command, and what they have in common."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMANDS = (
    "place", "fit", "inspect", "check", "judge", "explain", "diff", "compare", "sweep", "devices", "doctor", "run",
    "export", "profile", "report", "train", "zoo", "cache",
)  # fmt: skip
"""Every command. Each has a module of its name here, which is imported only if it is called, or for --help."""

ALIASES = {"simulate": "judge"}
"""Former names of commands, which still work."""


class _Commands(TyperGroup):
    """Imports a command when it is called; all of them for --help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, [ALIASES.get(args[0], args[0]), *args[1:]])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"placewise.cli.{cmd_name}")
        if cmd_name == "zoo":
            group = typer.main.get_group(module.app)
            group.name = cmd_name
            return group
        command = typer.Typer(context_settings=CONTEXT)
        command.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(command)


CONTEXT = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    cls=_Commands,
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
