"""A cheap proof of infeasibility, before any search."""

from __future__ import annotations

import numpy as np

from placewise._util.units import format_bytes
from placewise.model.columns import Bools, Floats, Longs, distinct
from placewise.model.problem import Problem, cached_per_problem
from placewise.model.quantized import held_bytes
from placewise.simulate.blocks import block_bytes, block_sums, op_times, unshared_bytes
from placewise.simulate.contiguity import contract
from placewise.simulate.in_place import in_place_ops


@cached_per_problem
def why_infeasible(problem: Problem) -> str:
    """A proof in words that no placement exists, or "" if simple checks find none, as where ops may be split."""
    if not problem.n_ops or problem.ways is not None:
        return ""
    times = op_times(problem)
    runs = np.stack([np.isfinite(block_sums(problem, column)) for column in times.seconds])
    working = _working_bytes(problem)
    size = block_bytes(problem) + working
    nowhere = ~runs.any(axis=0)
    if nowhere.any():
        name = _named(problem, int(np.argmax(nowhere)))
        causes = "unsupported kinds, pins, forbidden pairs, infinite times, excluded devices and --no-offload"
        return f"{name} may run on no device: see {causes}"
    most = np.full(len(times.seconds), -1.0)
    np.maximum.at(most, times.of, problem.capacity)
    short = size - np.where(runs, most[:, None], -1.0).max(axis=0)
    if (short > 0).any():
        block = int(np.argmax(short))
        device = problem.cluster.names[int(np.where(runs[times.of, block], problem.capacity, -1.0).argmax())]
        live = f", {format_bytes(working[block])} of it live tensors," if working[block] else ""
        return (
            f"{_named(problem, block)} needs {format_bytes(size[block])}{live} and fits nowhere: on {device}, the "
            f"roomiest device that may run it, {format_bytes(short[block])} ({short[block]:.0f} bytes) are missing"
        )
    limited = np.isfinite(problem.capacity) & np.asarray(runs.any(axis=1))[times.of]
    bound_to = np.ones(len(size), np.bool_)
    for column in np.unique(times.of[~limited]).tolist():
        bound_to &= ~runs[column]
    needed = float(unshared_bytes(problem)[bound_to].sum())
    missing = needed - float(problem.capacity[limited].sum())
    if missing > 1e-9 * max(needed, 1.0):
        devices = ", ".join(problem.cluster.names[d] for d in np.flatnonzero(limited))
        return (
            f"{format_bytes(needed)} must fit on {devices}, which is {format_bytes(missing)} ({missing:.0f} bytes) "
            f"more than they hold; {largest_group(problem)}"
        )
    return _order_conflict(problem, runs[times.of].T) if problem.constraints.ordered else ""


def _order_conflict(problem: Problem, runs: Bools) -> str:
    """Two ops that no placement can keep in the order of the devices, in words; `runs` [n_blocks, n_devices].

    Each component goes to the first device that may run it and is not before the device of a predecessor. If there is
    none, no placement keeps the order, regardless of memory.
    """
    parts, names = contract(problem), problem.cluster.names
    may = np.ones((parts.n, problem.n_devices), np.bool_)
    np.logical_and.at(may, parts.component, runs[problem.block])
    devices = [np.flatnonzero(row).tolist() for row in may]
    earliest, because = [0] * parts.n, list(range(parts.n))
    for part in range(parts.n):
        for before in parts.predecessors[parts.predecessor_offsets[part] : parts.predecessor_offsets[part + 1]]:
            if earliest[before] > earliest[part]:
                earliest[part], because[part] = earliest[before], because[before]
        found = next((device for device in devices[part] if device >= earliest[part]), None)
        if found is None and devices[part]:
            first, then = (problem.block[np.argmax(parts.component == which)] for which in (because[part], part))
            return (
                f"{_named(problem, then)} comes after {_named(problem, first)}, which may run on "
                f"{names[earliest[part]]} at the earliest, and may itself run on {names[devices[part][-1]]} at the "
                "latest: no stages keep the order of the devices"
            )
        if found is not None and found > earliest[part]:
            earliest[part], because[part] = found, part
    return ""


def _working_bytes(problem: Problem) -> Floats:
    """The most live bytes that an op of each block [n_blocks] needs while it runs: all its inputs and outputs.

    The first output of an op that works in place may take the memory of an operand.
    """
    graph, working = problem.graph, np.zeros(problem.n_blocks)
    if problem.objective.memory != "live":
        return working
    size = held_bytes(problem).astype(np.float64)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    live = np.bincount(graph.consumers, weights=size[tensor], minlength=graph.n_ops)
    made = graph.tensors.producer >= 0
    live = live + np.bincount(graph.tensors.producer[made], weights=size[made], minlength=graph.n_ops)
    ops = _replacing(problem)
    live = live - np.bincount(ops, weights=size[graph.out_offsets[ops]], minlength=graph.n_ops)
    np.maximum.at(working, problem.block.astype(np.intp), live)
    return working


def _replacing(problem: Problem) -> Longs:
    """The ops whose first output may take the memory of an operand under some placement."""
    graph = problem.graph
    tensors, edges = graph.tensors, np.flatnonzero(in_place_ops(graph)[graph.edges.consumer])
    value, reader = graph.edges.value[edges], graph.edges.consumer[edges]
    first = graph.out_offsets[reader]
    makes = first < graph.out_offsets[reader + 1]
    rows = np.flatnonzero(makes & (tensors.producer[value] >= 0) & ~tensors.output[value])
    size = held_bytes(problem)
    return distinct(reader[rows[size[value[rows]] == size[first[rows]]]].astype(np.int64))


def largest_group(problem: Problem) -> str:
    """The block with the most bytes, in words."""
    size = block_bytes(problem)
    block = int(size.argmax())
    return f"the largest group is {_named(problem, block)} with {format_bytes(size[block])}"


def _named(problem: Problem, block: int) -> str:
    members = np.flatnonzero(problem.block == block)
    first = repr(problem.graph.ops.name[members[0]])
    return f"op {first}" if len(members) == 1 else f"the group of {len(members)} ops around {first}"
