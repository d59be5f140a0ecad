"""A quick check, in arrays, of the rules that a placement must keep. The judge's checker decides in the end."""

from __future__ import annotations

import numpy as np

from placewise._util.units import format_bytes
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate.contiguity import contract, out_of_order, path_back, stage_cycle
from placewise.simulate.judge.memory import device_memory, resident_bytes


def find_broken_rule(problem: Problem, device: Ints) -> str:
    """A sentence on the first rule that a placement [n_ops] breaks; empty if it keeps all rules."""
    names = problem.cluster.names
    ops = np.arange(problem.n_ops)
    refused = ~problem.allowed[ops, device]
    if refused.any():
        op = int(np.argmax(refused))
        return f"op {problem.graph.ops.name[op]!r} may not run on {names[device[op]]}"
    assignment = np.empty(problem.n_blocks, np.int32)
    assignment[problem.block] = device
    torn = assignment[problem.block] != device
    if torn.any():
        return f"the colocation group of op {problem.graph.ops.name[int(np.argmax(torn))]!r} is on several devices"
    if problem.constraints.contiguous:
        cycle = stage_cycle(problem, device)
        if cycle is not None:
            return f"the stages are no chain: {' → '.join(names[d] for d in (*cycle, cycle[0]))}"
        back = out_of_order(contract(problem), device) if problem.constraints.ordered else None
        if back is not None:
            return f"the stage of {names[back[1]]} follows that of {names[back[0]]}, which comes later"
    elif problem.constraints.convex:
        path = path_back(problem, device)
        if path is not None:
            return f"a path leaves {names[device[path[0]]]} and comes back at op {problem.graph.ops.name[path[-1]]!r}"
    resident = resident_bytes(problem, device)
    peak = resident if (resident > problem.capacity).any() else device_memory(problem, Placement(device))[1]
    short = peak - problem.capacity
    if (short > 0).any():
        d = int(np.argmax(short))
        least = " at least" if peak is resident else ""
        return (
            f"{names[d]} would need{least} {format_bytes(peak[d])} and may use {format_bytes(problem.capacity[d])}: "
            f"{format_bytes(short[d])} short"
        )
    return ""
