"""Ways to split, repeat and recompute the units of a model, as far as the options of a problem allow them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.coarsen.units import Units, group_units
from placewise.core.options import ProblemOptions
from placewise.core.precision import find_tf32
from placewise.costing.roofline import allow_tf32
from placewise.costing.sharding import SplitOptions, make_ways
from placewise.costing.work import OpWork, work_of
from placewise.errors import InputError
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Problem
from placewise.model.ways import Ways

MICROBATCHES = 32
"""Of a training step, where nothing is said."""


def add_ways(problem: Problem, work: OpWork | None, options: ProblemOptions) -> Problem:
    """The problem with ways to run its units.

    Raises InputError where a degree is asked for that no group of devices can have, that does not divide heads or
    experts, or where an option is one of training.
    """
    graph = problem.graph
    trains = bool(graph.ops.backward.any())
    if not trains and (options.recompute not in (None, "auto") or options.microbatches is not None):
        what = "--microbatches" if options.recompute in (None, "auto") else "--recompute"
        raise InputError(f"{what} applies to training", remedy="add --graph training")
    if problem.objective.communication != "blocking":
        message = f"where ops may be split, communication is blocking, not {problem.objective.communication}"
        raise InputError(message, remedy="leave out --communication or --tensor-parallel")
    if problem.objective.kind == "latency" and not problem.objective.op_by_op:
        message = "where ops may be split, the latency is that of stages one after the other"
        raise InputError(message, remedy="leave out --execution or --tensor-parallel")
    if options.sequence_parallel and options.tensor_parallel in (None, 1):
        said = "sequence parallelism splits what lies between ops that are split, and none is"
        raise InputError(said, remedy="add --tensor-parallel any, or leave out --sequence-parallel")
    units, microbatches = group_units(graph), options.microbatches or (MICROBATCHES if trains else 1)
    constraints = replace(
        problem.constraints,
        tensor_parallel=1 if options.tensor_parallel is None else options.tensor_parallel,
        recompute=options.recompute or "auto",
        microbatches=microbatches if trains else 0,
        replicas=0 if options.replicas is None else options.replicas,
        sequence_parallel=bool(options.sequence_parallel),
    )
    ways, notes = _make(problem, constraints, units, microbatches, work)
    return problem.with_(ways=ways, constraints=constraints, warnings=(*problem.warnings, *notes))


def remake_ways(problem: Problem, *, sequence_parallel: bool) -> Problem:
    """The problem with its ways made again from the graph, with or without sequence parallelism.

    Raises InputError where ways came with a file, and where sequence parallelism is impossible.
    """
    ways, constraints = problem.require_ways(), problem.constraints
    if not _are_made(ways):
        raise InputError("the ways of this problem came with its file", remedy="leave sequence parallelism as it is")
    constraints = replace(constraints, sequence_parallel=sequence_parallel)
    work = allow_tf32(work_of(problem.graph), find_tf32(problem.graph))
    ways, _ = _make(problem, constraints, Units(ways.unit, ways.unit_names), ways.microbatches, work)
    return problem.with_(ways=ways, constraints=constraints)


def _make(
    problem: Problem, rules: Constraints, units: Units, microbatches: int, work: OpWork | None
) -> tuple[Ways, tuple[str, ...]]:
    """The ways of the units of a problem, as far as rules allow them, and notes."""
    split = SplitOptions(
        degrees=_list_degrees(rules.tensor_parallel),
        recompute=rules.recompute,
        microbatches=microbatches,
        sequence_parallel=rules.sequence_parallel,
        in_flight=problem.objective.schedule,
    )
    return make_ways(
        problem.graph, problem.cluster, problem.costs, problem.capacity, units.unit, split,
        work=work, unit_names=units.names,
    )  # fmt: skip


def _are_made(ways: Ways) -> bool:
    """Whether ways have the names that `make_ways` gives them."""
    return all(name.startswith(f"t={degree}") for name, degree in zip(ways.name, ways.degree.tolist(), strict=True))


def move_to_ways(problem: Problem, placement: Placement, other: Problem) -> Placement:
    """A placement of stages of one problem in the ways of another one with the same units.

    Units recompute where they did if they can. Raises InputError where a unit has no way of its degree.
    """
    old, new = problem.require_ways(), other.require_ways()
    stage, chosen = np.zeros(new.n_units, np.int32), np.zeros(new.n_units, np.int32)
    stage[new.unit] = np.asarray(placement.stage)
    for unit, way in enumerate(np.asarray(placement.way).tolist()):
        fitting = new.ways_of(unit, int(old.degree[way]))
        if not len(fitting):
            raise InputError(f"a unit has no way over {old.degree[way]} devices without sequence parallelism")
        alike = fitting[new.recompute[fitting] == old.recompute[way]]
        chosen[unit] = (alike if len(alike) else fitting)[0]
    return Placement.of_stages(new, placement.stages, stage, chosen)


def _list_degrees(most: int) -> tuple[int, ...] | None:
    """Powers of two up to `most`, and itself; None (for 0) for all that nodes have devices for."""
    return tuple(sorted({2**k for k in range(most.bit_length())} | {most})) if most else None
