"""What every command does around its work: errors to exit codes, progress and warnings to standard error."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer

from placewise.errors import InternalError, PlacewiseError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from placewise.model.problem import Problem
    from placewise.placers.base import OnProgress

BAD_INPUT, INFEASIBLE, UNKNOWN, INTERRUPTED = 2, 3, 4, 130
P = ParamSpec("P")
R = TypeVar("R")


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """One sentence and an exit code instead of a traceback: 2 bad input, 130 interrupted."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except InternalError as error:
            typer.echo(f"internal error: {error}", err=True)
            raise typer.Exit(1) from error
        except PlacewiseError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return run


def listen(quiet: bool) -> None:
    """Send Placewise's own log lines to standard error."""
    log = logging.getLogger("placewise")
    log.handlers = [logging.NullHandler() if quiet else logging.StreamHandler(sys.stderr)]
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    log.propagate = False


def show(*parts: RenderableType) -> None:
    """Print on standard output: as wide as the terminal on one, without line breaks of its own into a pipe."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    for part in parts:
        console.print(part)


def show_json(document: Any) -> None:
    """Print JSON on standard output; infinity and NaN become null."""
    typer.echo(json.dumps(_finite(document), ensure_ascii=False, indent=2))


def warn(warnings: tuple[str, ...], quiet: bool) -> None:
    """Print each warning once, on standard error."""
    if not quiet:
        for warning in dict.fromkeys(warnings):
            typer.echo(f"note: {warning}", err=True)


def warn_of(problem: Problem, devices: str | None, quiet: bool) -> None:
    """Print a problem's warnings, and where to read what was assumed of its devices."""
    notes = sum(len(device.notes) for device in problem.cluster)
    assumed = f"{notes} figures of the devices are the catalogue's or assumed: placewise devices '{devices}' names them"
    warn((*problem.warnings, *((assumed,) if notes and devices else ())), quiet)


@contextmanager
def progress(quiet: bool) -> Iterator[OnProgress]:
    """A line on standard error that says who works on what, if a person is watching."""
    from placewise.placers.base import Progress, ignore
    from placewise.units import format_seconds

    if quiet or not sys.stderr.isatty():
        yield ignore
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("reading") as status:

        def update(state: Progress) -> None:
            parts = [state.placer, f"{state.seconds:.1f} s", state.message]
            if state.value is not None:
                parts.append(f"best {format_seconds(state.value)}")
            if state.bound is not None:
                parts.append(f"bound {format_seconds(state.bound)}")
            status.update(" · ".join(part for part in parts if part))

        yield update


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
