"""What people do without a placer, judged: one device, copies of the model, and two even splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Reason
from placewise.model.verdict import (
    BALANCED_SPLIT,
    EVEN_LAYERS,
    NO_TIME,
    OWN_THREADS,
    REPLICAS,
    SINGLE_DEVICE,
    Baseline,
)
from placewise.placers import registry
from placewise.placers.base import Budget, Stopwatch, run_placer
from placewise.simulate import judge_placement
from placewise.simulate.replicas import equal_devices

BASELINES = {SINGLE_DEVICE: "single", BALANCED_SPLIT: "balanced"}
"""The naive answers that a placer makes, and which."""

FIRST_SHARE, SPLIT_COST = 0.5, 4.0
"""Of the time, for bounds and naive answers; an even split takes so many times as long as the best single device."""

NO_BOUND = "no bound: interrupted"

NOT_SAID = "the target cannot express it"

Judged = tuple[Placement, Judgement]
Project = Callable[[Placement], Placement | None]


@dataclass(slots=True)
class Baselines:
    """Naive answers that are placements, judged; the others as figures or with the reason why there is none; the
    seconds that the judge took for one; and whether Ctrl-C came before all were made.
    """

    judged: dict[str, Judged] = field(default_factory=dict)
    others: dict[str, Baseline] = field(default_factory=dict)
    judging: float = 0.0
    interrupted: bool = False


def collect_baselines(problem: Problem, budget: Budget, watch: Stopwatch, project: Project | None = None) -> Baselines:
    """Every naive answer to a problem, through `project` where one is given (see `place`).

    What there is no time for, after the first, says so. Ctrl-C ends it with those made so far.
    """
    baselines = Baselines()
    try:
        _fill(baselines, problem, budget, watch, project)
    except KeyboardInterrupt:
        baselines.interrupted = True
    baselines.others |= measured_threads(problem)
    return baselines


def _fill(baselines: Baselines, problem: Problem, budget: Budget, watch: Stopwatch, project: Project | None) -> None:
    """Add one naive answer after the other, while there is time."""
    spent = 0.0
    for name in (*BASELINES, EVEN_LAYERS):
        started = watch.elapsed
        late = watch.stopped or started + SPLIT_COST * spent > FIRST_SHARE * watch.budget.seconds
        if baselines.judged and late:
            baselines.others[name] = Baseline(math.inf, NO_TIME)
            continue
        placement, why = _propose(problem, name, budget)
        if placement is not None and project is not None:
            placement, why = project(placement), NOT_SAID
        if placement is None:
            apart = name == SINGLE_DEVICE and not problem.allowed.all(axis=0).any()
            baselines.others[name] = Baseline(math.inf, why, rule="support" if apart else "")
        else:
            proposed = watch.elapsed
            baselines.judged[name] = (placement, judge_placement(problem, placement))
            baselines.judging = max(baselines.judging, watch.elapsed - proposed)
        spent = watch.elapsed - started
    if problem.objective.kind == "throughput" and problem.allowed.any(axis=0).sum() > 1:
        able = int(problem.allowed.all(axis=0).sum())
        late = able > 0 and (watch.out or 2 * able * baselines.judging > watch.left)
        baselines.others[REPLICAS] = Baseline(math.inf, NO_TIME) if late else copy_model(problem)


def measured_threads(problem: Problem) -> dict[str, Baseline]:
    """The runtime's own threads on all cores, where a profile measured them and the problem is theirs."""
    runs = problem.costs.runs
    on_cores = tuple(device.name for device in problem.cluster if device.kind == "core")
    return {OWN_THREADS: Baseline(runs.own_threads, devices=on_cores)} if math.isfinite(runs.own_threads) else {}


def _propose(problem: Problem, name: str, budget: Budget) -> tuple[Placement | None, str]:
    """The placement of a naive method, or why there is none."""
    if name == EVEN_LAYERS:
        from placewise.placers.baselines.even_layers import split_layers

        device, why = split_layers(problem) if problem.n_ops else (None, "there are no ops")
        return (None, why) if device is None else (Placement(device), "")
    placer = registry.create(BASELINES[name])
    refusal = placer.supports(problem)
    if refusal is not None:
        return None, refusal
    proposal = run_placer(placer, problem, budget)
    if proposal.reason is Reason.INTERRUPTED:
        raise KeyboardInterrupt
    if proposal.placement is None and proposal.reason is Reason.TIME_LIMIT:
        return None, NO_TIME
    why = proposal.infeasible or "; ".join(proposal.notes)
    return proposal.placement, why.removeprefix("no single device can hold the model: ")


def copy_model(problem: Problem) -> Baseline:
    """The whole model on every device that can hold it, each with the share of the samples that it has time for.

    Equal devices are priced as a stage that they share, with the sum of gradients in training (docs/judge.md); what
    groups of equal devices serve adds up, but for training, which takes the best group: between unequal devices no
    sum of gradients is modelled.
    """
    graph, groups, why = problem.graph, list[Baseline](), ""
    trains = bool(graph.ops.backward.any())
    if trains and not len(graph.weight_edges):
        return Baseline(math.inf, "the model does not say which of its bytes are weights: no price for their gradients")
    free = problem.with_(constraints=replace(problem.constraints, replicas=0, ordered=False))
    for members in _equal_groups(free):
        members = members[: free.max_replicas]
        stage = np.arange(problem.n_devices, dtype=np.int32)
        stage[members] = members[0]
        copies = Placement.on(members[0], problem.n_ops)
        judged = judge_placement(free, replace(copies, replicas=stage) if len(members) > 1 else copies)
        if judged.violations or not math.isfinite(judged.value):
            why = why or (judged.violations[0].message if judged.violations else "it cannot run")
        else:
            groups.append(Baseline(judged.value, "", tuple(problem.cluster.names[d] for d in members)))
    if trains:
        groups = sorted((group for group in groups if len(group.devices) > 1), key=lambda group: group.value)[:1]
    devices = tuple(name for group in groups for name in group.devices)
    if len(devices) < 2:
        lack = "no two equal devices can hold the model" if trains else "one device alone can hold the model"
        able = free.allowed.all(axis=0).any()
        return Baseline(math.inf, why or (lack if able else "no device may run every op"))
    pace = math.fsum(1 / group.value if group.value > 0 else math.inf for group in groups)
    return Baseline(1 / pace, "", devices)


def _equal_groups(problem: Problem) -> Iterator[list[int]]:
    """The devices that may run the whole model, but for disks, which a CPU beside them computes for."""
    kind = equal_devices(problem)
    able = problem.allowed.all(axis=0) & np.array([device.kind != "disk" for device in problem.cluster])
    for head in np.unique(kind[able]).tolist():
        yield np.flatnonzero(able & (kind == head)).tolist()
