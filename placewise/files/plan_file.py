"""Plan files: the result of `place()` as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Literal, get_args

import numpy as np
from pydantic import Field

from placewise._util.regex import compiled
from placewise.errors import InputError, PlanError, locate_errors
from placewise.files.cluster_record import ClusterRecord, cluster_of
from placewise.files.graph_file import SourceRecord, source_record
from placewise.files.problem_file import (
    ConstraintsRecord,
    ObjectiveRecord,
    constraints_of,
)
from placewise.files.records import Amount, Record, Whole, parse_json, parse_versioned, read_bytes, write_record
from placewise.files.stage_records import (
    PipelineRecord,
    StageRecord,
    list_stages,
    parse_pipeline,
    parse_stages,
    pipeline_record,
)
from placewise.model.cluster import Cluster
from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Rule
from placewise.model.result import Result, ViolationKind
from placewise.model.verdict import Baseline
from placewise.model.ways import Ways


class DeviceUseRecord(Record):
    """One device under the plan: seconds per sample and bytes."""

    device: str
    ops: Whole = Field(description="number of ops on the device")
    compute: Amount = Field(description="seconds")
    send: Amount = Field(description="seconds")
    receive: Amount = Field(description="seconds")
    load: Amount = Field(description="seconds that count towards the objective")
    idle: Amount = Field(description="seconds: value minus load")
    resident: Amount = Field(description="bytes held throughout")
    peak: Amount = Field(description="peak bytes")
    capacity: Amount = Field(description="available bytes")
    waits_for: str = ""
    forward: float | None = Field(None, description="seconds of the forward phase, with the schedule gpipe")
    backward: float | None = Field(None, description="seconds of the backward phase, with the schedule gpipe")
    sync: Amount = Field(0.0, description="seconds of synchronizing the weights of a replicated stage")
    replicas: Whole = Field(1, description="number of devices that share its stage")
    repeats: str = Field("", description="the device that holds the ops of the shared stage in `assignment`")


class PhaseUseRecord(Record):
    """One phase of the model under the plan, for the objective latency."""

    phase: str
    repeats: Whole = Field(ge=1, description="runs per sample")
    seconds: Amount = Field(description="of one run")


class ViolationRecord(Record):
    """One broken rule."""

    kind: str = Field(description=", ".join(get_args(ViolationKind)))
    message: str
    device: str = ""
    ops: tuple[str, ...] = ()
    bytes_short: Amount = Field(0.0, description="bytes, for memory")


class BaselineRecord(Record):
    """A baseline placement, judged in the same way."""

    value: Amount = Field(description="seconds")
    valid: bool
    violations: Whole = Field(description="number of broken rules")
    broken: str = Field("", description="message of the first broken rule")
    devices: tuple[str, ...] = Field((), description="devices that run at least one op")
    rule: str = Field("", description="kind of the first broken rule, where the judge found it")


class VerdictRecord(Record):
    """Whether the split is worth it, beside the baseline `over`."""

    decision: str = Field(description="what it says, such as 'worth it' or 'within the error'")
    sentence: str = Field(description="the same in words")
    over: str = Field("", description="the baseline that decides; empty: none")
    ratio: Amount = Field(None, validate_default=True, description="its time over the time of the plan")
    error: Amount = Field(0.0, description="relative error of one figure; 0: the costs are given")
    margin: Amount = Field(0.0, description="least relative gain that is above the error of both figures")
    source: str = Field("given", description="where the error comes from")


class RankRecord(Record):
    """The result of one placer in a comparison."""

    placer: str
    value: Amount = Field(None, validate_default=True, description="seconds; null: no placement")
    lower_bound: Amount = Field(0.0, description="seconds: the bound that this placer proved")
    status: str = Field("", description="status of its result")
    seconds: Amount = Field(0.0, description="run time of the placer")
    devices: Whole = Field(0, description="number of devices that run an op")
    remark: str = Field("", description="why there is no placement, or why the placer did not run")


class ImprovementRecord(Record):
    """An improvement during the search."""

    seconds: float = Field(ge=0, allow_inf_nan=False, description="after the start")
    value: Amount = Field(description="seconds")
    placer: str


class ToolRecord(Record):
    """The program that wrote the file."""

    name: str
    version: str


class PlanFile(Record):
    """A plan. Times are in seconds, sizes in bytes; `null` in the file is infinite or undefined (inf in memory).

    Only `format`, `version` and `assignment` are required.
    """

    format: Literal["placewise-plan"] = "placewise-plan"
    version: Literal[1] = 1
    value: Amount = Field(None, validate_default=True, description="seconds")
    lower_bound: Amount = Field(0.0, description="seconds: no placement is better")
    gap: Amount = Field(1.0, description="(value − lower_bound) / value")
    status: Literal["optimal", "feasible", "infeasible", "unknown"] = "unknown"
    reason: Literal["proved", "gap reached", "time limit", "finished", "interrupted"] = "finished"
    unmet: str = Field("", description="why no placement exists")
    bound_method: str = Field("", description="method that proved the lower bound")
    objective: ObjectiveRecord | None = None
    constraints: ConstraintsRecord | None = None
    cluster: ClusterRecord | None = None
    devices: tuple[DeviceUseRecord, ...] = ()
    phases: tuple[PhaseUseRecord, ...] = Field((), description="for latency, if the model has phases")
    wires: dict[str, Amount] = Field({}, description="seconds per sample of every shared link")
    violations: tuple[ViolationRecord, ...] = ()
    bottleneck: str = Field("", description="the device or shared link that determines the value")
    baselines: dict[str, BaselineRecord] = Field(
        {}, description="best single device, data-parallel replicas, naive balanced split, even split by layers"
    )
    verdict: VerdictRecord | None = Field(None, description="null: nothing to compare the plan with")
    target: str = Field("", description="the tool that the plan is made for; the bound holds for what is searched")
    placer: str = ""
    seed: int = 0
    seconds: Amount = Field(0.0, description="run time of the placement")
    history: tuple[ImprovementRecord, ...] = ()
    leaderboard: tuple[RankRecord, ...] = Field((), description="all compared placers, best first")
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = Field((), description="assumptions made when building the problem")
    source: SourceRecord | None = Field(None, description="the model file")
    graph_hash: str = Field("", description="sha256 of the graph's structure and shapes")
    placement_hash: str = Field("", description="sha256 of the placement")
    assignment: dict[str, str] = Field(description="op name → device name; empty if there is no placement")
    calls: dict[str, int] | None = Field(None, description="op name → number of its call on its device")
    order: dict[str, int] | None = Field(None, description="op name → priority; smaller starts earlier")
    replicas: dict[str, str] | None = Field(None, description="device → device whose stage it replicates")
    stages: tuple[StageRecord, ...] | None = Field(
        None, description="stages in order, where ops may be split; `assignment` then names each stage's first device"
    )
    pipeline: PipelineRecord | None = Field(
        None, description="for step; `assignment` then names the first device of each stage"
    )
    tool: ToolRecord | None = None


_SAME_IN_RESULT = (
    "value", "lower_bound", "gap", "unmet", "verdict", "target", "placer", "seed", "seconds", "history", "notes",
)  # fmt: skip
_SAME_IN_JUDGEMENT = ("devices", "phases", "wires", "violations", "bottleneck")
"""Fields of a plan that a result and its judgement have under the same names."""


def plan_of(result: Result) -> PlanFile:
    """The plan of a result."""
    problem, judgement, placement = result.problem, result.judgement, result.placement
    names = problem.graph.ops.name
    return PlanFile.model_validate(
        {
            **{name: getattr(result, name) for name in _SAME_IN_RESULT},
            **({name: getattr(judgement, name) for name in _SAME_IN_JUDGEMENT} if judgement else {}),
            "status": str(result.status.outcome),
            "reason": str(result.status.reason),
            "bound_method": result.bound.method,
            "objective": problem.objective,
            "constraints": problem.constraints,
            "cluster": problem.cluster,
            "baselines": {name: _baseline(result, name) for name in result.compared},
            "warnings": problem.warnings,
            "source": source_record(problem.graph.source),
            "graph_hash": problem.graph.digest(),
            "placement_hash": result.placement_hash,
            "assignment": placement.assignment(problem.graph, problem.cluster) if placement else {},
            "calls": _number_by_op(names, placement.call) if placement else None,
            "order": _number_by_op(names, placement.order) if placement else None,
            "replicas": _replica_names(placement, problem.cluster.names) if placement else None,
            "stages": list_stages(problem, placement, judgement)
            if placement and placement.stages and placement.way is not None
            else None,
            "pipeline": pipeline_record(problem, placement, judgement) if placement else None,
            "tool": ToolRecord(name="placewise", version=version("placewise")),
        }
    )


def _baseline(result: Result, name: str) -> BaselineRecord:
    baseline, judged = result.compared[name], result.baselines.get(name)
    broken = len(judged[1].violations) if judged else int(bool(baseline.broken))
    return BaselineRecord(
        value=baseline.value,
        valid=judged[1].valid if judged else baseline.valid,
        violations=broken,
        broken=baseline.broken,
        devices=baseline.devices,
        rule=baseline.rule,
    )


def baselines_of(plan: PlanFile) -> dict[str, Baseline]:
    """The naive answers of a plan file, as figures."""
    return {
        name: Baseline(
            record.value, record.broken or ("" if record.valid else "see placewise check"), record.devices, record.rule
        )
        for name, record in plan.baselines.items()
    }


def save_plan(plan: Result | PlanFile, path: str | os.PathLike[str]) -> None:
    """Write a plan file, atomically. Raises OutputError."""
    plan = plan_of(plan) if isinstance(plan, Result) else plan
    unset = {name for name in ("calls", "order", "replicas", "stages", "pipeline") if getattr(plan, name) is None}
    unset |= set() if plan.target else {"target"}
    write_record(plan, path, unset)


def load_plan(path: str | os.PathLike[str]) -> PlanFile:
    """The plan in a plan file. Raises PlanError naming the file, the field and the remedy."""
    plan = load_plan_unless_split(path)
    if plan is None:
        remedy = "give its workload as well"
        raise PlanError("is a published split, not a plan", where=str(path), remedy=remedy)
    return plan


def load_plan_unless_split(path: str | os.PathLike[str]) -> PlanFile | None:
    """The plan in a plan file; None if the file is a published split. Raises PlanError."""
    data = read_bytes(path, PlanError)
    with locate_errors(path):
        document = parse_json(data, PlanError)
        if is_split(document):
            return None
        plan = parse_versioned(PlanFile, document, PlanError)
        try:
            _check_parts(plan)
        except InputError as error:
            raise PlanError(error.problem, where=error.where, remedy=error.remedy) from None
        return plan


def _check_parts(plan: PlanFile) -> None:
    """Raise for a plan with invalid rules, devices or source options."""
    if plan.constraints is not None:
        constraints = constraints_of(plan.constraints)
        known = None if plan.cluster is None else {device.name for device in plan.cluster.devices}
        for rule in (*constraints.pins, *constraints.forbidden):
            _check_rule(rule, known)
    if plan.cluster is not None:
        cluster_of(plan.cluster)
    if plan.source is not None:
        _check_source(plan.source)


def _check_rule(rule: Rule, known: set[str] | None) -> None:
    try:
        compiled(rule.pattern)
    except InputError as error:
        raise PlanError(f"the rule {error.problem}", remedy="correct it in 'constraints'") from None
    if known is not None and rule.device not in known:
        raise PlanError(
            f"the rule {rule.pattern!r} names the device {rule.device!r}, which is not in the plan's cluster",
            remedy="correct it in 'constraints'",
        )


def _check_source(source: SourceRecord) -> None:
    dims, graph = source.options.get("dims", {}), source.options.get("graph")
    sizes = list(dims.values()) if isinstance(dims, Mapping) else [None]
    if not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 1 << 40 for size in sizes):
        raise PlanError("'source.options.dims' does not map names to sizes", remedy='write it like {"batch": 8}')
    if graph is not None and not isinstance(graph, str):
        raise PlanError("'source.options.graph' is not a string", remedy="choose inference or training")
    if source.view not in ("folded", "raw"):
        raise PlanError(f"'source.view' is {source.view!r}", remedy="choose folded or raw")


def is_plan(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a plan rather than a published split. Raises PlanError if it is not JSON."""
    data = read_bytes(path, PlanError)
    with locate_errors(path):
        return not is_split(parse_json(data, PlanError))


def target_of(path: str | os.PathLike[str]) -> str:
    """The tool that a plan file was made for; "" for none. Raises PlanError."""
    plan = load_plan_unless_split(path)
    return "" if plan is None else plan.target


def find_model(path: str | os.PathLike[str] | PlanFile, model: str | None = None) -> str:
    """The model of a plan, unless another one is given.

    Raises PlanError if no model is given and the plan names none, or one that no longer exists.
    """
    if model is not None:
        return model
    plan, where = (path, "the plan") if isinstance(path, PlanFile) else (load_plan_unless_split(path), str(path))
    if plan is None:
        raise PlanError("a published split names no model", where=where, remedy="give its workload with --model")
    source = plan.source
    if source is None or not source.path or source.format == "torch-module":
        raise PlanError("does not name its model file", where=where, remedy="give it with --model")
    if ":" not in source.path and not os.path.exists(source.path):
        raise PlanError(
            f"was made from {source.path}, which is not there", where=where, remedy="give the model with --model"
        )
    return source.path


def is_split(document: object) -> bool:
    """Whether a parsed JSON document looks like a published split."""
    return isinstance(document, dict) and "format" not in document and not {"fpgas", "cpus"}.isdisjoint(document)


def require_same_model(plan: PlanFile, graph: Graph) -> None:
    """Raise PlanError if the plan was made for a graph of another structure or with other shapes."""
    if plan.graph_hash and plan.graph_hash != graph.digest():
        made_from = f" (it was made from {plan.source.path})" if plan.source else ""
        raise PlanError(
            f"this plan was made for another model{made_from}",
            remedy="read that model with the same options, or place this one",
        )


def require_same_file(path: str | os.PathLike[str], graph: Graph) -> None:
    """Raise PlanError if the model's file has changed since the plan in `path` was made."""
    plan, current = load_plan_unless_split(path), graph.source
    source = None if plan is None else plan.source
    if source is None or current is None or not source.sha256 or not current.sha256 or source.sha256 == current.sha256:
        return
    raise PlanError(
        f"{current.path} has changed since the plan was made from {source.path}",
        where=str(path),
        remedy="place it again, or give the file as it was with --model",
    )


def placement_of(
    plan: PlanFile | str | os.PathLike[str], graph: Graph, cluster: Cluster, ways: Ways | None = None
) -> Placement:
    """The placement of a plan (or plan file) for this graph and cluster, and for the ways to split its ops if any.

    Raises PlanError if the plan was made for another model, names an unknown op or device, misses an op, or holds no
    placement.
    """
    if not isinstance(plan, PlanFile):
        with locate_errors(plan):
            return placement_of(load_plan(plan), graph, cluster, ways)
    require_same_model(plan, graph)
    if graph.n_ops and not plan.assignment:
        raise PlanError(f"holds no placement: its status is {plan.status}", remedy="place the model again")
    if plan.stages is not None and ways is not None:
        return parse_stages(plan.stages, graph, cluster, ways)
    if ways is not None:
        raise PlanError("has no stages, and ops of this problem may be split", remedy="place the model again")
    if plan.stages is not None:
        remedy = "allow it as it was placed, with --tensor-parallel"
        raise PlanError("splits ops, and ops of this problem may not be split", remedy=remedy)
    device = Placement.named(graph, cluster, plan.assignment).device
    if plan.pipeline is not None and plan.objective is not None and plan.objective.kind == "step":
        placement = parse_pipeline(plan.pipeline, graph, cluster)
        if not np.array_equal(placement.device, device):
            raise PlanError("has ops whose device is not that of their stage", remedy="correct 'assignment'")
        return placement
    calls, order = _parse_column(graph, plan.calls, "call"), _parse_column(graph, plan.order, "priority")
    return Placement(device, calls, order, _parse_replicas(plan.replicas, cluster.names))


def _number_by_op(ops: tuple[str, ...], column: Ints | None) -> dict[str, int] | None:
    return None if column is None else dict(zip(ops, column.tolist(), strict=True))


def _replica_names(placement: Placement, devices: tuple[str, ...]) -> dict[str, str] | None:
    if placement.replicas is None:
        return None
    return {devices[d]: devices[e] for d, e in enumerate(placement.replicas.tolist()) if d != e}


def _parse_replicas(replicas: Mapping[str, str] | None, devices: tuple[str, ...]) -> Ints | None:
    if replicas is None:
        return None
    stage = np.arange(len(devices), dtype=np.int32)
    for device, repeated in replicas.items():
        for name in (device, repeated):
            if name not in devices:
                remedy = f"the cluster has {', '.join(devices)}"
                raise PlanError(f"'replicas' names the device {name!r}, which does not exist", remedy=remedy)
        stage[devices.index(device)] = devices.index(repeated)
    return stage


def _parse_column(graph: Graph, numbers: Mapping[str, int] | None, what: str) -> Ints | None:
    if numbers is None:
        return None
    missing = next((name for name in graph.ops.name if name not in numbers), None)
    if missing is not None:
        raise PlanError(f"op {missing!r} has no {what}", remedy="give one to every op or to none")
    values = [numbers[name] for name in graph.ops.name]
    if values and not -(1 << 31) <= min(values) <= max(values) < 1 << 31:
        raise PlanError(f"a {what} is too large", remedy="number from 0")
    return np.array(values, np.int32)
