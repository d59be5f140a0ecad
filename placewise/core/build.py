"""build(): a model, a cluster and the user's options → a Problem. Here readers, transforms and costs meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np

from placewise.catalog import read_cluster
from placewise.catalog.adapt import adapt_cluster
from placewise.core.apply_profile import with_profile
from placewise.core.op_names import check_op_names, check_rule_names
from placewise.core.open_model import Model, name_of, open_model, replayed
from placewise.core.options import NO_OPTIONS, ProblemOptions
from placewise.core.precision import describe_stand_ins, require_tf32, work_in_precision
from placewise.core.split_ways import add_ways
from placewise.core.step_options import ask_step, without_pipeline
from placewise.core.target_rules import run_on_target
from placewise.costing.measured import load_measured
from placewise.costing.measured.load import split_device
from placewise.costing.roofline import cost_table
from placewise.costing.work import OpWork, work_of
from placewise.errors import InputError, PlanError, locate_errors
from placewise.files.cluster_record import cluster_of
from placewise.files.columns import format_name
from placewise.files.costs_file import load_costs
from placewise.files.plan_file import PlanFile, load_plan_unless_split, placement_of, require_same_model
from placewise.files.problem_file import constraints_of
from placewise.files.profile_file import is_profile, load_profile
from placewise.files.split_file import read_placement, split_is_latency
from placewise.model.cluster import Cluster
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, scopes_together
from placewise.model.quantized import list_fused_sets
from placewise.model.result import usable_devices
from placewise.model.ways import restrict_ways
from placewise.readers.base import ImportedModel
from placewise.simulate import judge_placement
from placewise.transform.untied import untie_weights

Devices = str | Path | Mapping[Any, object] | Cluster
_TIMES_FROM, _WHERE = "op times come from ", " where it names them"
"""Before and after the name of a file of costs, in the warning that a plan keeps of it."""


def build(
    model: Model, devices: Devices | None = None, options: ProblemOptions = NO_OPTIONS, *, example_inputs: Any = None
) -> Problem:
    """The problem of placing `model` on `devices`.

    A published workload and a problem file bring their own devices, so `devices` must be left out there; a
    model needs them. `example_inputs` are the arguments of a PyTorch module. Costs are the roofline's, but for those
    that the options give. Raises InputError and its kin.
    """
    return build_read(open_model(model, options, example_inputs), model, devices, options)


def build_read(reading: ImportedModel, model: Model, devices: Devices | None, options: ProblemOptions) -> Problem:
    """The problem of placing a `model` that was read already. Raises InputError and its kin."""
    return _with_notes(_problem(reading, name_of(model), devices, options), options)


def build_for_plan(
    model: Model,
    plan: str | PathLike[str] | PlanFile,
    devices: Devices | None = None,
    options: ProblemOptions = NO_OPTIONS,
    *,
    example_inputs: Any = None,
) -> tuple[Problem, Placement]:
    """The problem that a plan (or the file of one, or of a published split) answers, and its placement.

    What the user does not wish otherwise is taken from the plan: dimensions, view, objective, constraints and
    devices. With other dimensions, the ops of that name are placed as the plan says, and a warning tells so; where no
    costs are given, one names the files of the plan's. Raises PlanError if the plan belongs to another model.
    """
    sizes = options.dims
    plan_file = plan if isinstance(plan, PlanFile) else load_plan_unless_split(plan)
    where = "the plan" if isinstance(plan, PlanFile) else plan
    if plan_file is None and options.objective is None and split_is_latency(where):
        options = replace(options, objective="latency")
    if plan_file is not None:
        options = _as_planned(plan_file, options)
    reading = open_model(model, options, example_inputs)
    if plan_file is None:
        return read_placement(where, _problem(reading, name_of(model), devices, options))
    if devices is None and plan_file.cluster is not None and reading.problem is None:
        devices = cluster_of(plan_file.cluster)
    with locate_errors(where):
        plan_file, notes = _for_sizes(plan_file, sizes, reading.graph)
        require_same_model(plan_file, reading.graph)
    if not options.costs:
        notes += _name_lost_costs(plan_file)
    problem = _problem(reading, name_of(model), devices, options)
    with locate_errors(where):
        problem = run_on_target(problem, plan_file.target) if plan_file.target else problem
        placement = placement_of(plan_file, problem.graph, problem.cluster, problem.ways)
        placement = placement if problem.objective.kind == "step" else without_pipeline(placement)
    return problem.with_(warnings=(*problem.warnings, *notes)) if notes else problem, placement


def _name_lost_costs(plan: PlanFile) -> tuple[str, ...]:
    """What to warn of where the files of a plan's costs are not given again."""
    names = (
        warning.removeprefix(_TIMES_FROM).partition(_WHERE)[0]
        for warning in plan.warnings
        if warning.startswith(_TIMES_FROM)
    )
    return tuple(f"the plan was priced with {name}, which is not used here: --costs {name}" for name in names)


def _for_sizes(plan: PlanFile, sizes: Mapping[str, int], graph: Graph) -> tuple[PlanFile, tuple[str, ...]]:
    """The plan, and what to warn of if the user asks for other sizes than it was made for: then names tell the ops."""
    planned = {} if plan.source is None else plan.source.options.get("dims", {})
    other = {name: planned[name] for name, size in sizes.items() if planned.get(name, size) != size}
    if plan.source is None or graph.source is None or plan.source.sha256 != graph.source.sha256 or not other:
        return plan, ()
    sizes_text = ", ".join(f"{name}={size}" for name, size in other.items())
    return plan.model_copy(update={"graph_hash": ""}), (f"the plan was made for {sizes_text}",)


def start_of(start: str | PathLike[str] | Placement, problem: Problem) -> Placement:
    """A placement, or that of a plan or a published split, for a search on `problem` to start from.

    Raises PlanError if it belongs to another model or breaks a rule.
    """
    if isinstance(start, Placement):
        where, start_problem, placement = "the placement to start from", problem, start
        if len(placement) != problem.n_ops:
            raise PlanError(f"has {len(placement)} ops, and the model {problem.n_ops}", where=where)
    else:
        where, (start_problem, placement) = str(start), read_placement(start, problem)
        placement = placement if problem.objective.kind == "step" else without_pipeline(placement)
    broken = judge_placement(start_problem, placement).violations
    if broken:
        reasons = "; ".join(f"{violation.kind}: {violation.message}" for violation in broken)
        raise PlanError(f"breaks a rule: {reasons}", where=where, remedy="correct it, or start without it")
    return placement


def _problem(reading: ImportedModel, name: str, devices: Devices | None, options: ProblemOptions) -> Problem:
    if reading.problem is not None:
        if devices is not None:
            raise InputError("this file brings its own devices and costs", where=name, remedy="leave out the devices")
        return _adjusted(reading.problem, options)
    if devices is None:
        raise InputError("no devices are given", remedy="name them, for example -d 2xA100-80GB,cpu or -d this")
    cluster = devices if isinstance(devices, Cluster) else read_cluster(devices)
    check_op_names(cluster, reading.graph.ops.kind.values)
    cluster = _adapted(cluster, reading.graph, options)
    kind = options.objective or "latency"
    base, work, warnings = _costs(reading, name, cluster, options)
    priced = _with_given(base, reading.graph, cluster, options, kind)
    constraints = _constraints(kind != "latency", False, options)
    fused, note = _fuse_quantized(reading.graph, priced.cluster)
    problem = Problem(
        untie_weights(reading.graph),
        priced.cluster,
        priced.costs,
        _objective(_default_objective(kind), options),
        replace(constraints, together=(*priced.together, *fused, *_together(reading.graph, options, reading.modules))),
        (*reading.warnings, *warnings, *priced.notes, *note),
    )
    problem = _warn_of_no_room(problem)
    if problem.objective.kind == "step":
        return ask_step(problem, options)
    return add_ways(problem, work, options) if options.splits else problem


def _fuse_quantized(graph: Graph, cluster: Cluster) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The sets of ops that run as one int8 op, and a note of them."""
    sets = list_fused_sets(graph, cluster)
    note = f"what runtimes run as one int8 op stays together: {len(sets)} sets of ops"
    return sets, (note,) if sets else ()


def _warn_of_no_room(problem: Problem) -> Problem:
    """The problem with a warning that names the devices which the room to keep free leaves no memory."""
    used, room = set(usable_devices(problem)), problem.capacity.tolist()
    full = [d.name for d, left in zip(problem.cluster, room, strict=True) if d.name in used and left <= 0 < d.memory]
    if not full:
        return problem
    warning = (
        f"{', '.join(full)}: no memory is left beside what stays free (--headroom, or 'reserved' in a cluster file)"
    )
    return problem.with_(warnings=(*problem.warnings, warning))


def _costs(
    reading: ImportedModel, name: str, cluster: Cluster, options: ProblemOptions
) -> tuple[CostTable, OpWork | None, tuple[str, ...]]:
    """The roofline's costs and the work behind them, or a profile's times on every accelerator; and what to warn of."""
    graph, seconds = reading.graph, reading.op_seconds
    if seconds is None:
        require_tf32(cluster, options)
        work, rounded = work_in_precision(work_of(graph), graph, name, options)
        notes = describe_stand_ins(cluster, options, rounded)
        return cost_table(graph, cluster, work=work), work, (*work.warnings, *notes)
    if cluster.is_host.all():
        remedy = "add accelerators, for example -d 4xV100-16GB"
        raise InputError("holds the times of an accelerator, and the cluster has none", where=name, remedy=remedy)
    table = np.where(cluster.is_host, np.inf, seconds[:, None])
    profiled = CostTable(
        table, transfer_seconds_of(graph, cluster), np.zeros(table.shape, np.int8), ("profiled",), "bytes"
    )
    return profiled, None, ("every accelerator is given the times of the profile, and no CPU runs an op",)


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """What the files of costs say: the table, the cluster with what a call costs, sets of ops of one kernel, notes."""

    costs: CostTable
    cluster: Cluster
    together: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def _with_given(base: CostTable, graph: Graph, cluster: Cluster, options: ProblemOptions, kind: str) -> _Given:
    """The cost table and the cluster with the figures of the files that the user names, the last over the others."""
    priced = _Given(base, cluster)
    for name in options.costs:
        device, file = split_device(name)
        if format_name(name) == "placewise-costs":
            priced = replace(priced, costs=load_costs(name, graph, cluster))
        elif is_profile(file):
            with locate_errors(file):
                profile = load_profile(file)
                profiled = with_profile(
                    priced.costs, graph, priced.cluster, profile, device=device, loaded=kind != "latency"
                )
            together = tuple(dict.fromkeys((*priced.together, *profiled.together)))
            priced = _Given(profiled.costs, profiled.cluster, together, priced.notes + profiled.notes)
        else:
            costs, more_notes = load_measured(name, graph, cluster, priced.costs)
            priced = replace(priced, costs=costs, notes=priced.notes + more_notes)
        reminder = f"{_TIMES_FROM}{name}{_WHERE}: give it again to price the plan"
        priced = replace(priced, notes=(*priced.notes, reminder))
    return priced


def _as_planned(plan: PlanFile, options: ProblemOptions) -> ProblemOptions:
    """The options, with the plan's own where the user has none."""
    source, objective, constraints = plan.source, plan.objective, plan.constraints
    if source is not None:
        options = replayed(options, source)
    if objective is not None and options.objective in (None, objective.kind):
        latency, step = objective.kind == "latency", objective.kind == "step"
        options = replace(
            options,
            objective=objective.kind,
            execution=options.execution or (objective.execution if latency else None),
            communication=options.communication or (None if latency or step else objective.communication),
            schedule=options.schedule or (None if latency else objective.schedule),
            memory=options.memory or objective.memory,
            step_samples=objective.step_samples
            if options.step_samples is None and not latency and not step
            else options.step_samples,
        )
    if constraints is not None:
        unshaped = options.contiguous is None and not options.convex
        own_room = options.headroom is not None or bool(options.spare)
        options = replace(
            options,
            contiguous=constraints.contiguous if unshaped else options.contiguous,
            convex=constraints.convex if unshaped else options.convex,
            in_order=constraints.ordered if unshaped and options.in_order is None else options.in_order,
            headroom=options.headroom if own_room else constraints.headroom or None,
            spare=options.spare if own_room else constraints_of(constraints).spare,
            pins=constraints_of(constraints).pins if options.pins is None else options.pins,
            forbid=constraints_of(constraints).forbidden if options.forbid is None else options.forbid,
            together=constraints.together if options.together is None else options.together,
        )
        if plan.stages is not None and not options.splits:
            options = replace(
                options,
                tensor_parallel=constraints.tensor_parallel,
                recompute=constraints.recompute,
                microbatches=constraints.microbatches or None,
                sequence_parallel=constraints.sequence_parallel
                if options.sequence_parallel is None
                else options.sequence_parallel,
            )
        if options.replicas is None and options.objective in ("throughput", "step"):
            options = replace(options, replicas=constraints.replicas)
        if options.objective == "step" and options.microbatches is None:
            options = replace(options, microbatches=constraints.microbatches or None)
    return options


def _adjusted(problem: Problem, options: ProblemOptions) -> Problem:
    """A problem that came whole, with what the user asks otherwise."""
    before = problem.objective
    if options.objective and options.objective != before.kind:
        before = replace(_default_objective(options.objective), memory=before.memory)
    objective = _objective(before, options)
    kept = problem.constraints
    shape = (objective.kind != "latency", False) if options.objective else (kept.contiguous, kept.convex)
    wished = _constraints(*shape, options)
    cluster = _adapted(problem.cluster, problem.graph, options)
    priced = _with_given(problem.costs, problem.graph, cluster, options, objective.kind)
    anew = options.headroom is not None or options.spare
    constraints = Constraints(
        (*kept.pins, *wished.pins),
        (*kept.forbidden, *wished.forbidden),
        wished.contiguous,
        wished.headroom if anew else kept.headroom,
        wished.convex,
        kept.replicas if options.replicas is None else wished.replicas,
        (*kept.together, *priced.together, *_together(problem.graph, options, {})),
        wished.spare if anew else kept.spare,
        wished.ordered or (kept.ordered and wished.contiguous and options.in_order is None),
        kept.tensor_parallel if options.tensor_parallel is None else options.tensor_parallel,
        options.recompute or kept.recompute,
        kept.microbatches if objective.kind == "step" else 0,
        kept.sequence_parallel,
    )
    ways = problem.ways
    if ways is not None:
        _require_same_sequences(kept, options)
        ways = restrict_ways(ways, constraints.tensor_parallel, constraints.recompute)
        ways = ways if options.microbatches is None else replace(ways, microbatches=options.microbatches)
    elif options.splits and objective.kind != "step":
        raise InputError("this file does not say how its ops may be split", remedy="leave out --tensor-parallel")
    adjusted = problem.with_(
        cluster=priced.cluster, costs=priced.costs, objective=objective, constraints=constraints,
        warnings=(*problem.warnings, *priced.notes), ways=ways,
    )  # fmt: skip
    adjusted = _warn_of_no_room(adjusted)
    return ask_step(adjusted, options) if objective.kind == "step" else adjusted


def _require_same_sequences(kept: Constraints, options: ProblemOptions) -> None:
    """Raise InputError where ways that came with a file were made with, or without, sequence parallelism."""
    if options.sequence_parallel is None or options.sequence_parallel == kept.sequence_parallel:
        return
    how, flag = ("with", "--no-sequence-parallel") if kept.sequence_parallel else ("without", "--sequence-parallel")
    said = f"this problem says how its ops may be split, {how} sequence parallelism, and the options or the plan differ"
    raise InputError(said, remedy=f"leave out {flag}, or place the model itself")


def _default_objective(name: str) -> Objective:
    return Objective(cast("Any", name), schedule="auto" if name == "step" else "1f1b")


def _objective(default: Objective, options: ProblemOptions) -> Objective:
    if options.execution and default.kind != "latency":
        raise InputError("an execution applies to latency only", remedy="add --objective latency")
    if options.communication and default.kind != "throughput":
        raise InputError("a communication mode applies to throughput only", remedy="add --objective throughput")
    if options.schedule and default.kind == "latency":
        raise InputError("a schedule applies to throughput only, and to a training step", remedy="add --objective step")
    if default.kind == "latency" and (options.replicas is not None or options.step_samples is not None):
        raise InputError("replicas and step samples apply to throughput only", remedy="add --objective throughput")
    if default.kind == "step" and options.step_samples is not None:
        raise InputError("step samples apply to throughput only", remedy="give --microbatches instead")
    wished: dict[str, Any] = {
        "kind": default.kind,
        "communication": options.communication or default.communication,
        "execution": options.execution or default.execution,
        "memory": options.memory or default.memory,
        "schedule": options.schedule or default.schedule,
        "step_samples": default.step_samples if options.step_samples is None else options.step_samples,
    }
    return Objective(**wished)


def _constraints(contiguous: bool, convex: bool, options: ProblemOptions) -> Constraints:
    if options.contiguous and options.convex:
        raise InputError("contiguous stages are convex already", remedy="ask for one of contiguous and convex")
    if options.contiguous is not None or options.convex:
        contiguous, convex = bool(options.contiguous), bool(options.convex)
    elif options.convex is not None or options.in_order:
        contiguous, convex = contiguous or bool(options.in_order), False
    most = 1 if options.replicas is None else options.replicas
    rules = options.pins or (), options.forbid or ()
    room = options.headroom or 0.0
    return Constraints(*rules, contiguous, room, convex, most, (), options.spare, bool(options.in_order))


def _adapted(cluster: Cluster, graph: Graph, options: ProblemOptions) -> Cluster:
    """The cluster with what the user asks of its devices."""
    kinds, supported, unsupported = graph.ops.kind.values, options.supported or (), options.unsupported or ()
    adapted = adapt_cluster(
        cluster, max_memory=options.max_memory, excluded=options.exclude, offload=options.offload is not False,
        supported=supported, unsupported=unsupported, kinds=kinds,
    )  # fmt: skip
    check_rule_names((*supported, *unsupported), kinds)
    return adapted


def _together(graph: Graph, options: ProblemOptions, modules: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """The sets that the user names or finds by a pattern. Raises InputError for a pattern that finds nothing."""
    wished = options.together or ()
    named = tuple(item for item in wished if not isinstance(item, str))
    return (*named, *scopes_together(graph, [item for item in wished if isinstance(item, str)], modules))


def _with_notes(problem: Problem, options: ProblemOptions) -> Problem:
    """The problem with a warning for what its options leave out. Raises InputError for one that changes nothing."""
    graph, objective, notes = problem.graph, problem.objective, []
    trains = bool(graph.ops.backward.any())
    if options.schedule == "gpipe" and not trains:
        fault = "the graph has no backward ops, so that --schedule gpipe changes nothing"
        raise InputError(fault, remedy="add --graph training, or leave it out")
    if options.step_samples and problem.constraints.replicas == 1:
        fault = "no stage is replicated, so that --step-samples changes nothing"
        raise InputError(fault, remedy="add --replicas any, or leave it out")
    if problem.max_replicas > 1 and trains and not len(graph.weight_edges):
        notes.append(
            "the model does not say which of its bytes are weights: to keep replicas the same costs nothing here"
        )
    dims = {} if graph.source is None else graph.source.options.get("dims", {})
    stages, in_flight = int(problem.allowed.any(axis=0).sum()), dims.get("sequences", 1)
    if objective.kind == "throughput" and graph.phases and graph.ops.state_bytes.any() and in_flight < stages:
        notes.append(
            f"memory counts the caches of {in_flight} of the samples in flight, and a full pipeline has one in every "
            f"stage: --dim sequences={stages} counts those of {stages}"
        )
    used = {device.kind for device in problem.cluster if device.available}
    if objective.kind == "throughput" and {"cpu", "disk"} <= used:
        notes.append(
            "a CPU and the disk beside it are counted as working at once, and one processor computes for both: "
            "leave the disk out where its load is not mostly reading"
        )
    return problem.with_(warnings=(*problem.warnings, *notes)) if notes else problem
