"""The registry of placers: names and aliases → classes, imported on creation only."""

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
    "doppler": "placewise.placers.learned.doppler:DopplerPlacer",
    "dp": "placewise.placers.pipeline_dp.placer:DpPlacer",
    "etf": "placewise.placers.list_scheduling.etf:EtfPlacer",
    "exhaustive": "placewise.placers.exhaustive.placer:ExhaustivePlacer",
    "expert": "placewise.placers.baselines.expert:ExpertPlacer",
    "gdp": "placewise.placers.learned.gdp:GdpPlacer",
    "greedy": "placewise.placers.baselines.greedy:GreedyPlacer",
    "hdp": "placewise.placers.learned.hdp:HDPPlacer",
    "heft": "placewise.placers.list_scheduling.heft:HeftPlacer",
    "hsdag": "placewise.placers.learned.hsdag:HsdagPlacer",
    "in_order": "placewise.placers.pipeline_dp.in_order:InOrderPlacer",
    "local": "placewise.placers.local_search.local:LocalPlacer",
    "metis": "placewise.placers.partitioning.placer:PartitioningPlacer",
    "min_cut": "placewise.placers.min_cut.placer:MinCutPlacer",
    "multilevel": "placewise.placers.multilevel.placer:MultilevelPlacer",
    "pack": "placewise.placers.packing.placer:PackPlacer",
    "parallel_dp": "placewise.placers.parallel_dp.placer:ParallelDpPlacer",
    "pipeline_search": "placewise.placers.pipeline_search.placer:PipelineSearchPlacer",
    "pipedream": "placewise.placers.pipeline_dp.pipedream:PipeDreamPlacer",
    "placeto": "placewise.placers.learned.placeto:PlacetoPlacer",
    "random": "placewise.placers.baselines.random:RandomPlacer",
    "single": "placewise.placers.baselines.single:SinglePlacer",
    "temper": "placewise.placers.local_search.local:TemperPlacer",
    "topo": "placewise.placers.list_scheduling.topo:TopoPlacer",
    "uniform": "placewise.placers.baselines.uniform:UniformPlacer",
    "windows": "placewise.placers.large_neighbourhood.windows:WindowsPlacer",
}
_ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "critical_path": ("heft", {"priority": "critical_path"}),
    "dpl": ("dp", {"method": "line"}),
    "max_load_dp": ("dp", {"method": "max_load"}),
    "mincut": ("metis", {"library": "mt-kahypar"}),
    "paths": ("min_cut", {"method": "paths"}),
    "round_robin": ("random", {"draw": "round_robin"}),
    "sct": ("etf", {"favourites": True}),
    "two_way": ("min_cut", {"method": "two_way"}),
}
"""Alias → the placer that it stands for and the options that it presets."""

_NEEDS = {
    "colocrl": ("torch", "learn"),
    "doppler": ("torch", "learn"),
    "gdp": ("torch_geometric", "learn"),
    "hdp": ("torch", "learn"),
    "hsdag": ("torch_geometric", "learn"),
    "metis": ("pymetis", "partition"),
    "mincut": ("mtkahypar", "partition"),
    "placeto": ("torch", "learn"),
}
"""Placers and aliases that need an optional library: its name, and the extra that installs it."""


def names() -> tuple[str, ...]:
    """The placers, sorted, without aliases."""
    return tuple(sorted(_PLACERS))


def aliases() -> tuple[str, ...]:
    """The aliases, sorted: a placer with some of its options preset."""
    return tuple(sorted(_ALIASES))


def known_names() -> tuple[str, ...]:
    """Every name that `create` accepts, placers and aliases, sorted."""
    return tuple(sorted((*_PLACERS, *_ALIASES)))


def placer_class(name: str) -> type[Any]:
    """The class behind a placer or an alias.

    Raises PlacerError with the known names, and MissingExtraError if a library that the class imports is missing.
    """
    if not isinstance(name, str) or name not in known_names():
        raise PlacerError(f"there is no placer {name!r}", remedy=f"choose from {', '.join(known_names())}")
    placer, _ = _resolve(name)
    module, attribute = _PLACERS[placer].split(":")
    try:
        return cast("type[Any]", getattr(import_module(module), attribute))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("placewise"):
            raise
        raise MissingExtraError(f"the placer {name!r} ({error.name})", _NEEDS.get(name, ("", "learn"))[1]) from error


def create(name: str, options: Mapping[str, Any] | None = None) -> Placer:
    """Create a placer by its name or an alias. Options are fields of its `Options` and override the preset of an alias.

    The placer's `info` carries the name that was asked for. Raises PlacerError for unknown names, unknown options and
    values of the wrong type, and MissingExtraError if a library that the placer needs is not installed.
    """
    if options is not None and (not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options)):
        raise PlacerError(f"options are {options!r}", remedy="give names and values, like {'max_ideals': 100000}")
    kind = placer_class(name)
    placer, preset = _resolve(name)
    values = {**preset, **(options or {})}
    library, extra = _NEEDS.get(_find_alias(placer, values), ("", ""))
    if library and find_spec(library) is None:
        raise MissingExtraError(f"the placer {name!r} ({library})", extra)
    known = {f.name: f for f in dataclasses.fields(kind.Options)} if hasattr(kind, "Options") else {}
    values = rename_options(values, getattr(kind, "Options", None))
    unknown = next((key for key in values if key not in known), None)
    if unknown is not None:
        remedy = f"it has {', '.join(known)}" if known else "it has none"
        raise PlacerError(f"the placer {name!r} has no option {unknown!r}", remedy=remedy)
    if not known:
        return cast("Placer", kind())
    require_types(name, kind.Options, values)
    created = kind(kind.Options(**values))
    if created.info.name != name:
        created.info = dataclasses.replace(created.info, name=name)
    return cast("Placer", created)


def rename_options(values: Mapping[str, Any], kind: type[Any] | None) -> dict[str, Any]:
    """Replace old names of options by the current ones, which the options `kind` has in its `aliases`.

    Raises PlacerError if an option is given by both of its names.
    """
    renames: Mapping[str, str] = getattr(kind, "aliases", {})
    renamed: dict[str, Any] = {}
    for name, value in values.items():
        current = renames.get(name, name)
        if current in renamed:
            raise PlacerError(f"the option {current!r} is given twice", remedy=f"leave out {name!r}")
        renamed[current] = value
    return renamed


def _resolve(name: str) -> tuple[str, dict[str, Any]]:
    """The placer that a known name stands for, and the options that the name presets."""
    return _ALIASES.get(name, (name, {}))


def _find_alias(placer: str, options: Mapping[str, Any]) -> str:
    """The alias whose preset these options contain, else the placer itself."""
    matches = (alias for alias, (of, preset) in _ALIASES.items() if of == placer and preset.items() <= options.items())
    return next(matches, placer)


def require_types(name: str, kind: type[Any], values: Mapping[str, Any]) -> None:
    """Raise PlacerError for the first value that its field of the options class `kind` does not allow."""
    hints = get_type_hints(kind)
    for key, value in values.items():
        if not _is_allowed(value, hints[key]):
            raise PlacerError(
                f"the option {key!r} of {name!r} is {value!r}", remedy=f"give {_describe_type(hints[key])}"
            )


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "nothing"}


def _choices(hint: Any) -> tuple[Any, ...]:
    """The types or literal values that a hint allows."""
    return get_args(hint) if get_args(hint) else (hint,)


def _is_allowed(value: object, hint: Any) -> bool:
    """Whether a value has one of the types of a hint or is one of its literals; other hints allow every value."""
    plain = [choice for choice in _choices(hint) if isinstance(choice, type)]
    if len(plain) < len(_choices(hint)):
        return value in _choices(hint) if all(isinstance(choice, str) for choice in _choices(hint)) else True
    if isinstance(value, bool):
        return bool in plain
    return isinstance(value, tuple(plain)) or (float in plain and isinstance(value, int))


def _describe_type(hint: Any) -> str:
    return " or ".join(_TYPE_NAMES.get(choice, str(choice)) for choice in _choices(hint))
