"""Every error that Placewise raises on purpose, in one tree.

    PlacewiseError                something that the user can understand and mend
    ├── InputError                a file, an option or an argument is wrong         (exit code 2)
    │   ├── GraphError            the ops, tensors and edges do not form a graph
    │   ├── ModelFileError        a model file cannot be read or priced
    │   ├── ClusterError          devices or links are wrong or missing
    │   ├── CostError             a cost is NaN, negative or missing
    │   ├── PlanError             a plan does not belong to this problem
    │   ├── PlacerError           a placer cannot take this problem
    │   ├── ExportError           no such target, or it cannot take this model
    │   └── OutputError           a file cannot be written
    ├── RunError                  a placement did not run, or not as it should      (exit code 2)
    ├── MissingExtraError         an optional library is not installed              (exit code 2)
    └── InternalError             a proof and a value contradict each other: a bug of ours

Infeasible problems are not errors: they are a `Status` of a `Result` (exit code 3).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from placewise._util.text import shortened, visible
from placewise._util.voice import spoken

_LONGEST = 400
"""Characters of each part of a sentence: names in files may have millions."""


class PlacewiseError(Exception):
    """The root: catching it catches everything that Placewise raises on purpose.

    Messages name options by their flags; outside the command line they read as keyword arguments.
    """

    def __str__(self) -> str:
        return spoken(super().__str__())


class InputError(PlacewiseError):
    """Bad input: what is wrong, where it is, and what to do about it, in one sentence."""

    def __init__(self, problem: str, *, where: str = "", remedy: str = "") -> None:
        self.problem, self.where, self.remedy = problem, where, remedy
        what, place, way_out = (shortened(visible(part), _LONGEST) for part in (problem, where, remedy))
        prefix = f"{place}: " if place else ""
        suffix = f"; {way_out}" if way_out else ""
        super().__init__(f"{prefix}{what}{suffix}")

    def at(self, where: str) -> InputError:
        """The same error with a place in front (a file name, usually)."""
        place = f"{where}: {self.where}" if self.where else where
        return type(self)(self.problem, where=place, remedy=self.remedy)


class GraphError(InputError):
    """The ops, tensors and edges do not form a valid graph."""


class ModelFileError(InputError):
    """A model file cannot be read, or a shape that is needed stays unknown."""


class ClusterError(InputError):
    """Devices or links are wrong or missing."""


class CostError(InputError):
    """A cost is NaN, negative or missing."""


class PlanError(InputError):
    """A plan does not belong to this problem or this cluster."""


class PlacerError(InputError):
    """No such placer, or it cannot take this problem; the message says why."""


class ExportError(InputError):
    """No such export target, or it cannot take this model or cluster; the message says why."""


class OutputError(InputError):
    """A file cannot be written; nothing was left half-written."""


class RunError(PlacewiseError):
    """A placement does not run here, or gives other results than it should; the message says which and why."""


class MissingExtraError(PlacewiseError):
    """A feature needs an optional library that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the extra '{extra}': pip install 'placewise[{extra}]'")


class InternalError(PlacewiseError):
    """Two of our own answers contradict each other. Please report it with the problem file."""


@contextmanager
def locate_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Prefix InputErrors with the path, unless they already start with it."""
    try:
        yield
    except InputError as error:
        if error.where == str(path) or error.where.startswith(f"{path}: "):
            raise
        raise error.at(str(path)) from None
