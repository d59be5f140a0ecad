"""Ways to split, repeat and recompute the units of a model, as far as the options of a problem allow them."""

from __future__ import annotations

from dataclasses import replace

from placewise.coarsen.units import group_units
from placewise.core.options import ProblemOptions
from placewise.costing.sharding import SplitOptions, make_ways
from placewise.costing.work import OpWork
from placewise.errors import InputError
from placewise.model.problem import Problem

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
        said = f"where ops may be split, communication is blocking, not {problem.objective.communication}"
        raise InputError(said, remedy="leave out --communication or --tensor-parallel")
    if problem.objective.kind == "latency" and problem.objective.execution != "operator":
        said = "where ops may be split, the latency is that of stages one after the other"
        raise InputError(said, remedy="leave out --execution or --tensor-parallel")
    units = group_units(graph)
    split = SplitOptions(
        degrees=_list_degrees(options.tensor_parallel),
        recompute=options.recompute or "auto",
        microbatches=options.microbatches or (MICROBATCHES if trains else 1),
        in_flight=problem.objective.schedule,
    )
    made = make_ways(
        graph, problem.cluster, problem.costs, problem.capacity, units.unit, split, work=work, unit_names=units.names
    )
    constraints = replace(
        problem.constraints,
        tensor_parallel=1 if options.tensor_parallel is None else options.tensor_parallel,
        recompute=split.recompute,
        microbatches=split.microbatches if trains else 0,
        replicas=0 if options.replicas is None else options.replicas,
    )
    return problem.with_(ways=made.ways, constraints=constraints, warnings=(*problem.warnings, *made.notes))


def _list_degrees(most: int | None) -> tuple[int, ...] | None:
    """Powers of two up to `most`, and itself; None for all that nodes have devices for."""
    if most == 0:
        return None
    limit = most or 1
    return tuple(sorted({2**k for k in range(limit.bit_length()) if 2**k <= limit} | {limit}))
