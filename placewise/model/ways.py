"""Ways to run: how units of ops may be split over devices or recompute activations, and what every way costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from placewise.errors import CostError
from placewise.model.cluster import Cluster
from placewise.model.columns import Bools, Floats, Ints, Longs, frozen

LARGEST_DEGREE = 1 << 16
LARGEST_MICROBATCHES = 1 << 24
LARGEST_SYNC = 1 << 28
"""Ways times tensors: `sync_bytes` has a figure for each pair."""
_MAX_AMOUNT = 1e300


@dataclass(frozen=True, slots=True)
class StageGroup:
    """One stage of a pipeline whose ops are split: its devices, and how it uses them.

    `devices` [data_parallel · tensor_parallel] are indices into the cluster, one replica after the other: the devices
    of replica r are ``devices[r * tensor_parallel : (r + 1) * tensor_parallel]``.
    """

    devices: tuple[int, ...]
    data_parallel: int = 1
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """What may be decided for the ops of a problem besides their device, and what it costs.

    Ops form *units* that are split and recomputed as one; units stand in topological order, `unit` [n_ops]. A *way*
    runs one unit on `degree` devices at once (tensor parallelism), with or without recomputation:

    - `way_unit`, `degree`, `recompute`, `name` [n_ways], ordered by unit;
    - `seconds` [n_ways, n_classes], per micro-batch on each of the devices, with the collectives inside the unit
      (`collective_seconds`, a part of it); inf where a class of devices cannot run it;
    - `gradient_bytes` [n_ways], what replicas of the unit exchange per step, for each of its devices;
    - `bytes_in_flight` [n_ways], held on each device per micro-batch in flight;
    - `held_bytes` [n_ways, n_parts], held on each device throughout, by `parts` (weights, gradients, optimizer, …).

    *Boundary tensors* leave their unit: `tensor_unit`, `tensor_bytes` [n_tensors], read by the units
    ``reader[reader_offsets[k]:reader_offsets[k + 1]]``. `sync_bytes` [n_ways, n_tensors] are gathered or reduced on top
    where the boundary is also one between stages.

    Devices that are alike share a class: `device_class` [n_devices], −1 for one that holds no stage; `node` [n_devices]
    says which devices a split may join, for all devices of a split are in one node. Each device of a split keeps
    `workspace` [n_degrees] bytes free for the unit at work (by default none).

    A step has `microbatches`. A boundary tensor crosses `passes` times per micro-batch (2 in training: its gradient
    comes back), and d replicas move ``gradient_factor · (d − 1) / d · gradient_bytes`` once per step (0 for inference).
    `in_flight` says how many micro-batches a stage holds: `1f1b`, `gpipe` or `one`. docs/judge.md has the formulas.

    Raises CostError where columns do not fit together or a figure is negative or missing.
    """

    unit: Ints
    way_unit: Ints
    degree: Ints
    recompute: Bools
    name: tuple[str, ...]
    seconds: Floats
    gradient_bytes: Floats
    bytes_in_flight: Floats
    held_bytes: Floats
    parts: tuple[str, ...]
    tensor_unit: Ints
    tensor_bytes: Floats
    reader_offsets: Longs
    reader: Ints
    sync_bytes: Floats
    device_class: Ints
    node: Ints
    microbatches: int = 1
    passes: int = 1
    gradient_factor: float = 0.0
    in_flight: str = "one"
    collective_seconds: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    unit_names: tuple[str, ...] = ()
    workspace: Floats = field(default_factory=lambda: np.zeros(0))
    way_offsets: Longs = field(init=False)

    def __post_init__(self) -> None:
        for name, dtype in (
            ("unit", np.int32), ("way_unit", np.int32), ("degree", np.int32), ("recompute", np.bool_),
            ("seconds", np.float64), ("gradient_bytes", np.float64), ("bytes_in_flight", np.float64),
            ("held_bytes", np.float64), ("tensor_unit", np.int32), ("tensor_bytes", np.float64),
            ("reader_offsets", np.int64), ("reader", np.int32), ("sync_bytes", np.float64),
            ("device_class", np.int32), ("node", np.int32),
        ):  # fmt: skip
            object.__setattr__(self, name, frozen(getattr(self, name), dtype))
        if not self.collective_seconds.size:
            object.__setattr__(self, "collective_seconds", np.zeros_like(self.seconds))
        object.__setattr__(self, "collective_seconds", frozen(self.collective_seconds, np.float64))
        if self.n_units > len(self.unit):  # before anything has a row per unit
            raise CostError("units are numbered from 0, and each has an op")
        if not self.workspace.size:
            object.__setattr__(self, "workspace", np.zeros(len(self.degrees)))
        object.__setattr__(self, "workspace", frozen(self.workspace, np.float64))
        offsets = np.searchsorted(self.way_unit, np.arange(self.n_units + 1)).astype(np.int64)
        object.__setattr__(self, "way_offsets", frozen(offsets, np.int64))
        _validate(self)

    def __repr__(self) -> str:
        degrees = ", ".join(map(str, self.degrees.tolist()))
        return f"Ways({self.n_units} units, {self.n_ways} ways, degrees {degrees}, {self.microbatches} micro-batches)"

    @property
    def n_units(self) -> int:
        return int(self.unit.max(initial=-1)) + 1

    @property
    def n_ways(self) -> int:
        return len(self.way_unit)

    @property
    def n_tensors(self) -> int:
        return len(self.tensor_unit)

    @property
    def n_classes(self) -> int:
        return int(self.device_class.max(initial=-1)) + 1

    @property
    def trains(self) -> bool:
        """Whether micro-batches are those of a training step: stages may have only as many replicas as divide it."""
        return self.passes > 1 or self.gradient_factor > 0

    @property
    def degrees(self) -> Ints:
        """The degrees of tensor parallelism that some unit has a way for, ascending."""
        return np.unique(self.degree)

    def workspace_of(self, degree: int) -> float:
        """Bytes that each device of a split over so many keeps free for the unit at work; 0 for an unknown degree."""
        at = int(np.searchsorted(self.degrees, degree))
        return float(self.workspace[at]) if at < len(self.degrees) and self.degrees[at] == degree else 0.0

    @property
    def bytes_fixed(self) -> Floats:
        """Bytes [n_ways] that each device of a way holds throughout."""
        total: Floats = self.held_bytes.sum(axis=1)
        return total

    def require_match(self, n_ops: int, n_devices: int) -> None:
        """Raise CostError unless there is a unit per op and a class per device."""
        if len(self.unit) != n_ops or len(self.device_class) != n_devices:
            raise CostError("the ways are those of another graph or cluster")

    def ways_of(self, unit: int, degree: int | None = None) -> Ints:
        """The ways of one unit, or those of a degree."""
        ways = np.arange(self.way_offsets[unit], self.way_offsets[unit + 1], dtype=np.int32)
        return ways if degree is None else ways[self.degree[ways] == degree]

    def class_members(self, kind: int) -> Ints:
        """The devices of a class, those of a node beside each other."""
        members = np.flatnonzero(self.device_class == kind).astype(np.int32)
        return members[np.argsort(self.node[members], kind="stable")]


def classify_devices(cluster: Cluster, capacity: Floats) -> Ints:
    """Classes [n_devices] of devices that are alike in all but their names, by the first device of each."""
    known: dict[object, int] = {}
    classes = np.empty(len(cluster), np.int32)
    for d, device in enumerate(cluster):
        key = (repr(device.without_names()), float(capacity[d])) if device.available else None
        classes[d] = -1 if key is None else known.setdefault(key, len(known))
    return classes


def count_in_flight(rule: str, microbatches: int, data_parallel: Ints) -> Ints:
    """Micro-batches [n_stages] that each stage of a pipeline holds at once, from the replicas of each, in order.

    `1f1b`: ⌈Σ of the replicas from here on / the replicas of this stage⌉ (Piper, section 3); `gpipe`: all that a
    replica has in a step; `one`: 1.
    """
    d = np.asarray(data_parallel, np.int64)
    if rule == "gpipe":
        held = -(-microbatches // d)
    elif rule == "1f1b":
        held = -(-np.cumsum(d[::-1])[::-1] // d)
    else:
        held = np.ones_like(d)
    return np.asarray(held, np.int32)


def restrict_ways(ways: Ways, most: int, recompute: str) -> Ways:
    """The ways of at most so many devices (0: any number), that recompute always, never, or either ("auto").

    A unit that has no way with recomputation keeps those without. Raises CostError if a unit would have none.
    """
    keep = ways.degree <= most if most else np.ones(ways.n_ways, np.bool_)
    if recompute != "auto":
        wished = ways.recompute == (recompute == "always")
        has = np.zeros((ways.n_units, int(ways.degree.max(initial=0)) + 1), np.bool_)
        has[ways.way_unit[wished], ways.degree[wished]] = True
        keep &= wished | ~has[ways.way_unit, ways.degree]
    if len(np.unique(ways.way_unit[keep])) < ways.n_units:
        raise CostError(f"some unit has no way on at most {most} devices", remedy="allow more devices per split")
    return keep_ways(ways, keep)


def keep_ways(ways: Ways, keep: Bools) -> Ways:
    """The same units with some of their ways [n_ways]; every unit keeps one at least."""
    if keep.all():
        return ways
    rows = {
        name: getattr(ways, name)[keep]
        for name in (
            "way_unit", "degree", "recompute", "seconds", "gradient_bytes", "bytes_in_flight", "held_bytes",
            "sync_bytes", "collective_seconds",
        )
    }  # fmt: skip
    names = tuple(name for name, kept in zip(ways.name, keep.tolist(), strict=True) if kept)
    left = np.isin(ways.degrees, ways.degree[keep])
    return replace(ways, name=names, workspace=ways.workspace[left], **rows)


def list_replicas(ways: Ways, most: int) -> list[int]:
    """How many replicas a stage may have, up to `most`: in training what divides the micro-batches of a step."""
    return [d for d in range(1, most + 1) if not ways.trains or ways.microbatches % d == 0]


def _validate(ways: Ways) -> None:
    n, w, t = ways.n_units, ways.n_ways, ways.n_tensors
    shapes = {
        "degree": (w,), "recompute": (w,), "seconds": (w, ways.n_classes), "gradient_bytes": (w,),
        "bytes_in_flight": (w,), "held_bytes": (w, len(ways.parts)), "tensor_bytes": (t,), "sync_bytes": (w, t),
        "reader_offsets": (t + 1,), "workspace": (len(ways.degrees),),
        "node": ways.device_class.shape, "collective_seconds": ways.seconds.shape,
    }  # fmt: skip
    for name, shape in shapes.items():
        if getattr(ways, name).shape != shape:
            raise CostError(f"{name} of the ways has shape {getattr(ways, name).shape} instead of {shape}")
    if len(ways.name) != w or (ways.unit_names and len(ways.unit_names) != n):
        raise CostError("names of the ways or units are missing")
    if not np.array_equal(np.unique(ways.unit), np.arange(n)):
        raise CostError("units are numbered from 0, and each has an op")
    if (np.diff(ways.way_unit) < 0).any() or not np.array_equal(np.unique(ways.way_unit), np.arange(n)):
        raise CostError("every unit needs a way, and ways stand in the order of the units")
    if not ((ways.degree >= 1) & (ways.degree <= LARGEST_DEGREE)).all():
        raise CostError(f"a way has a degree outside 1 to {LARGEST_DEGREE}", remedy="give a number of devices")
    if not 1 <= ways.microbatches <= LARGEST_MICROBATCHES:
        remedy = f"give a number from 1 to {LARGEST_MICROBATCHES}"
        raise CostError(f"a step has {ways.microbatches} micro-batches", remedy=remedy)
    if not 1 <= ways.passes <= LARGEST_DEGREE or not 0 <= ways.gradient_factor <= LARGEST_DEGREE:
        raise CostError("a boundary is crossed once or more, and gradients are exchanged a few times")
    if ways.in_flight not in ("1f1b", "gpipe", "one"):
        raise CostError(f"the rule {ways.in_flight!r} for micro-batches in flight is not known")
    if ways.in_flight == "gpipe" and not ways.trains:
        raise CostError("micro-batches wait for each other (gpipe) in training only", remedy="use 1f1b or one")
    if ways.device_class.min(initial=0) < -1:
        raise CostError("classes of devices are numbered from 0, and −1 is a device that holds no stage")
    amounts = (
        "gradient_bytes", "bytes_in_flight", "held_bytes", "tensor_bytes", "sync_bytes", "collective_seconds",
        "workspace",
    )  # fmt: skip
    for name in amounts:
        column = getattr(ways, name)
        if not ((column >= 0) & (column <= _MAX_AMOUNT)).all():
            raise CostError(f"a figure of {name} is negative, missing or absurdly large", remedy="give zero or more")
    if not ((ways.seconds >= 0) & ((ways.seconds <= _MAX_AMOUNT) | np.isposinf(ways.seconds))).all():
        raise CostError("the seconds of a way are negative, missing or absurdly large", remedy="give zero or more")
    offsets = ways.reader_offsets
    if offsets[0] or offsets[-1] != len(ways.reader) or (np.diff(offsets) < 0).any():
        raise CostError("the readers of a boundary tensor lie outside their column")
    readers = np.repeat(ways.tensor_unit, np.diff(ways.reader_offsets))
    inside = (ways.reader >= 0) & (ways.reader < n)
    if (
        not inside.all()
        or not (ways.reader > readers).all()
        or not ((ways.tensor_unit >= 0) & (ways.tensor_unit < n)).all()
    ):
        raise CostError("a boundary tensor goes to a unit that does not stand behind its own")
