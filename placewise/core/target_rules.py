"""The tools that a plan can be made for: how each really runs a placement, and which options contradict that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

import numpy as np

from placewise.core.cache_conversions import price_conversions
from placewise.core.compute_buffer import (
    find_cache_types,
    keep_compute_buffer,
    leave_out_activations,
)
from placewise.core.dense_experts import price_all_experts
from placewise.core.host_weights import find_main_accelerator, offload_prompts, store_on_hosts
from placewise.core.llama_cache import count_llama_cache
from placewise.core.llama_ops import price_llama_ops
from placewise.core.micro_batches import read_weights_again
from placewise.core.options import ProblemOptions
from placewise.costing.work import count_weight_bytes
from placewise.errors import InputError
from placewise.model.cost_error import MOVED
from placewise.model.problem import Communication, Execution, Headroom, Problem, Rule
from placewise.model.result import Result
from placewise.readers.gguf.types import find_type


@dataclass(frozen=True, slots=True)
class TargetRule:
    """How a target runs a placement.

    `execution` is how one sample runs. Hosts `compute`, `store` weights that are moved to the first accelerator in use
    at every call, `lend` it weights for prompts, or stay `idle`. `stages` says that the devices of a plan form a chain,
    `overlaps` that several samples may be under way at a time, `replicates` that stages may have replicas.
    `communication` is the only one that a pipeline has there; None: any. `relays` says that what a later stage reads
    goes through all stages before it. `runs` says all that in words.
    """

    runs: str
    execution: Execution = "sequential"
    hosts: Literal["compute", "store", "lend", "idle"] = "compute"
    stages: bool = False
    overlaps: bool = True
    replicates: bool = False
    communication: Communication | None = None
    buffers: bool = False
    relays: bool = False


_PIPELINE = "runs stages of whole layers, one after another, on accelerators"
TARGETS = {
    "deepspeed": TargetRule(_PIPELINE, hosts="idle", stages=True),
    "device-map": TargetRule(
        "runs one module after another, and moves weights from host memory to the first GPU at every call",
        hosts="store",
        overlaps=False,
    ),
    "llama.cpp": TargetRule(
        "runs layers one after another, the first on the CPU and the last on GPUs",
        hosts="lend",
        stages=True,
        overlaps=False,
        buffers=True,
    ),
    "megatron": TargetRule(_PIPELINE, hosts="idle", stages=True),
    "onnx": TargetRule("runs one piece after another", replicates=True),
    "onnx-annotated": TargetRule("runs one piece after another, on one accelerator and one processor"),
    "openvino": TargetRule("runs one piece after another"),
    "pipelining": TargetRule(
        "runs stages one after another, and devices move their values themselves",
        stages=True,
        communication="blocking",
        relays=True,
    ),
    "tensorflow": TargetRule("runs ops when their inputs are there", execution="operator"),
    "vllm": TargetRule(_PIPELINE, hosts="idle", stages=True),
}
"""Every target that runs models, by name."""


def find_rule(target: str) -> TargetRule:
    """The rule of a target. Raises InputError for an unknown name, with the nearest that exists."""
    if not isinstance(target, str) or target not in TARGETS:
        near = get_close_matches(str(target).lower().replace("_", "-"), TARGETS, 1, 0.5)
        remedy = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(TARGETS)}"
        if target == "torch":
            remedy = "it takes the plans of --tensor-parallel: leave it out, then export --to torch"
        raise InputError(f"there is no target {target!r} to place for", remedy=remedy)
    return TARGETS[target]


def check_options(target: str, options: ProblemOptions) -> None:
    """Raise InputError, in one sentence, for an option that contradicts how a target runs."""
    rule = find_rule(target)
    if options.execution not in (None, rule.execution):
        raise InputError(
            f"{target} {rule.runs}: that is the execution {rule.execution!r}, not {options.execution!r}",
            remedy="leave out --execution",
        )
    if rule.communication and options.communication not in (None, rule.communication):
        raise InputError(
            f"{target} {rule.runs}: that is the communication {rule.communication!r}, not {options.communication!r}",
            remedy="leave out --communication",
        )
    if options.objective == "step":
        raise InputError(f"{target} is no target of the objective step", remedy="leave out --for, and export the plan")
    if options.objective == "throughput" and not rule.overlaps:
        raise InputError(f"{target} {rule.runs}: no two samples overlap", remedy="give --objective latency")
    if (options.contiguous is False or options.convex) and rule.stages:
        raise InputError(f"{target} {rule.runs}: its stages form a chain", remedy="leave out --free and --convex")
    if options.replicas not in (None, 1) and not rule.replicates:
        raise InputError(f"{target} does not support replicas of stages", remedy="leave out --replicas")


def run_on_target(problem: Problem, target: str) -> Problem:
    """The problem as a target runs it: its execution, what hosts do there, and the memory that it takes itself.

    Doing it twice changes nothing. Raises InputError for a cache that the target does not have.
    """
    rule = find_rule(target)
    if not rule.buffers and any(find_type(name).block > 1 for name in find_cache_types(problem)):
        raise InputError(f"{target} has no quantized cache of ggml", remedy="leave out --cache-type")
    if rule.buffers:
        problem = count_llama_cache(problem)
        problem = leave_out_activations(keep_compute_buffer(problem))
    if problem.objective.kind == "throughput" and not rule.overlaps:
        check_options(target, ProblemOptions(objective="throughput"))
    if problem.objective.kind == "latency" and problem.objective.execution != rule.execution:
        problem = problem.with_(objective=replace(problem.objective, execution=rule.execution))
    if problem.objective.kind == "throughput" and rule.communication:
        problem = problem.with_(objective=replace(problem.objective, communication=rule.communication))
    if rule.hosts == "idle":
        return keep_off(problem, [d for d, host in enumerate(problem.cluster.is_host.tolist()) if host])
    if rule.hosts == "store":
        return store_on_hosts(price_all_experts(problem))
    if rule.hosts == "lend":
        return offload_prompts(read_weights_again(price_conversions(price_llama_ops(problem))))
    return problem


def keep_off(problem: Problem, devices: list[int]) -> Problem:
    """The problem with no op on these devices, by a rule for each that has none yet."""
    kept, names = problem.constraints.forbidden, [problem.cluster.names[device] for device in devices]
    rules = [Rule("", name) for name in names if Rule("", name) not in kept and problem.n_ops]
    if not rules:
        return problem
    return problem.with_(constraints=replace(problem.constraints, forbidden=(*kept, *rules)))


def missing_room(result: Result, asked: Problem) -> float:
    """The bytes that the first accelerator lacks for what is moved to it: the largest weights, and all caches.

    What is kept free for it already is what the result's problem keeps free beyond the headroom of `asked`.
    """
    problem, placement, judged = result.problem, result.placement, result.judgement
    main = find_main_accelerator(problem)
    if MOVED not in problem.costs.sources or placement is None or judged is None or main < 0:
        return 0.0
    stored = problem.cluster.is_host[placement.device]
    if not stored.any():
        return 0.0
    need = float(count_weight_bytes(problem.graph)[stored].max() + problem.graph.ops.state_bytes[stored].sum())
    kept = _spare_bytes(problem, main) - _spare_bytes(asked, main)
    return max(need - judged.devices[main].free - kept, 0.0)


def leave_room(problem: Problem, bytes_more: float) -> Problem:
    """The problem with so many more bytes of the first accelerator kept free."""
    main, rules = find_main_accelerator(problem), problem.constraints
    name = problem.cluster.names[main]
    free = Headroom(name, bytes=_spare_bytes(problem, main) + float(np.ceil(bytes_more)))
    others = tuple(spare for spare in rules.spare if spare.device != name)
    return problem.with_(constraints=replace(rules, spare=(*others, free)))


def _spare_bytes(problem: Problem, device: int) -> float:
    """The bytes that headroom keeps free of a device."""
    known = problem.cluster.devices[device]
    return max(known.memory - known.reserved - float(problem.capacity[device]), 0.0) if known.memory < np.inf else 0.0
