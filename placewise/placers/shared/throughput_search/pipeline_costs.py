"""The costs of a pipeline as whole numbers, for local search: exactly the judge's loads.

Ops are grouped into blocks, or into components where stages form a chain. Seconds become integers: sums are exact in
any order, and undoing a move restores them. As in the judge, a device's location is its own number and the host's is
``n_devices``. The schedule `gpipe` has two phases, whose largest loads add up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placewise import _native
from placewise.model.columns import Bools, Bytes8, Floats, Ints, Longs, frozen
from placewise.model.problem import Problem
from placewise.placers.shared.stages.stage_costs import MODES, NEVER, crossing_tensors, resident_sizes
from placewise.simulate.contiguity import Contraction
from placewise.simulate.phases import two_phases

NOTHING = frozen([], np.int32)


class PipelineCosts(NamedTuple):
    """Groups, the tensors between them, and devices: flat read-only arrays.

    `seconds` [n, n_phases · n_kinds], phase by phase, is NEVER where a group may not run; device d is of kind
    ``kind[d]``. A tensor has a producer (−1: the host), distinct readers other than it, and counts one reader more if
    the host wants it (`output`); it costs ``transfer[t, link_class[a, b]]`` from location a to b, in its phase.
    `after` and `before` are the groups that a chain of stages must have later and earlier; they are empty, and not
    `shaped`, where every group may go anywhere.
    """

    seconds: Longs
    kind: Ints  # [n_devices]
    transfer: Longs  # [n_tensors, n_link_classes]
    phase: Bytes8  # [n_tensors]
    producer: Ints  # [n_tensors]
    readers: Ints  # [n_tensors]
    output: Bools  # [n_tensors]
    consumer_offsets: Longs  # [n_tensors + 1]
    consumers: Ints
    use_offsets: Longs  # [n + 1] tensors that a group reads
    uses: Ints
    make_offsets: Longs  # [n + 1] tensors that it makes
    makes: Ints
    size: Longs  # [n] bytes
    storage_offsets: Longs  # [n + 1] shared storages that it holds
    storages: Ints
    storage_bytes: Longs
    capacity: Longs  # [n_devices]
    location: Ints  # [n_devices]
    link_class: Ints  # [n_devices + 1, n_devices + 1]
    wire: Ints  # [n_devices + 1, n_devices + 1], −1 for none
    after_offsets: Longs  # [n + 1]
    after: Ints
    before_offsets: Longs  # [n + 1]
    before: Ints
    staged: bool
    shaped: bool
    ordered: bool  # whether the stages of a chain follow each other as the devices do
    mode: int
    n_phases: int
    n_wires: int


def costs_of(problem: Problem, group: Ints, n: int, chain: Contraction | None = None) -> tuple[PipelineCosts, float]:
    """The costs of ops in the groups `group` [n_ops], and how many of their units make a second.

    `chain` orders the groups where stages must form a chain of ideals.
    """
    cluster = problem.cluster
    scale = _scale(problem)
    columns, kind = _kinds(problem, group, n, scale)
    transfers = problem.costs.transfer_seconds
    tensors, kept = crossing_tensors(problem, group, n, np.asarray(transfers.any(axis=1)))
    tensors.pop("mirrored")
    maker = problem.graph.tensors.producer[kept]
    late = two_phases(problem) & (maker >= 0) & problem.graph.ops.backward[maker]
    size, _, storages = resident_sizes(problem, group, n)
    costs = PipelineCosts(
        seconds=frozen(columns, np.int64),
        kind=frozen(kind, np.int32),
        transfer=frozen(np.rint(transfers[kept] * scale), np.int64),
        phase=frozen(late, np.int8),
        **tensors,
        size=size,
        **storages,
        capacity=whole_bytes(problem.capacity),
        location=cluster.location,
        link_class=cluster.link_class,
        wire=cluster.wire,
        **(no_chain(n) if chain is None else _order(chain)),
        staged=cluster.transfers == "staged",
        shaped=chain is not None,
        ordered=problem.constraints.ordered,
        mode=MODES[problem.objective.communication],
        n_phases=1 + two_phases(problem),
        n_wires=len(cluster.wires),
    )
    return costs, scale


def native_costs(c: PipelineCosts) -> _native.ThroughputCosts:
    """The same columns for the C++ kernels: checked once, never copied."""
    return _native.ThroughputCosts(**c._asdict())


def whole_bytes(capacity: Floats) -> Longs:
    """Usable bytes [n_devices] as whole numbers, NEVER for no limit."""
    return frozen(np.floor(np.clip(capacity, 0, NEVER)), np.int64)


def _scale(problem: Problem) -> float:
    """Units per second, a power of two such that everything together stays below 2^60."""
    seconds = np.where(problem.allowed, problem.costs.op_seconds, 0.0)
    total = float(seconds.max(axis=1, initial=0.0).sum())
    total += (problem.n_devices + 1) * float(problem.costs.transfer_seconds.max(axis=1, initial=0.0).sum())
    return float(2.0 ** np.floor(np.log2(2.0**59 / total))) if total > 0 else 1.0


def _kinds(problem: Problem, group: Ints, n: int, scale: float) -> tuple[Longs, Ints]:
    """Seconds of each group on every kind of device, phase by phase, and the kind of each device."""
    backward = problem.graph.ops.backward
    parts = [~backward, backward] if two_phases(problem) else [np.ones(problem.n_ops, np.bool_)]
    known: dict[bytes, int] = {}
    columns: list[list[Longs]] = [[] for _ in parts]
    kind = np.empty(problem.n_devices, np.int32)
    for device in range(problem.n_devices):
        able = problem.allowed[:, device]
        never = np.bincount(group, weights=~able, minlength=n) > 0
        seconds = np.where(able, problem.costs.op_seconds[:, device], 0.0) * scale
        rows = [np.bincount(group, weights=np.where(mine, seconds, 0.0), minlength=n) for mine in parts]
        whole = [np.where(never, NEVER, np.rint(row).astype(np.int64)) for row in rows]
        key = b"".join(row.tobytes() for row in whole)
        if key not in known:
            known[key] = len(known)
            for column, row in zip(columns, whole, strict=True):
                column.append(row)
        kind[device] = known[key]
    return np.stack([column for phase in columns for column in phase], axis=1), kind


def no_chain(n: int) -> dict[str, npt.NDArray[Any]]:
    """The columns of a problem without an order between groups."""
    none = frozen(np.zeros(n + 1), np.int64)
    return {"after_offsets": none, "after": NOTHING, "before_offsets": none, "before": NOTHING}


def _order(chain: Contraction) -> dict[str, npt.NDArray[Any]]:
    return {
        "after_offsets": chain.successor_offsets,
        "after": chain.successors,
        "before_offsets": chain.predecessor_offsets,
        "before": chain.predecessors,
    }
