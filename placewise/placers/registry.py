"""The registry of placers: names → classes, imported only when asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast, get_args, get_type_hints

from placewise.errors import MissingExtraError, PlacerError
from placewise.placers.base import Placer

_PLACERS = {
    "auto": "placewise.placers.auto.placer:AutoPlacer",
    "balanced": "placewise.placers.baselines.balanced:BalancedPlacer",
    "colocrl": "placewise.placers.learned.colocrl:ColocRLPlacer",
    "cover": "placewise.placers.set_cover.placer:CoverPlacer",
    "cpsat": "placewise.placers.cp_sat.placer:CpsatPlacer",
    "critical_path": "placewise.placers.list_scheduling.critical_path:CriticalPathPlacer",
    "dp": "placewise.placers.pipeline_dp.dp:DpPlacer",
    "dpl": "placewise.placers.pipeline_dp.dpl:DplPlacer",
    "etf": "placewise.placers.list_scheduling.etf:EtfPlacer",
    "exhaustive": "placewise.placers.exhaustive.placer:ExhaustivePlacer",
    "expert": "placewise.placers.baselines.expert:ExpertPlacer",
    "gdp": "placewise.placers.learned.gdp:GdpPlacer",
    "greedy": "placewise.placers.baselines.greedy:GreedyPlacer",
    "guided": "placewise.placers.learned.guided:GuidedPlacer",
    "hdp": "placewise.placers.learned.hdp:HDPPlacer",
    "heft": "placewise.placers.list_scheduling.heft:HeftPlacer",
    "hsdag": "placewise.placers.learned.hsdag:HsdagPlacer",
    "in_order": "placewise.placers.pipeline_dp.in_order:InOrderPlacer",
    "local": "placewise.placers.local_search.local:LocalPlacer",
    "max_load_dp": "placewise.placers.pipeline_dp.max_load_dp:MaxLoadDpPlacer",
    "metis": "placewise.placers.partitioning.metis:MetisPlacer",
    "mincut": "placewise.placers.partitioning.mincut:MincutPlacer",
    "multilevel": "placewise.placers.multilevel.placer:MultilevelPlacer",
    "pack": "placewise.placers.packing.placer:PackPlacer",
    "paths": "placewise.placers.min_cut.paths:PathsPlacer",
    "pipedream": "placewise.placers.pipeline_dp.pipedream:PipeDreamPlacer",
    "placeto": "placewise.placers.learned.placeto:PlacetoPlacer",
    "random": "placewise.placers.baselines.random:RandomPlacer",
    "round_robin": "placewise.placers.baselines.round_robin:RoundRobinPlacer",
    "sct": "placewise.placers.list_scheduling.sct:SctPlacer",
    "single": "placewise.placers.baselines.single:SinglePlacer",
    "temper": "placewise.placers.local_search.temper:TemperPlacer",
    "topo": "placewise.placers.list_scheduling.topo:TopoPlacer",
    "two_way": "placewise.placers.min_cut.two_way:TwoWayPlacer",
    "windows": "placewise.placers.large_neighbourhood.windows:WindowsPlacer",
}
_NEEDS = {
    "colocrl": ("torch", "learn"),
    "gdp": ("torch_geometric", "learn"),
    "guided": ("torch_geometric", "learn"),
    "hdp": ("torch", "learn"),
    "hsdag": ("torch_geometric", "learn"),
    "metis": ("pymetis", "partition"),
    "mincut": ("mtkahypar", "partition"),
    "placeto": ("torch", "learn"),
}
"""The library of a placer that not everybody has, and the extra that brings it."""


def names() -> tuple[str, ...]:
    """Every placer that there is, sorted."""
    return tuple(sorted(_PLACERS))


def placer_class(name: str) -> type[Any]:
    """The class of a placer; raises PlacerError with the names that exist, MissingExtraError for its extra."""
    if not isinstance(name, str) or name not in _PLACERS:
        raise PlacerError(f"there is no placer {name!r}", remedy=f"choose from {', '.join(names())}")
    module, attribute = _PLACERS[name].split(":")
    try:
        return cast("type[Any]", getattr(import_module(module), attribute))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("placewise"):
            raise
        raise MissingExtraError(f"the placer {name!r} ({error.name})", _NEEDS.get(name, ("", "learn"))[1]) from error


def create(name: str, options: Mapping[str, Any] | None = None) -> Placer:
    """A placer by name. Options are the fields of the placer's `Options`; PlacerError tells those that are not.

    Raises MissingExtraError where a library that the placer needs is not installed.
    """
    if options is not None and (not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options)):
        raise PlacerError(f"options are {options!r}", remedy="give names and values, like {'max_ideals': 100000}")
    kind = placer_class(name)
    library, extra = _NEEDS.get(name, ("", ""))
    if library and find_spec(library) is None:
        raise MissingExtraError(f"the placer {name!r} ({library})", extra)
    known = {f.name: f for f in dataclasses.fields(kind.Options)} if hasattr(kind, "Options") else {}
    options = rename_options(options or {}, getattr(kind, "Options", None))
    stranger = next((key for key in options or {} if key not in known), None)
    if stranger is not None:
        offered = f"it has {', '.join(known)}" if known else "it has none"
        raise PlacerError(f"the placer {name!r} has no option {stranger!r}", remedy=offered)
    if not known:
        return cast("Placer", kind())
    require_types(name, kind.Options, options or {})
    return cast("Placer", kind(kind.Options(**(options or {}))))


def rename_options(values: Mapping[str, Any], kind: type[Any] | None) -> dict[str, Any]:
    """Replace old names of options by the current ones, which the options `kind` has in its `aliases`.

    Raises PlacerError if an option is given by both of its names.
    """
    aliases: Mapping[str, str] = getattr(kind, "aliases", {})
    renamed: dict[str, Any] = {}
    for name, value in values.items():
        current = aliases.get(name, name)
        if current in renamed:
            raise PlacerError(f"the option {current!r} is given twice", remedy=f"leave out {name!r}")
        renamed[current] = value
    return renamed


def require_types(name: str, kind: type[Any], values: Mapping[str, Any]) -> None:
    """Raise PlacerError for the first value that its field of the options `kind` cannot have."""
    hints = get_type_hints(kind)
    for key, value in values.items():
        if not _is_a(value, hints[key]):
            raise PlacerError(f"the option {key!r} of {name!r} is {value!r}", remedy=f"give {_wanted(hints[key])}")


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "nothing"}


def _choices(hint: Any) -> tuple[Any, ...]:
    """The types or values that a hint allows."""
    return get_args(hint) if get_args(hint) else (hint,)


def _is_a(value: object, hint: Any) -> bool:
    """Whether an option's value has one of its types, or is one of its literal values; unknown hints allow all."""
    plain = [choice for choice in _choices(hint) if isinstance(choice, type)]
    if len(plain) < len(_choices(hint)):
        return value in _choices(hint) if all(isinstance(choice, str) for choice in _choices(hint)) else True
    if isinstance(value, bool):
        return bool in plain
    return isinstance(value, tuple(plain)) or (float in plain and isinstance(value, int))


def _wanted(hint: Any) -> str:
    return " or ".join(_WORDS.get(choice, str(choice)) for choice in _choices(hint))
