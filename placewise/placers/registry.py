"""The registry of placers: names → classes, imported only when asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from placewise.errors import MissingExtraError, PlacerError
from placewise.placers.base import Placer

_PLACERS = {
    "auto": "placewise.placers.portfolio:AutoPlacer",
    "balanced": "placewise.placers.heuristic.balanced:BalancedPlacer",
    "cover": "placewise.placers.exact.cover:CoverPlacer",
    "cpsat": "placewise.placers.exact.cpsat:CpsatPlacer",
    "dp": "placewise.placers.exact.dp:DpPlacer",
    "dpl": "placewise.placers.exact.dpl:DplPlacer",
    "etf": "placewise.placers.heuristic.etf:EtfPlacer",
    "greedy": "placewise.placers.heuristic.greedy:GreedyPlacer",
    "pack": "placewise.placers.exact.pack:PackPlacer",
    "paths": "placewise.placers.exact.paths:PathsPlacer",
    "pipedream": "placewise.placers.heuristic.pipedream:PipeDreamPlacer",
    "single": "placewise.placers.heuristic.single:SinglePlacer",
    "temper": "placewise.placers.heuristic.temper:TemperPlacer",
}


def names() -> tuple[str, ...]:
    """Every placer that there is, sorted."""
    return tuple(sorted(_PLACERS))


def placer_class(name: str) -> type[Any]:
    """The class of a placer; raises PlacerError with the names that exist, MissingExtraError for its extra."""
    if name not in _PLACERS:
        raise PlacerError(f"there is no placer {name!r}", remedy=f"choose from {', '.join(names())}")
    module, attribute = _PLACERS[name].split(":")
    try:
        return cast("type[Any]", getattr(import_module(module), attribute))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("placewise"):
            raise
        raise MissingExtraError(f"the placer {name!r} ({error.name})", "learn") from error


def create(name: str, options: Mapping[str, Any] | None = None) -> Placer:
    """A placer by name. Options are the fields of the placer's `Options`; an unknown one raises PlacerError."""
    kind = placer_class(name)
    known = {f.name: f for f in dataclasses.fields(kind.Options)} if hasattr(kind, "Options") else {}
    stranger = next((key for key in options or {} if key not in known), None)
    if stranger is not None:
        offered = f"it has {', '.join(known)}" if known else "it has none"
        raise PlacerError(f"the placer {name!r} has no option {stranger!r}", remedy=offered)
    return cast("Placer", kind(kind.Options(**(options or {}))) if known else kind())
