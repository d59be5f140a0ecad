"""What the objective `step` asks of a problem: a training graph, stages in a chain, micro-batches."""

from __future__ import annotations

from dataclasses import replace

from placewise.core.options import ProblemOptions
from placewise.core.split_ways import MICROBATCHES
from placewise.errors import InputError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate.step.orders import refuse_microbatches
from placewise.transform.training import is_training


def ask_step(problem: Problem, options: ProblemOptions) -> Problem:
    """The problem with its micro-batches.

    Raises InputError for a graph that does not train, stages that form no chain, ops that may be split, and
    micro-batches that the schedule cannot run on any number of the devices.
    """
    if not is_training(problem.graph):
        raise InputError("the objective step is one of training", remedy="add --graph training")
    split = options.tensor_parallel not in (None, 1) or bool(options.sequence_parallel)
    if problem.ways is not None or split or options.recompute not in (None, "never"):
        remedy = "leave out --tensor-parallel and --recompute, or use --objective throughput"
        raise InputError("the step of ops that are split or recomputed is not simulated", remedy=remedy)
    if not problem.constraints.contiguous:
        raise InputError("the stages of a training step form a chain", remedy="leave out --free and --convex")
    microbatches = options.microbatches or problem.constraints.microbatches or MICROBATCHES
    _require_fitting(problem, microbatches)
    return problem.with_(constraints=replace(problem.constraints, microbatches=microbatches))


def _require_fitting(problem: Problem, microbatches: int) -> None:
    schedule = problem.objective.schedule
    usable = int(problem.allowed.any(axis=0).sum())
    refusals = [refuse_microbatches(schedule, count, microbatches) for count in range(min(2, usable), usable + 1)]
    if refusals and all(refusals):
        multiples = "a multiple of the number of devices, or take another schedule"
        raise InputError(refusals[-1], remedy=f"give {multiples}")


def without_pipeline(placement: Placement) -> Placement:
    """The devices of a pipeline alone, for another objective; any other placement as it is."""
    return Placement(placement.device) if placement.schedule else placement
