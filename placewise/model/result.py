"""What placing and judging give back: status, bounds, violations, figures per device, and the result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib import import_module
from typing import Any, Literal

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.cost_error import estimate_error, expected_seconds
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.verdict import (
    BALANCED_SPLIT,
    BEST_UNIFORM,
    EVEN_LAYERS,
    MEGATRON,
    OWN_THREADS,
    REPLICAS,
    SINGLE_DEVICE,
    Baseline,
    Verdict,
    decide,
)

_PARTS = "placewise.coarsen.module_parts"
"""Imported when parts are asked for: data does not depend on what reads it."""
DECODE = "decode"
"""The phase of a language model that makes one token, or one for each sample of a batch, per run."""

OPTIMAL_GAP = 1e-6
"""A value within this relative gap of its bound is called optimal: floating point, not a loophole."""


class Outcome(StrEnum):
    """What an answer is worth."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why a search stopped.

    It proved that nothing is better, or that nothing fits; it came as near to its bound as was asked for; its time was
    over; it had done all that it does, or the work that it was given; or somebody interrupted it.
    """

    PROVED = "proved"
    GAP = "gap reached"
    TIME_LIMIT = "time limit"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Status:
    """How an answer ended: what it is, and why the search stopped."""

    outcome: Outcome
    reason: Reason

    def __str__(self) -> str:
        return f"{self.outcome} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Bound:
    """A proved lower bound in seconds and the name of the method that proved it."""

    value: float
    method: str


ViolationKind = Literal[
    "coverage", "support", "pin", "colocation", "memory", "contiguity", "schedule", "order", "convexity", "calls",
    "replicas", "degree", "devices",
]  # fmt: skip
"""The rules that a placement can break; docs/judge.md describes each."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule."""

    kind: ViolationKind
    message: str
    device: str = ""
    ops: tuple[str, ...] = ()
    bytes_short: float = 0.0


@dataclass(frozen=True, slots=True)
class Improvement:
    """At `seconds` after the start, `placer` had a placement worth `value` seconds."""

    seconds: float
    value: float
    placer: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a placer returns: a placement and perhaps a bound of its own, and no score.

    `reason` says why it stopped; `notes` what the user should know; `infeasible` is its proof, in words,
    that no placement exists; `history` who found something better and when, if the placer knows.
    """

    placement: Placement | None
    bound: Bound | None = None
    reason: Reason = Reason.FINISHED
    notes: tuple[str, ...] = ()
    infeasible: str = ""
    history: tuple[Improvement, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device under a placement: seconds per sample (of a whole step for the objective `step`) and bytes.

    `load` is what counts against the objective (compute and communication combined as the mode says);
    `idle` is the rest of the value; `peak` is resident bytes plus the peak of live activations where the
    memory model counts them, beside `capacity`, the bytes that may be used. With the schedule `gpipe`, `load` is
    the sum of `forward` and `backward`, the loads of the two phases; otherwise these are None. `replicas` devices
    share its stage, whose synchronization takes `sync` seconds; `repeats` names the one of them that the placement
    names, "" for that one itself.
    """

    device: str
    ops: int
    compute: float
    send: float
    receive: float
    load: float
    idle: float
    resident: float
    peak: float
    capacity: float
    waits_for: str = ""
    forward: float | None = None
    backward: float | None = None
    sync: float = 0.0
    replicas: int = 1
    repeats: str = ""

    @property
    def free(self) -> float:
        return self.capacity - self.peak


@dataclass(frozen=True, slots=True)
class StageUse:
    """One stage of a pipeline whose ops are split over devices: seconds per micro-batch, and bytes on each device.

    `compute` includes `collective`, what its splits exchange; `send` and `receive` are what it exchanges with other
    stages, `gradients` its replicas with each other. `in_flight` micro-batches are held at once; `memory` says what
    holds how many bytes.
    """

    compute: float
    collective: float
    send: float
    receive: float
    gradients: float
    in_flight: int
    memory: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return self.compute + self.send + self.receive + self.gradients

    @property
    def peak(self) -> float:
        return math.fsum(self.memory.values())


@dataclass(frozen=True, slots=True)
class PipelineStageUse:
    """One stage of a training pipeline: its devices, one per replica, and seconds per micro-batch.

    `backward` includes the gradients of weights, unless the schedule makes tasks of their own of them (`weight`);
    `update` is the optimizer's, once per step. At most `in_flight` micro-batches wait for their backward task and
    `unfinished` for their last one; each holds `activation_bytes` after its forward task.
    """

    devices: tuple[str, ...]
    forward: float
    backward: float
    weight: float
    update: float
    in_flight: int
    unfinished: int
    activation_bytes: float


@dataclass(frozen=True, slots=True)
class PipelineUse:
    """A training step under the objective `step`: schedule, micro-batches, stages, and the share of idle time."""

    schedule: str
    microbatches: int
    bubble: float
    stages: tuple[PipelineStageUse, ...]


@dataclass(frozen=True, slots=True)
class PhaseUse:
    """A phase of the model under a placement, for latency: it runs `repeats` times, and one run takes `seconds`."""

    phase: str
    repeats: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What runs when, in seconds: ops and transfers.

    `start`, `finish` [n_ops]; transfers as columns `tensor`, `source`, `target` (locations, the host is
    ``n_devices``), `sent`, `arrived`.
    """

    start: Floats
    finish: Floats
    tensor: Ints
    source: Ints
    target: Ints
    sent: Floats
    arrived: Floats

    def __repr__(self) -> str:
        return f"Timeline({len(self.start)} ops, {len(self.tensor)} transfers, {self.makespan:.6g} s)"

    @property
    def makespan(self) -> float:
        last = max(self.finish.max(initial=0.0), self.arrived.max(initial=0.0))
        return float(last)


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """The judge's word on one placement: its value in seconds, where it comes from, and what it breaks.

    `value` is inf where the placement cannot run at all; `wires` are the loads of shared links;
    `timeline` is there for latency, `phases` where the model has any, `stages` where ops may be split,
    `pipeline` for the objective `step`; `bottleneck` names the device or wire that
    sets the value.
    """

    value: float
    devices: tuple[DeviceUse, ...]
    violations: tuple[Violation, ...]
    wires: Mapping[str, float] = field(default_factory=dict)
    timeline: Timeline | None = None
    bottleneck: str = ""
    phases: tuple[PhaseUse, ...] = ()
    stages: tuple[StageUse, ...] = ()
    pipeline: PipelineUse | None = None

    def __repr__(self) -> str:
        return f"Judgement({self.value:.6g} s, {len(self.violations)} violations, bottleneck {self.bottleneck!r})"

    @property
    def valid(self) -> bool:
        return not self.violations


def gap_of(value: float, bound: float) -> float:
    """(value − bound) / value; 0 for two zeros, 1 for an infinite value."""
    if not math.isfinite(value):
        return 1.0
    return (value - bound) / value if value > 0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The answer of `place()`: checked, judged, bounded, beside what people do without it.

    `judgement` is None when there is no placement; `baselines` maps a name (the best single device, the
    naive balanced split, the even split by layers) to its judgement, also where that one breaks rules; `others` are
    those that are no placement: replicas, and what could not be made, with the reason; `unmet` says in words why no
    placement exists. `target` is the tool that the plan is made for ("": none): then the bound holds for the
    placements that are searched for it.
    """

    problem: Problem
    placement: Placement | None
    status: Status
    judgement: Judgement | None
    bound: Bound
    placer: str
    seconds: float
    seed: int = 0
    baselines: Mapping[str, tuple[Placement, Judgement]] = field(default_factory=dict)
    history: tuple[Improvement, ...] = ()
    notes: tuple[str, ...] = ()
    unmet: str = ""
    others: Mapping[str, Baseline] = field(default_factory=dict)
    target: str = ""

    def __repr__(self) -> str:
        return f"Result({self.status}, {self.value:.6g} s, bound {self.lower_bound:.6g} s, {self.placer})"

    @property
    def value(self) -> float:
        """Seconds; inf when there is no placement."""
        return self.judgement.value if self.judgement else math.inf

    @property
    def lower_bound(self) -> float:
        return self.bound.value

    @property
    def gap(self) -> float:
        return gap_of(self.value, self.bound.value)

    @property
    def compared(self) -> dict[str, Baseline]:
        """Every naive answer by its name, as figures: also those that break a rule or are no placement."""
        judged = {name: baseline_of(judgement) for name, (_, judgement) in self.baselines.items()}
        known = {**judged, **self.others}
        return {name: known[name] for name in BASELINE_NAMES if name in known}

    @property
    def verdict(self) -> Verdict | None:
        """Whether the split is worth it; None without a placement or without anything to compare it with."""
        compared, judgement, placement = self.compared, self.judgement, self.placement
        if judgement is None or placement is None or not compared or self.problem.ways is not None:
            return None
        pairs = [(placement, judgement), *(self.baselines[name] for name in (SINGLE_DEVICE,) if name in self.baselines)]
        used = [device for device, use in zip(self.problem.cluster, judgement.devices, strict=True) if use.ops]
        return decide(
            self.expected,
            len(used),
            usable_devices(self.problem) if not self.target else list(self.problem.cluster.names),
            {name: self._expect(name, baseline) for name, baseline in compared.items()},
            estimate_error(self.problem, [(one, transfer_seconds(judged)) for one, judged in pairs]),
            whole=len(set(placement.device.tolist())) == 1,
            cores=len(used) > 1 and all(device.kind == CORE for device in used),
            trains=bool(self.problem.graph.ops.backward.any()),
            lower_bound=self.lower_bound,
        )

    @property
    def expected(self) -> float:
        """Seconds to expect when the plan runs: the value, and what runs of such plans took longer."""
        used = 0 if self.judgement is None else sum(1 for use in self.judgement.devices if use.ops)
        return expected_seconds(self.problem, self.value, used)

    def _expect(self, name: str, baseline: Baseline) -> Baseline:
        """A baseline with the seconds to expect of it; what was measured as a whole stays."""
        used = 1 if name in (SINGLE_DEVICE, REPLICAS, OWN_THREADS) else len(baseline.devices)
        return replace(baseline, value=expected_seconds(self.problem, baseline.value, used))

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of the whole batch while decoding; None for a model that generates none."""
        return None if self.judgement is None else tokens_per_second(self.problem, self.judgement)

    @property
    def placement_hash(self) -> str:
        """Sha256 of the placement, equal for equal placements of one graph on one cluster; "" without a placement."""
        problem = self.problem
        return "" if self.placement is None else self.placement.digest(problem.graph, problem.cluster)

    def by_module(self) -> dict[str, list[dict[str, Any]]]:
        """What each device holds, by module: see `Plan.by_module`."""
        if self.placement is None:
            return {name: [] for name in self.problem.cluster.names}
        found: dict[str, list[dict[str, Any]]] = import_module(_PARTS).list_parts(self.problem, self.placement)
        return found


CORE = "core"
"""The kind of devices that are cores of one machine."""
BASELINE_NAMES = (SINGLE_DEVICE, OWN_THREADS, REPLICAS, BALANCED_SPLIT, EVEN_LAYERS, BEST_UNIFORM, MEGATRON)
"""The naive answers, in the order in which they are shown."""


def baseline_of(judgement: Judgement) -> Baseline:
    """A judged placement as figures of a baseline."""
    rule, broken = (judgement.violations[0].kind, judgement.violations[0].message) if judgement.violations else ("", "")
    return Baseline(judgement.value, broken, tuple(use.device for use in judgement.devices if use.ops), rule)


def usable_devices(problem: Problem) -> list[str]:
    """The names of the devices that may run an op."""
    able = np.flatnonzero(problem.allowed.any(axis=0)).tolist()
    return [problem.cluster.names[d] for d in able]


def transfer_seconds(judgement: Judgement) -> float:
    """Seconds of all transfers that a judgement counts."""
    spent = (use.send + use.receive for use in judgement.devices)
    return math.fsum(seconds for seconds in spent if math.isfinite(seconds))


def tokens_per_second(problem: Problem, judgement: Judgement) -> float | None:
    """Tokens per second of the whole batch while decoding; None without a phase that decodes, or that takes time."""
    runs = next((phase.repeats for phase in problem.graph.phases if phase.name == DECODE), 0)
    own = next((use.seconds for use in judgement.phases if use.phase == DECODE), None)
    seconds = judgement.value / runs if own is None and runs else own
    if seconds is None or not 0 < seconds < math.inf:
        return None
    return batch_size(problem) / seconds


def batch_size(problem: Problem) -> int:
    """The samples of a batch, as the model was read; 1 if nothing says it."""
    source = problem.graph.source
    return 1 if source is None else int(source.options.get("dims", {}).get("batch", 1))
