"""What the user asks for of a problem, as the command line and the Python interface take it: the one place that checks.

Whatever is not of the right type, or cannot be read as it, is an InputError that names the wish and the remedy. The
types of the fields are what they hold afterwards: a headroom may be given as "10%", rules as a mapping or as pairs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from placewise._util.regex import compiled
from placewise._util.units import parse_bytes, parse_fraction
from placewise.errors import InputError
from placewise.model.problem import Headroom, Rule

Rules = Mapping[str, str] | Iterable[Rule | tuple[str, str]]
"""Regular expressions and devices: a mapping, or rules or pairs where one expression has several devices."""

_TEXTS = (
    "objective", "execution", "communication", "memory", "view", "graph", "schedule", "dtype", "optimizer",
)  # fmt: skip
MOST = 1 << 40
"""More than any dimension or number of samples."""


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """What the user asks for; None means the default of the model's format.

    `objective` "latency" or "throughput" (default: throughput for published workloads, else latency); `execution`,
    `communication`, `memory`, `schedule` as in `Objective`; `contiguous` defaults to True for throughput, and
    `convex` asks for less instead, `ordered` for stages that follow each other as the devices do; `replicas` (1 by
    default; 0, also as "any", for any number) is the most devices per stage, `step_samples` as in `Objective`.

    `pins` and `forbidden` are rules, of which every one holds; `together` keeps ops on one device: a regular
    expression means a set per text that it finds in scopes or names, a class of modules ("BertLayer") one per module of
    that class, a tuple is a set of names. `headroom` is a
    share, also as "10%", a size, as "2GiB", or several by device, as {"cuda:0": "2GiB"} or ["5%", "cuda:0=10%"],
    which then are in `spare`. `max_memory` has bytes by device, over those of the cluster (0: not this one),
    `exclude` patterns of devices to leave out; without `offload` no CPU and no disk is used; `unsupported` are rules
    from patterns of op kinds to devices that cannot run them.

    `dims` gives symbolic dimensions; `view` is "folded" (constants folded away) or "raw"; `costs` are files of
    measured or given op times, one after the other over the estimates (docs/measured.md); `graph` is "inference" or
    "training": a PipeDream profile holds both (default: inference), a model is given a backward pass and an
    `optimizer`, and what `frozen` (regular expressions, searched in names) finds of its weights is not trained
    (docs/training.md), of anything else it must be the one that is there; `dtype` is the element type of a model that
    is built from its configuration or by the zoo.
    Raises InputError.
    """

    objective: str | None = None
    execution: str | None = None
    communication: str | None = None
    memory: str | None = None
    contiguous: bool | None = None
    headroom: float | None = None
    pins: tuple[Rule, ...] | None = None
    forbidden: tuple[Rule, ...] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    view: str | None = None
    costs: tuple[str, ...] = ()
    graph: str | None = None
    convex: bool | None = None
    schedule: str | None = None
    replicas: int | None = None
    step_samples: int | None = None
    dtype: str | None = None
    optimizer: str | None = None
    frozen: tuple[str, ...] = ()
    together: tuple[str | tuple[str, ...], ...] | None = None
    spare: tuple[Headroom, ...] = ()
    max_memory: Mapping[str, float] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    offload: bool | None = None
    unsupported: tuple[Rule, ...] | None = None
    ordered: bool | None = None

    def __post_init__(self) -> None:
        for name in _TEXTS:
            _text(name, getattr(self, name))
        clean: dict[str, Any] = {
            name: _truth(name, getattr(self, name)) for name in ("contiguous", "convex", "offload", "ordered")
        }
        clean |= {name: _rules(name, getattr(self, name)) for name in ("pins", "forbidden", "unsupported")}
        clean["headroom"], spares = _headroom(self.headroom)
        clean["spare"] = spares or self.spare
        clean["max_memory"] = _memory(self.max_memory)
        clean["exclude"] = _patterns("exclude", self.exclude)
        clean["dims"] = _dims(self.dims)
        several = (self.costs,) if isinstance(self.costs, (str, os.PathLike)) else _several("costs", self.costs)
        clean["costs"] = tuple(_path("costs", path) for path in several if path != "")
        clean["frozen"] = _patterns("frozen", self.frozen)
        clean["together"] = None if self.together is None else _sets("together", self.together)
        clean["step_samples"] = None if self.step_samples is None else _whole("step_samples", self.step_samples, 0)
        if self.replicas is not None:
            clean["replicas"] = _whole("replicas", {"any": 0}.get(str(self.replicas), self.replicas), 0, ", or 'any'")
        for name, value in clean.items():
            object.__setattr__(self, name, value)


def _text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise InputError(f"{name} is {_shown(value)}", remedy="give a text, or nothing for the default")


def _truth(name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} is {_shown(value)}", remedy="give True or False, or nothing for the default")
    return None if value is None else bool(value)


def _headroom(value: Any) -> tuple[float | None, tuple[Headroom, ...]]:
    """The share of every accelerator, where only that is given, else what each amount is and of which device."""
    if value is None:
        return None, ()
    if isinstance(value, Mapping):
        found = tuple(_spare(str(device), amount) for device, amount in value.items())
    else:
        several = isinstance(value, (list, tuple)) and value and all(isinstance(text, str) for text in value)
        found = tuple(_spare(*_of_device(amount)) for amount in (value if several else [value]))
    if len({spare.device for spare in found}) < len(found):
        raise InputError(f"headroom is {_shown(value)}", remedy="give one amount for each device")
    if len(found) == 1 and not found[0].device and not found[0].bytes:
        return found[0].share, ()
    return None, found


def _of_device(amount: object) -> tuple[str, object]:
    device, _, rest = amount.rpartition("=") if isinstance(amount, str) else ("", "", amount)
    return device.strip(), rest


def _spare(device: str, amount: object) -> Headroom:
    if isinstance(amount, bool) or not isinstance(amount, (str, Real)):
        remedy = "give a share, like '10%' or 0.1, or a size, like '2GiB'"
        raise InputError(f"headroom is {_shown(amount)}", remedy=remedy)
    is_size = isinstance(amount, str) and amount.strip().endswith("B")
    try:
        parsed = (parse_bytes if is_size else parse_fraction)(amount if isinstance(amount, str) else float(amount))
    except InputError:
        problem = f"{amount!r} is neither a share nor a size"
        raise InputError(problem, where="headroom", remedy="write it like '10%' or '2GiB'") from None
    return Headroom(device, bytes=parsed) if is_size else Headroom(device, share=parsed)


def _memory(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise InputError(f"max_memory is {_shown(value)}", remedy="give a mapping like {'cuda:0': '20GiB'}")
    found: dict[str, float] = {}
    for name, size in value.items():
        if isinstance(size, bool) or not isinstance(size, (str, Real)) or isinstance(name, bool):
            raise InputError(f"the max_memory of {name!r} is {_shown(size)}", remedy="give a size, like '20GiB'")
        try:
            found[str(name).strip()] = parse_bytes(size if isinstance(size, str) else float(size))
        except InputError as error:
            raise error.at(f"max_memory of {name!r}") from None
    return found


def _whole(name: str, value: object, least: int, other: str = "") -> int:
    """A whole number, also as a text of digits: that is how the command line has it."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 15:
        value = int(value)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral) or not least <= int(value) < MOST:
        raise InputError(f"{name} is {_shown(value)}", remedy=f"give a whole number, {least} or more{other}")
    return int(value)


def _dims(value: object) -> dict[str, int]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError(f"dims is {_shown(value)}", remedy="give names and sizes, like {'batch': 8}")
    return {name: _whole(f"the dimension {name!r}", size, 0) for name, size in value.items()}


def _several(name: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{name} is {_shown(value)}", remedy="give a text, or a list of them")
    return tuple(value)


def _patterns(name: str, value: object) -> tuple[str, ...]:
    texts = _several(name, (value,) if isinstance(value, str) else value)
    for text in texts:
        try:
            compiled(text if isinstance(text, str) else "(")
        except InputError:
            raise InputError(f"{name} holds {_shown(text)}", remedy="give regular expressions") from None
    return tuple(map(str, texts))


def _sets(name: str, value: object) -> tuple[str | tuple[str, ...], ...]:
    found: list[str | tuple[str, ...]] = []
    for item in _several(name, (value,) if isinstance(value, str) else value):
        if isinstance(item, (list, tuple)) and all(isinstance(op, str) for op in item):
            found.append(tuple(item))
        else:
            found += _patterns(name, item if isinstance(item, str) else (item,))
    return tuple(found)


def _path(name: str, value: object) -> str:
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(found, str):
        raise InputError(f"{name} is {_shown(value)}", remedy="give the path of a file")
    return found


def _rules(name: str, value: object) -> tuple[Rule, ...] | None:
    if value is None:
        return None
    remedy = "give a mapping of regular expressions to devices, or a list of such pairs"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {_shown(value)}", remedy=remedy)
    found = []
    for item in value.items() if isinstance(value, Mapping) else value:
        pair = (item.pattern, item.device) if isinstance(item, Rule) else item
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise InputError(f"{name} holds {_shown(item)}", remedy=remedy)
        found.append(Rule(*pair))
    return tuple(found)


def _shown(value: object) -> str:
    """A value in a message: short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


NO_OPTIONS = ProblemOptions()
