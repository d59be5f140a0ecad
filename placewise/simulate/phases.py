"""The phases of a training pipeline that flushes (GPipe): all samples go forward, then all go backward.

Each phase has its own slowest resource: the seconds per sample are the largest forward load plus the largest backward
load (Tarnawski et al., NeurIPS 2020, appendix C). `graph.ops.backward` gives the phase of an op; a tensor belongs to
the phase of its producer, a model input to the forward phase. The schedule `1f1b` and graphs without backward ops have
one phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, frozen, offsets_of
from placewise.model.costs import CostTable
from placewise.model.problem import Problem, cached_per_problem
from placewise.simulate.judge.throughput import max_loads
from placewise.simulate.problem_arrays import ProblemArrays, arrays_of, native_problem, to_native


def two_phases(problem: Problem) -> bool:
    """Whether forward and backward loads are separate."""
    objective = problem.objective
    flushes = objective.kind == "throughput" and objective.schedule == "gpipe"
    return flushes and bool(problem.graph.ops.backward.any())


class PhaseColumns(NamedTuple):
    """The seconds of the ops of a phase, and its tensors: as arrays, and for the kernels."""

    arrays: ProblemArrays
    native: _native.Problem


@cached_per_problem
def list_phases(problem: Problem) -> tuple[PhaseColumns, ...]:
    """The phases whose loads are separate: forward and backward, or one for both."""
    a, backward = arrays_of(problem), problem.graph.ops.backward
    if not two_phases(problem):
        return (PhaseColumns(a, native_problem(problem)),)
    parts = [_select_phase(a, backward == late, _made(a.producer, backward) == late) for late in (False, True)]
    return tuple(PhaseColumns(part, to_native(part)) for part in parts)


def phase_problems(problem: Problem) -> tuple[Problem, ...]:
    """A problem per phase in which the other phase costs nothing; their max-loads add up to the value."""
    if not two_phases(problem):
        return (problem,)
    costs, backward = problem.costs, problem.graph.ops.backward
    late = _made(problem.graph.tensors.producer, backward)
    phases = []
    for mine, carried in ((~backward, ~late), (backward, late)):
        able = np.isfinite(costs.op_seconds)
        seconds = np.where(mine[:, None] | ~able, costs.op_seconds, 0.0)
        table = CostTable.given(seconds, np.where(carried[:, None], costs.transfer_seconds, 0.0))
        phases.append(problem.with_(costs=table, objective=replace(problem.objective, schedule="1f1b")))
    return tuple(phases)


def summed_loads(
    phases: Sequence[PhaseColumns], placements: Ints, mode: str, first: int, last: int, values: Floats
) -> None:
    """Write the sums of the phases' max-loads of placements [K, n_ops], rows first to last, into `values` [K]."""
    max_loads(phases[0].native, placements, mode, first, last, values)
    for phase in phases[1:]:
        more = np.empty_like(values)
        max_loads(phase.native, placements, mode, first, last, more)
        values[first:last] += more[first:last]


def _made(producer: Ints, backward: Bools) -> Bools:
    """The tensors [n_tensors] that backward ops produce."""
    return (producer >= 0) & backward[producer]


def _select_phase(a: ProblemArrays, mine: Bools, carried: Bools) -> ProblemArrays:
    used = carried[a.consumed]
    tensor = (np.cumsum(carried) - 1)[a.consumed[used]]
    return a._replace(
        op_seconds=frozen(np.where(mine[:, None], a.op_seconds, 0.0), np.float64),
        transfer=frozen(a.transfer[carried], np.float64),
        producer=frozen(a.producer[carried], np.int32),
        output=frozen(a.output[carried], np.bool_),
        out_offsets=frozen(offsets_of(a.producer[carried], len(mine)), np.int64),
        consumer_offsets=frozen(offsets_of(tensor, int(carried.sum())), np.int64),
        consumers=frozen(a.consumers[used], np.int32),
        consumed=frozen(tensor, np.int32),
    )
