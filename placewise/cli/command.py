"""What every command does around its work: errors to exit codes, progress and warnings to standard error."""

from __future__ import annotations

import errno
import functools
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

import typer

from placewise._util.text import visible
from placewise._util.voice import SPEAKS_FLAGS
from placewise.cli import BAD_INPUT, INTERRUPTED, NOBODY_READS
from placewise.errors import InternalError, OutputError, PlacewiseError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from placewise.model.problem import Problem
    from placewise.model.result import Result
    from placewise.placers.base import OnProgress

INFEASIBLE, UNKNOWN = 3, 4
P = ParamSpec("P")
R = TypeVar("R")


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """One sentence and an exit code instead of a traceback: 2 bad input, 130 interrupted (`main` says the word)."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        spoken = SPEAKS_FLAGS.set(True)
        try:
            return command(*args, **kwargs)
        except InternalError as error:
            say(f"internal error: {error}")
            raise typer.Exit(1) from error
        except PlacewiseError as error:
            say(f"error: {error}")
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        finally:
            SPEAKS_FLAGS.reset(spoken)

    return run


def exit_with(result: Result) -> None:
    """End with the exit code of a search, if that is not 0."""
    from placewise.model.result import Outcome, Reason

    if result.status.outcome is Outcome.INFEASIBLE:
        raise typer.Exit(INFEASIBLE)
    if result.placement is None:
        raise typer.Exit(INTERRUPTED if result.status.reason is Reason.INTERRUPTED else UNKNOWN)


def listen(quiet: bool) -> None:
    """Send Placewise's own log lines to standard error."""
    log = logging.getLogger("placewise")
    handler = logging.NullHandler() if quiet else logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Visible())
    log.handlers = [handler]
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    log.propagate = False


class _Visible(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))


def show(*parts: RenderableType) -> None:
    """Print on standard output: as wide as the terminal on one, without line breaks of its own into a pipe.

    Text is printed as it is, never read as markup, but control characters are written out. Raises OutputError.
    """
    from rich.console import Console

    from placewise.reporting.plain import lines, printable

    console = Console(highlight=False, width=None if _is_terminal(sys.stdout) else 10_000)
    if not console.is_terminal:
        emit(lines(*parts, width=console.width))
        return
    for part in parts:
        console.print(printable(part))


def show_json(document: Any) -> None:
    """Print JSON on standard output; infinity and NaN become null. Raises OutputError."""
    plain = sys.stdout is None or (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    emit(json.dumps(_finite(document), ensure_ascii=plain, indent=2) + "\n")


def emit(text: str) -> None:
    """Write on standard output at once. Raises OutputError; ends the command in silence where nobody reads any more."""
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, "it is closed")
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise typer.Exit(NOBODY_READS) from None
    except OSError as error:
        raise OutputError(f"standard output cannot be written ({(error.strerror or str(error)).lower()})") from None


def say(text: str) -> None:
    """Write a line on standard error, if it can be written; control characters are written out."""
    with suppress(OSError):
        typer.echo(visible(text), err=True)


def warn(warnings: tuple[str, ...], quiet: bool) -> None:
    """Print each warning once, on standard error."""
    if not quiet:
        for warning in dict.fromkeys(warnings):
            say(f"note: {warning}")


def warn_of(problem: Problem, devices: str | None, quiet: bool, *, models: bool = True) -> None:
    """Print a problem's warnings, which `models` were assumed, and where to read what else was."""
    from placewise.reporting.sentences import assumption_lines

    notes = sum(len(device.notes) for device in problem.cluster)
    assumed = f"{notes} figures of the devices are the catalogue's or assumed: placewise devices '{devices}' names them"
    lines = assumption_lines(problem.cluster) if models else []
    warn((*lines, *problem.warnings, *((assumed,) if notes and devices else ())), quiet)


@contextmanager
def progress(quiet: bool, limit: float = math.inf) -> Iterator[OnProgress]:
    """A line on standard error that says who works on what, if a person is watching; `limit` in seconds."""
    from placewise.placers.base import ignore

    if quiet or not _is_terminal(sys.stderr):
        yield ignore
        return
    from rich.console import Console

    from placewise.analysis.progress import ProgressLine
    from placewise.reporting.plain import printable

    line = ProgressLine(limit)
    with Console(stderr=True).status("reading") as status:
        yield lambda state: status.update(printable(line.of(state)))


@contextmanager
def working(quiet: bool, on_what: str) -> Iterator[None]:
    """A line on standard error that says what is being done, if a person is watching."""
    if quiet or not _is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console

    from placewise.reporting.plain import printable

    with Console(stderr=True).status(printable(on_what)):
        yield


def is_watched() -> bool:
    """Whether a person watches standard error."""
    return _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
