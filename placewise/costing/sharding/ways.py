"""make_ways(): the ways to run the units of a graph, by the rules of its ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from placewise.costing.sharding.collectives import find_nodes
from placewise.costing.sharding.memory import PARTS, MemoryTable, UnitMemory
from placewise.costing.sharding.op_table import read_ops
from placewise.costing.sharding.shard import (
    describe_refusals,
    find_undivided_tokens,
    require_divisible,
    shard_graph,
    splits_tokens,
)
from placewise.costing.sharding.split_seconds import SplitSeconds
from placewise.costing.work import OpWork, work_of
from placewise.errors import InputError
from placewise.model.cluster import Cluster
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.sharding import Sharding
from placewise.model.ways import LARGEST_DEGREE, Ways, classify_devices

RECOMPUTE = ("auto", "never", "always")
TYPICAL = 3
"""The reserve of a stage is what so many units at least need as workspace."""


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """Which ways a graph's units have.

    Parameters
    ----------
    degrees : tuple of int, optional
        Tensor-parallel degrees. Default: powers of two up to the number of equal devices in a node. What a given degree
        does not divide (heads, key-value heads, experts) is an error; by default it stays whole.
    recompute : {"auto", "never", "always"}
        Training: whether units keep only their inputs, and compute the rest again. Auto: both ways. Default: auto.
    microbatches : int
        Micro-batches of a training step; the graph's batch is one of them. Default: 1.
    sequence_parallel : bool
        Whether what lies between split products is split by tokens. A given degree that does not divide the tokens is
        an error; by default there are no ways with it. Default: false.
    in_flight : {"1f1b", "gpipe"}
        The order of a training step's micro-batches, which says how many a stage holds. Default: 1f1b.

    """

    degrees: tuple[int, ...] | None = None
    recompute: str = "auto"
    microbatches: int = 1
    sequence_parallel: bool = False
    in_flight: str = "1f1b"

    def __post_init__(self) -> None:
        if self.recompute not in RECOMPUTE:
            raise InputError(f"recompute is {self.recompute!r}", remedy=f"choose {', '.join(RECOMPUTE)}")
        for degree in self.degrees or ():
            if isinstance(degree, bool) or not isinstance(degree, int) or not 1 <= degree <= LARGEST_DEGREE:
                remedy = f"give numbers of devices from 1 to {LARGEST_DEGREE}"
                raise InputError(f"a tensor-parallel degree is {degree!r}", remedy=remedy)
        if self.degrees is not None and not self.degrees:
            raise InputError("no tensor-parallel degree is allowed", remedy="give at least one")


@dataclass(slots=True)
class _WayColumns:
    """Columns of the ways under construction, one array per degree and choice of recomputation."""

    unit: list[Longs] = field(default_factory=list)
    degree: list[int] = field(default_factory=list)
    recompute: list[bool] = field(default_factory=list)
    seconds: list[Floats] = field(default_factory=list)
    collective: list[Floats] = field(default_factory=list)
    in_flight: list[Floats] = field(default_factory=list)
    gradients: list[Floats] = field(default_factory=list)
    held: list[Floats] = field(default_factory=list)


def make_ways(
    graph: Graph,
    cluster: Cluster,
    costs: CostTable,
    capacity: Floats,
    unit: Ints,
    options: SplitOptions | None = None,
    *,
    work: OpWork | None = None,
    unit_names: tuple[str, ...] = (),
) -> tuple[Ways, tuple[str, ...]]:
    """The ways to run the units of a graph on the devices of a cluster, and notes that say what stays whole.

    `unit` [n_ops] numbers units in topological order of the forward ops (`coarsen.group_units`). `costs` are those of
    whole ops, from the roofline or measured: a split op takes the same fraction of them that its share takes in the
    roofline. `capacity` [n_devices] bytes tells devices apart. A split stays inside a node: equal devices that are
    joined by their fastest links. `work` avoids counting the work again.

    The `workspace` of a degree is what every stage of that degree needs once: the bytes of a typical unit at work,
    since units run one after the other. The part "workspace" of what the ways hold is what a unit needs beyond it.

    Raises InputError for a degree that no node has devices for, or that does not divide heads or experts; CostError,
    ModelFileError as the cost table does.
    """
    options = SplitOptions() if options is None else options
    work = work_of(graph) if work is None else work
    device_class = classify_devices(cluster, capacity)
    node = find_nodes(cluster, device_class)
    trains = bool(graph.ops.backward.any())
    table = read_ops(graph)
    shardings, undivided_tokens = dict[int, Sharding](), dict[int, int]()
    for degree in _list_degrees(options, device_class, node):
        sharding = shard_graph(graph, degree, sequence_parallel=options.sequence_parallel, unit=unit, table=table)
        if options.degrees is not None and degree > 1:
            require_divisible(sharding)
        if options.sequence_parallel and (undivided := find_undivided_tokens(sharding)):
            undivided_tokens[degree] = undivided
        elif degree == 1 or options.degrees is not None or (sharding.share < 1).any():
            shardings[degree] = sharding
    if options.sequence_parallel:
        _require_tokens(shardings, undivided_tokens)
    pricing = SplitSeconds(
        graph, cluster, costs, work, device_class, node, np.asarray(unit, np.int64), options.microbatches
    )
    memory = MemoryTable(graph, np.asarray(unit, np.int64), work.op_class.equals("free"))
    rows, reserve = _WayColumns(), dict[int, float]()
    for degree, sharding in shardings.items():
        reserve[degree] = _add_rows(rows, pricing, memory.measure(sharding), sharding, trains, options.recompute)
    notes = [
        f"{degree} devices do not divide {count:,} tokens evenly, so no op is split over {degree}"
        for degree, count in undivided_tokens.items()
    ]
    notes += dict.fromkeys(said for sharding in shardings.values() for said in describe_refusals(sharding))
    ways = _assemble(graph, rows, pricing, trains, options, unit_names)
    return replace(ways, workspace=np.array([reserve[degree] for degree in ways.degrees.tolist()])), tuple(notes)


def _list_degrees(options: SplitOptions, device_class: Ints, node: Ints) -> list[int]:
    """The degrees to try, ascending. Raises InputError for one that no node has devices for."""
    usable = device_class >= 0
    groups = node[usable].astype(np.int64) * (int(device_class.max(initial=0)) + 1) + device_class[usable]
    largest = int(np.unique(groups, return_counts=True)[1].max(initial=1))
    if options.degrees is None:
        return [1 << k for k in range(largest.bit_length()) if 1 << k <= largest]
    degrees = sorted(set(options.degrees))
    if degrees[-1] > largest:
        said = f"a tensor-parallel degree of {degrees[-1]} needs as many equal devices in one node"
        raise InputError(said, remedy=f"no node has more than {largest} of one kind")
    return degrees


def _require_tokens(shardings: Mapping[int, Sharding], undivided: Mapping[int, int]) -> None:
    """Raise InputError where no degree splits anything by tokens; `undivided` tokens by degree are why."""
    if any(splits_tokens(sharding) for sharding in shardings.values()):
        return
    if undivided:
        degree, count = min(undivided.items())
        said = f"sequence parallelism over {degree} devices does not divide the {count:,} tokens of the model"
        raise InputError(said, remedy="give another number of tokens with --dim, or leave out --sequence-parallel")
    if max(shardings) == 1:
        said = "sequence parallelism needs ops that are split, and no node has two equal devices for them"
    else:
        said = "sequence parallelism changes nothing here: no sum of split products has a dimension of tokens"
    raise InputError(said, remedy="leave out --sequence-parallel")


def _add_rows(
    rows: _WayColumns, pricing: SplitSeconds, memory: UnitMemory, sharding: Sharding, trains: bool, recompute: str
) -> float:
    """Add the ways of one degree, and return the bytes that each of its stages needs once."""
    (total, forward), (exchanged, early) = pricing.compute(sharding), pricing.exchange(sharding)
    units = np.arange(pricing.n_units)
    saves = memory.kept > memory.inputs
    if trains and recompute == "always":
        choices = [(False, ~saves), (True, saves)]
    elif trains and recompute == "auto":
        choices = [(False, np.ones(len(units), np.bool_)), (True, saves)]
    else:
        choices = [(False, np.ones(len(units), np.bool_))]
    again = np.maximum(memory.kept - memory.inputs, 0.0)
    needed = [memory.transient + again if repeats else memory.transient for repeats, _ in choices]
    reserve = _typical(np.concatenate([need[chosen] for need, (_, chosen) in zip(needed, choices, strict=True)]))
    finite = np.isfinite(exchanged)
    for need, (repeats, chosen) in zip(needed, choices, strict=True):
        seconds = total + exchanged + (forward + early if repeats else 0.0)
        collective = np.where(finite, exchanged + (early if repeats else 0.0), 0.0)
        held = np.stack(
            (memory.weights, memory.gradients, memory.optimizer, memory.state, np.maximum(need - reserve, 0.0)), axis=1
        )
        in_flight = (memory.inputs if repeats else memory.kept) if trains else np.zeros(len(units))
        rows.unit.append(units[chosen])
        rows.degree.append(sharding.degree)
        rows.recompute.append(repeats)
        for column, values in (
            (rows.seconds, seconds), (rows.collective, collective), (rows.in_flight, in_flight),
            (rows.gradients, memory.gradients), (rows.held, held),
        ):  # fmt: skip
            column.append(values[chosen])
    return reserve


def _typical(needed: Floats) -> float:
    """The workspace that at least `TYPICAL` ways need."""
    ordered = np.sort(needed)[::-1]
    return float(ordered[min(TYPICAL, len(ordered)) - 1]) if len(ordered) else 0.0


def _assemble(
    graph: Graph, rows: _WayColumns, pricing: SplitSeconds, trains: bool, options: SplitOptions, names: tuple[str, ...]
) -> Ways:
    unit = np.concatenate(rows.unit)
    lengths = [len(units) for units in rows.unit]
    degree, recompute = np.repeat(rows.degree, lengths), np.repeat(rows.recompute, lengths)
    order = np.lexsort((recompute, degree, unit))
    tensor, maker, offsets, readers = find_boundaries(graph, pricing.unit)
    size = (np.maximum(graph.tensors.bytes, 0) * (graph.tensor_repeats if graph.phases else 1))[tensor]
    said = [
        way_name(t, again=again, sequence_parallel=options.sequence_parallel)
        for t, again in zip(degree[order].tolist(), recompute[order].tolist(), strict=True)
    ]
    return Ways(
        unit=pricing.unit.astype(np.int32), way_unit=unit[order].astype(np.int32), degree=degree[order],
        recompute=recompute[order],
        name=tuple(said), seconds=np.concatenate(rows.seconds)[order],
        gradient_bytes=np.concatenate(rows.gradients)[order], bytes_in_flight=np.concatenate(rows.in_flight)[order],
        held_bytes=np.concatenate(rows.held)[order], parts=PARTS, tensor_unit=maker, tensor_bytes=size,
        reader_offsets=offsets, reader=readers, sync_bytes=np.zeros((len(order), len(tensor))),
        device_class=pricing.device_class, node=pricing.node, microbatches=options.microbatches if trains else 1,
        passes=2 if trains else 1, gradient_factor=2.0 if trains else 0.0,
        in_flight=options.in_flight if trains else "one",
        collective_seconds=np.concatenate(rows.collective)[order], unit_names=names,
    )  # fmt: skip


def way_name(degree: int, *, again: bool, sequence_parallel: bool) -> str:
    """The name of a way of so many devices, such as ``t=4, sequence parallel, recompute``."""
    tokens = ", sequence parallel" if sequence_parallel and degree > 1 else ""
    return f"t={degree}{tokens}{', recompute' if again else ''}"


def find_boundaries(graph: Graph, unit: Longs) -> tuple[Longs, Ints, Longs, Ints]:
    """The forward tensors that other units of the same phase read: tensor, its unit, offsets and units of readers."""
    maker = graph.tensors.producer[graph.edges.value].astype(np.int64)
    reader = graph.edges.consumer.astype(np.int64)
    phase, late = graph.ops.phase, graph.ops.backward
    kept = (maker >= 0) & ~late[maker] & (phase[maker] == phase[reader])
    kept &= unit[maker] < unit[reader]
    n_units = int(unit.max(initial=-1)) + 1
    pairs = np.unique(graph.edges.value[kept].astype(np.int64) * n_units + unit[reader[kept]])
    tensor, readers = pairs // max(n_units, 1), pairs % max(n_units, 1)
    distinct, first = np.unique(tensor, return_index=True)
    offsets = np.append(first, len(tensor)).astype(np.int64)
    return distinct, unit[graph.tensors.producer[distinct]].astype(np.int32), offsets, readers.astype(np.int32)
