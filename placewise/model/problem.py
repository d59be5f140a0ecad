"""Problem: a graph, a cluster, their costs, an objective and the user's constraints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, wraps
from importlib import import_module
from threading import RLock
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary

import numpy as np

from placewise._util.regex import compiled, in_time
from placewise.errors import InputError, InternalError
from placewise.model.cluster import Cluster
from placewise.model.columns import Bools, Floats, Ints, Longs, frozen
from placewise.model.costs import CostTable
from placewise.model.disjoint_sets import DisjointSets
from placewise.model.graph import Graph
from placewise.model.ways import Ways

ObjectiveKind = Literal["throughput", "latency", "step"]
Communication = Literal["blocking", "overlap", "duplex"]
Execution = Literal["operator", "contention-free", "subgraph", "sequential"]
MemoryModel = Literal["live", "resident", "sum"]
Schedule = Literal["1f1b", "gpipe", "auto", "interleaved", "zb-h1", "zb-v"]
THROUGHPUT_SCHEDULES = ("1f1b", "gpipe")
"""Schedules of the objective `throughput`; `step` has all of them."""
_PROGRAMS = ("torch-export", "torch-module")
"""Formats of models that PyTorch trains."""

RECOMPUTE = ("auto", "never", "always")
T = TypeVar("T")

_FILES = "placewise.files.problem_file"
_VIEWS, _FRAMES = "placewise.reporting.model_views", "placewise.reporting.frames"
"""Where files, views and tables live: imported when they are asked for, since data knows neither."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimized, always in seconds.

    `throughput`: max-load, the seconds per sample of the busiest device or wire in a pipeline's steady
    state, with `communication` blocking, overlap or duplex; with `schedule` gpipe, a training pipeline that
    flushes, the largest forward load and the largest backward load add up. `step`: one training step of
    `Constraints.microbatches`, simulated under `schedule` (auto: the best). `latency`: the makespan of one sample
    under `execution` operator, contention-free (operator, where transfers never queue), subgraph or sequential.
    `memory` is how memory is counted: `live` (resident bytes plus the peak of live activations), `resident` (those
    bytes only, for programs that reserve memory for activations) or `sum` (resident bytes only, host devices unlimited:
    the published rule of Tarnawski et al. 2020). `step_samples` is how many samples
    of a training pipeline share one synchronization of the weights of replicated stages; 0: one sample per replica (the
    rule of PipeDream).
    """

    kind: ObjectiveKind = "latency"
    communication: Communication = "blocking"
    execution: Execution = "operator"
    memory: MemoryModel = "live"
    schedule: Schedule = "1f1b"
    step_samples: int = 0

    def __post_init__(self) -> None:
        if self.step_samples < 0:
            raise InputError(f"step_samples is {self.step_samples}", remedy="give a number of samples, 0 for one each")
        for name, allowed in (
            ("kind", ObjectiveKind), ("communication", Communication),
            ("execution", Execution), ("memory", MemoryModel), ("schedule", Schedule),
        ):  # fmt: skip
            value, known = getattr(self, name), get_args(allowed)
            if value not in known:
                raise InputError(f"objective {name} {value!r} is not known", remedy=f"choose from {', '.join(known)}")
        if self.kind != "step" and self.schedule not in THROUGHPUT_SCHEDULES:
            remedy = f"add --objective step, or choose from {', '.join(THROUGHPUT_SCHEDULES)}"
            raise InputError(f"the schedule {self.schedule!r} applies to the objective step only", remedy=remedy)

    @property
    def op_by_op(self) -> bool:
        """Whether an op starts when its own inputs are there: execution `operator`, and that without queues."""
        return self.execution in ("operator", "contention-free")

    def __str__(self) -> str:
        if self.kind == "step":
            return f"step ({self.schedule})"
        flushes = ", gpipe" if self.schedule == "gpipe" else ""
        return f"{self.kind} ({self.communication + flushes if self.kind == 'throughput' else self.execution})"


@dataclass(frozen=True, slots=True)
class Rule:
    """Every op whose name or scope matches the regular expression `pattern` (searched), and a device."""

    pattern: str
    device: str


@dataclass(frozen=True, slots=True)
class Headroom:
    """What stays free of a device's memory ("": of every accelerator's): bytes, or else a share of it."""

    device: str
    share: float = 0.0
    bytes: float = 0.0

    def __post_init__(self) -> None:
        _check_share(self.share)
        if not self.bytes >= 0:
            raise InputError(f"a headroom of {self.bytes} bytes is no amount of memory", remedy="give 0 or more")


def _check_share(share: float) -> None:
    if not 0 <= share < 1:
        lacks = "leaves no memory to use" if share >= 1 else "is no share of the memory"
        raise InputError(f"a headroom of {100 * share:g} % {lacks}", remedy="give less than 100 %, such as 10%")


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a placement must respect besides memory, support and colocation.

    `pins` send ops to a device, `forbidden` keep them off one; `contiguous` asks that the stages form a
    chain of ideals, `convex` only that no path leaves a device's ops and comes back; `headroom` is the share of
    every accelerator's memory that stays free, and `spare` what stays free of some instead. `replicas` is the most
    devices that may run the same stage of a pipeline, for throughput (1: stages are not replicated, 0: any number).
    `together` are sets of ops, by name, that share a device besides those that the graph itself colocates: what a
    runtime fuses, scopes that may not be split. `ordered` asks that contiguous stages follow each other as the devices
    do in the cluster. `tensor_parallel` is the most devices over which an op of a problem with ways is split (0: any
    number), `recompute` whether its activations are recomputed: auto, never or always, and `microbatches` how many
    there are per training step (0: as many as by default). `sequence_parallel` says that the ways split by tokens what
    lies between split products.
    """

    pins: tuple[Rule, ...] = ()
    forbidden: tuple[Rule, ...] = ()
    contiguous: bool = False
    headroom: float = 0.0
    convex: bool = False
    replicas: int = 1
    together: tuple[tuple[str, ...], ...] = ()
    spare: tuple[Headroom, ...] = ()
    ordered: bool = False
    tensor_parallel: int = 1
    recompute: str = "auto"
    microbatches: int = 0
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        if self.recompute not in RECOMPUTE:
            remedy = f"choose {', '.join(RECOMPUTE)}"
            raise InputError(f"recompute is {self.recompute!r}", remedy=remedy)
        if self.ordered and (not self.contiguous or self.replicas != 1):
            shape = "a chain of stages" if not self.contiguous else "one device per stage"
            raise InputError(f"the order of devices needs {shape}", remedy="ask for one of the two")
        _check_share(self.headroom)
        if self.replicas < 0:
            raise InputError(f"replicas is {self.replicas}", remedy="give devices per stage, 0 for any number")

    @property
    def shaped(self) -> bool:
        """Whether not every set of ops may be on a device."""
        return self.contiguous or self.convex


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Problem:
    """Everything that a placer may know, validated once.

    Parameters
    ----------
    graph : Graph
        Ops, and the tensors between them.
    cluster : Cluster
        Devices and links.
    costs : CostTable
        Seconds of every op on every device, and of every transfer.
    objective : Objective
        What is minimized. Default: latency.
    constraints : Constraints
        Rules that a placement keeps. Default: none but memory and support.
    warnings : tuple of str
        What was assumed when the parts were made. Default: none.
    ways : Ways
        The ways to split, repeat and recompute ops. With them, a placement consists of stages, and the costs of the
        ways count in place of those of the table (docs/judge.md). Default: None, every op runs whole on one device.

    Attributes
    ----------
    allowed : bool array [n_ops, n_devices]
        Where support, pins and forbidden pairs let an op run.
    capacity : float array [n_devices]
        Usable whole bytes; inf for host devices in the `sum` memory model.
    group : int array [n_ops]
        The graph's colocation groups joined with the sets of `constraints.together`; −1: in none. In a training step of
        a PyTorch program the loss joins the last op that it reads: its pipelines compute it where the last stage ends.
    block : int array [n_ops]
        The dense id, by first op, of the group that an op moves with; its own if it has none.

    Raises
    ------
    InputError, CostError, ClusterError
        If the parts contradict each other.

    Examples
    --------
    >>> import placewise as pw
    >>> built = pw.build("zoo:random-layered", "2xL4,cpu")
    >>> problem = Problem(built.graph, built.cluster, built.costs)
    >>> problem.allowed.shape == (problem.n_ops, 3)
    True

    """

    graph: Graph
    cluster: Cluster
    costs: CostTable
    objective: Objective = field(default_factory=Objective)
    constraints: Constraints = field(default_factory=Constraints)
    warnings: tuple[str, ...] = ()
    ways: Ways | None = None
    allowed: Bools = field(init=False)
    capacity: Floats = field(init=False)
    group: Ints = field(init=False)
    block: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.costs.validate(self.graph, self.cluster)
        if self.ways is not None:
            self.ways.require_match(self.graph.n_ops, len(self.cluster))
        loss = _loss_of_program(self.graph) if self.objective.kind == "step" else ()
        group = _groups(self.graph, (*self.constraints.together, *loss))
        derived = {
            "allowed": frozen(_allowed(self), np.bool_),
            "capacity": frozen(_capacity(self), np.float64),
            "group": frozen(group, np.int32),
            "block": frozen(_blocks(group), np.int32),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Problem({self.graph!r} on {self.cluster!r}, {self.objective})"

    def _repr_html_(self) -> str:
        html: str = import_module(_VIEWS).problem_html(self)
        return html

    def to_frame(self) -> Any:
        """A row per op, as of its graph, with its seconds on every device.

        A pandas.DataFrame. Raises MissingExtraError without the extra `pandas`.
        """
        return import_module(_FRAMES).problem_frame(self)

    @property
    def n_ops(self) -> int:
        return self.graph.n_ops

    @property
    def n_devices(self) -> int:
        return len(self.cluster)

    @property
    def n_blocks(self) -> int:
        return int(self.block.max()) + 1 if len(self.block) else 0

    def require_ways(self) -> Ways:
        """The ways to run the ops of a problem that has some."""
        if self.ways is None:
            raise InternalError(f"{self!r} has no ways to split its ops")
        return self.ways

    @property
    def max_replicas(self) -> int:
        """The most devices that may run one stage: 1 for latency, and no more than a training step has samples."""
        if self.objective.kind == "latency":
            return 1
        limits = [limit for limit in (self.constraints.replicas, len(self.cluster)) if limit]
        samples = self.constraints.microbatches if self.objective.kind == "step" else self.objective.step_samples
        if samples and self.graph.ops.backward.any():
            limits.append(samples)
        return min(limits)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a problem file (docs/formats.md), atomically: graph, cluster, costs and rules. Raises OutputError."""
        import_module(_FILES).save_problem(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Problem:
        """Read a problem file.

        Raises InputError, naming file and field.

        >>> import placewise as pw
        >>> problem = pw.build("zoo:random-layered", "2xL4,cpu", pw.ProblemOptions(dims={"n_ops": 20}))
        >>> problem.save("problem.npz")
        >>> pw.Problem.load("problem.npz").n_ops
        20
        """
        loaded: Problem = import_module(_FILES).load_problem(path)
        return loaded

    def with_(self, **changes: Any) -> Problem:
        """A copy with some fields replaced."""
        return replace(self, **changes)


@dataclass(slots=True)
class _Derived:
    """What a function made of a problem, once it is `ready`; threads that ask meanwhile wait for it."""

    lock: RLock = field(default_factory=RLock)
    value: Any = None
    ready: bool = False


_DERIVED: WeakKeyDictionary[Problem, dict[str, _Derived]] = WeakKeyDictionary()


def cached_per_problem(derive: Callable[[Problem], T]) -> Callable[[Problem], T]:
    """A function of a problem that is worked out once for each and kept with it; nobody may write to its result."""
    name = f"{derive.__module__}.{derive.__qualname__}"

    @wraps(derive)
    def derived(problem: Problem) -> T:
        kept = _DERIVED.setdefault(problem, {})
        entry = kept.get(name) or kept.setdefault(name, _Derived())
        if not entry.ready:
            with entry.lock:
                if not entry.ready:
                    entry.value, entry.ready = derive(problem), True
        found: T = entry.value
        return found

    return derived


def matching(graph: Graph, pattern: str) -> Bools:
    """The ops [n_ops] whose name or scope matches `pattern`.

    Raises InputError if it is no regular expression, matches none or takes too long.
    """
    regex = compiled(pattern)
    with in_time(pattern, graph.n_ops):
        in_scope = np.array([regex.search(scope) is not None for scope in graph.ops.scope.values], np.bool_)
        found = in_scope[graph.ops.scope.codes] if len(in_scope) else np.zeros(graph.n_ops, np.bool_)
        found |= np.fromiter((regex.search(name) is not None for name in graph.ops.name), np.bool_, graph.n_ops)
    if not found.any():
        raise _matches_nothing(pattern)
    return found


def _matches_nothing(pattern: str) -> InputError:
    return InputError(f"no op's name or scope matches {pattern!r}", remedy="see `placewise inspect` for the names")


def scopes_together(
    graph: Graph, patterns: Iterable[str], modules: Mapping[str, str] = MappingProxyType({})
) -> tuple[tuple[str, ...], ...]:
    r"""Sets of ops to keep on one device: those in whose scope, or else name, a pattern finds the same text.

    ``encoder\.layer\.\d+`` makes one set per layer, and so does ``BertLayer``, where `modules` knows the class of each
    module by its path. Raises InputError for what is no regex or finds nothing.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for pattern in patterns:
        if pattern in modules.values():
            homes = _homes(graph, {path for path, kind in modules.items() if path and kind == pattern})
            for name, scope in zip(graph.ops.name, graph.ops.scope, strict=True):
                if homes[scope]:
                    found.setdefault((pattern, homes[scope]), []).append(name)
            continue
        regex, before = compiled(pattern), len(found)
        with in_time(pattern, graph.n_ops):
            for name, scope in zip(graph.ops.name, graph.ops.scope, strict=True):
                match = regex.search(scope) or regex.search(name)
                if match is not None:
                    found.setdefault((pattern, match[0]), []).append(name)
        if len(found) == before:
            raise _matches_nothing(pattern)
    return tuple(tuple(names) for names in found.values() if len(names) > 1)


def _homes(graph: Graph, paths: set[str]) -> dict[str, str]:
    """The outermost module of `paths` that each scope is in; "" for none."""
    homes = {}
    for scope in graph.ops.scope.values:
        parts = scope.split(".")
        around = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        homes[scope] = next((path for path in around if path in paths), "")
    return homes


def _allowed(problem: Problem) -> Bools:
    graph, cluster, rules = problem.graph, problem.cluster, problem.constraints
    allowed: Bools = np.isfinite(problem.costs.op_seconds)
    for position, device in enumerate(cluster):
        if not device.available:
            allowed[:, position] = False
        barred = np.array([not device.can_run(kind) for kind in graph.ops.kind.values], np.bool_)
        allowed[barred[graph.ops.kind.codes], position] = False
    for rule in rules.forbidden:
        allowed[matching(graph, rule.pattern), cluster.index(rule.device)] = False
    for rule in rules.pins:
        here, others = matching(graph, rule.pattern), np.arange(len(cluster)) != cluster.index(rule.device)
        allowed[np.ix_(here, others)] = False
    return allowed


def _capacity(problem: Problem) -> Floats:
    cluster, rules = problem.cluster, problem.constraints
    free = np.array([0.0 if device.is_host else rules.headroom * device.memory for device in cluster])
    for spare in sorted(rules.spare, key=lambda spare: spare.device != ""):
        places = np.flatnonzero(~cluster.is_host).tolist() if not spare.device else [cluster.index(spare.device)]
        for place in places:
            free[place] = spare.bytes or (spare.share * cluster.devices[place].memory if spare.share else 0.0)
    memory = np.array([device.memory for device in cluster])
    lost = np.where(np.isinf(memory), 0.0, np.array([device.reserved for device in cluster]) + free)
    capacity = memory - lost
    if problem.objective.memory == "sum":
        capacity[cluster.is_host] = np.inf
    usable: Floats = np.floor(np.maximum(capacity, 0.0))
    return usable


def _loss_of_program(graph: Graph) -> tuple[tuple[str, str], ...]:
    """The only loss of a program that PyTorch trains, with the last op that it reads, by name."""
    kind = graph.ops.kind
    if graph.source is None or graph.source.format not in _PROGRAMS or "Loss" not in kind.values:
        return ()
    losses = np.flatnonzero(kind.codes == kind.values.index("Loss")).tolist()
    last = int(graph.tensors.producer[graph.inputs_of(losses[0])].max(initial=-1)) if len(losses) == 1 else -1
    return ((graph.ops.name[last], graph.ops.name[losses[0]]),) if last >= 0 else ()


def _groups(graph: Graph, together: tuple[tuple[str, ...], ...]) -> Longs:
    """The group of each op [n_ops]: the lowest label of all groups and sets that it is joined with, −1 for none."""
    return _join_groups(graph, tuple(map(tuple, together))) if together else graph.ops.group.astype(np.int64)


@lru_cache(maxsize=2)
def _join_groups(graph: Graph, together: tuple[tuple[str, ...], ...]) -> Longs:
    group = graph.ops.group.astype(np.int64)
    index = {name: op for op, name in enumerate(graph.ops.name)}
    n_groups = int(group.max(initial=-1)) + 1
    labels = DisjointSets(n_groups + len(together))
    for own, names in enumerate(together, n_groups):
        for name in names:
            if name not in index:
                raise InputError(f"no op is called {name!r}, which is to share a device", remedy="mend 'together'")
            op = index[name]
            if group[op] >= 0:
                labels.join(own, int(group[op]))
            group[op] = own
    roots = np.array(labels.roots(), np.int64)
    return frozen(np.where(group >= 0, roots[np.maximum(group, 0)], -1), np.int64)


def _blocks(group: Longs) -> Ints:
    key = np.where(group >= 0, group, group.max(initial=0) + 1 + np.arange(len(group)))
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return rank[inverse]
