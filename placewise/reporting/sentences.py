"""A result in sentences: whether a split is worth it, and how much could still be gained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from placewise._util.units import format_bytes, format_gap, format_number, format_seconds
from placewise.model.cluster import ASSUMED, MEANT, Cluster
from placewise.model.problem import Objective, Problem
from placewise.model.result import (
    DECODE,
    DeviceUse,
    Judgement,
    Outcome,
    PhaseUse,
    Result,
    batch_size,
    tokens_per_second,
)
from placewise.model.verdict import AS_FAR, REPLICAS, SINGLE_DEVICE, Baseline
from placewise.model.ways import Ways
from placewise.readers.run_dims import find_run_dims
from placewise.reporting.ranges import name_range

SHOWN = 4
"""Names of devices that are listed; more are shown as ranges."""
MAX_FINDS = 6
"""How many improvements of a search are listed."""


def assumption_lines(cluster: Cluster) -> list[str]:
    """A line per model that was assumed for devices, and per short name that stands for one of several."""
    lines: dict[str, list[str]] = {}
    for device in cluster:
        for note in device.notes:
            if note.startswith((ASSUMED, MEANT)):
                line = note.removeprefix(MEANT).replace(ASSUMED, "assumed ", 1)
                size = f", with {format_bytes(device.memory)}" if note.startswith(ASSUMED) else ""
                lines.setdefault(f"{line}{size}", []).append(device.name)
    return [
        f"{', '.join(names) if len(names) <= SHOWN else name_range(names)}: {note}" for note, names in lines.items()
    ]


def value_name(objective: Objective, ways: Ways | None = None) -> str:
    """The name of the value: time per sample, per micro-batch where steps of split stages are trained, or latency."""
    if ways is not None and ways.trains and objective.kind == "throughput":
        return "time per micro-batch"
    if objective.kind == "step":
        return "time per training step"
    flushes = " (gpipe)" if objective.schedule == "gpipe" else ""
    return f"time per sample{flushes}" if objective.kind == "throughput" else "latency"


def headline(result: Result) -> str:
    """Value, bound and gap in one line; or why there is no placement."""
    if result.judgement is None:
        return f"{result.status.outcome}: {result.unmet or 'no placement was found'}"
    line = f"{value_name(result.problem.objective, result.problem.ways)} {format_seconds(result.value)}"
    if result.status.outcome is Outcome.OPTIMAL:
        return f"{line}, proved optimal ({result.bound.method})"
    bound = format_seconds(result.lower_bound)
    return f"{line}; no placement is below {bound} ({result.bound.method}): {format_gap(result.gap)} is left to gain"


def phase_line(problem: Problem, judgement: Judgement) -> str:
    """Seconds per phase, or runs per second in a full pipeline; "" for a model without phases."""
    if problem.ways is not None and problem.objective.kind == "latency":
        return ""
    if judgement.phases:
        return ", then ".join(_phase_time(problem, use) for use in judgement.phases if use.seconds > 0)
    repeated = [phase for phase in problem.graph.phases if phase.repeats > 1]
    if not repeated or not 0 < judgement.value < math.inf:
        return ""
    rates = [_phase_rate(problem, phase.repeats / judgement.value, phase.name) for phase in repeated]
    return f"in a full pipeline{', '.join(rates)}"


def _phase_time(problem: Problem, use: PhaseUse) -> str:
    if use.repeats == 1:
        return f"{use.phase} {format_seconds(use.seconds)}"
    rate = _phase_rate(problem, 1 / use.seconds, use.phase)
    return f"{use.repeats} × {use.phase} of {format_seconds(use.seconds)}{rate}"


def _phase_rate(problem: Problem, per_second: float, phase: str) -> str:
    """How often a phase runs per second; for decoding, tokens per second of the whole batch."""
    batch = batch_size(problem)
    if phase != DECODE:
        return f" ({format_number(per_second)} per second)"
    whole = f" for the batch of {batch}" if batch > 1 else ""
    return f" ({format_number(per_second * batch)} tokens per second{whole})"


def speed_line(problem: Problem, judgement: Judgement) -> str:
    """Tokens per second to expect of the prompt and of what is generated; "" for a model that generates no text."""
    speed, dims = tokens_per_second(problem, judgement), find_run_dims(problem.graph.source)
    if speed is None or not judgement.phases:
        return ""
    before = [use.seconds for use in judgement.phases if use.phase != DECODE and use.seconds > 0]
    whole = f" for the batch of {batch_size(problem)}" if batch_size(problem) > 1 else ""
    read = [] if dims is None else [_prompt_speed(dims.prompt_tokens, seconds) for seconds in before]
    return f"expect: {', then '.join((*read, f'{format_number(speed, 3)} tokens per second{whole}'))}"


def _prompt_speed(tokens: int, seconds: float) -> str:
    rate = format_number(tokens / seconds, 3)
    return f"a prompt of {tokens} tokens in {format_seconds(seconds)} ({rate} tokens per second)"


def free_line(judgement: Judgement, problem: Problem, buffers: Mapping[str, int]) -> str:
    """The memory that a placement leaves on each device that it uses, after the bytes of the `buffers` of llama.cpp."""
    free = ", ".join(_say_free(use, problem, buffers) for use in judgement.devices if use.ops)
    return f"memory left free: {free}{', compute buffers counted' if buffers else ''}"


def _say_free(use: DeviceUse, problem: Problem, buffers: Mapping[str, int]) -> str:
    device = problem.cluster.devices[problem.cluster.index(use.device)]
    if use.device not in buffers:
        return f"{use.device} {format_bytes(use.free)} of {format_bytes(use.capacity)}"
    whole = device.memory - device.reserved
    return f"{use.device} {format_bytes(max(whole - use.peak - buffers[use.device], 0))} of {format_bytes(whole)}"


def verdict(result: Result) -> str:
    """Whether the split is worth it, in one sentence; "" without anything to compare it with."""
    return result.verdict.sentence if result.verdict else ""


def expected_line(result: Result) -> str:
    """The seconds to expect where runs of chosen plans took another time than the costs say; "" elsewhere."""
    runs = result.problem.costs.runs
    if result.expected == result.value or not math.isfinite(result.expected):
        return ""
    how = f"{abs(runs.longer):.1%} {'longer' if runs.longer > 0 else 'less'} than the costs say"
    expected = format_seconds(result.expected)
    return f"expected when it runs: {expected}; {runs.describe_plans()} took {how}"


def whole_op_line(problem: Problem) -> str:
    """A line where several equal accelerators have direct links: no op is split over them, which may be faster."""
    cluster = problem.cluster
    if problem.ways is not None or cluster.transfers != "direct":
        return ""
    models = Counter(repr(device.without_names()) for device in cluster if device.available and not device.is_host)
    if max(models.values(), default=0) < 2:
        return ""
    return "No op is split over several devices: tensor parallelism (--tensor-parallel any) may be faster."


def history_line(result: Result) -> str:
    """Which placers improved the plan and when, the first and the last few; "" after a single improvement."""
    finds, last = [], None
    for step in result.history:
        if step.placer == last:
            finds.pop()
        finds.append(f"{step.placer} {format_seconds(step.value)} after {step.seconds:.2f} s")
        last = step.placer
    if len(finds) < 2:
        return ""
    if len(finds) > MAX_FINDS:
        finds = [finds[0], f"{len(finds) - MAX_FINDS} more", *finds[2 - MAX_FINDS :]]
    return f"found by {', '.join(finds)}"


def baseline_lines(result: Result) -> list[tuple[str, str, str]]:
    """(name, value, remark) of each naive baseline."""
    return list_baselines(result.value, result.compared)


def list_baselines(value: float, baselines: Mapping[str, Baseline]) -> list[tuple[str, str, str]]:
    """(name, value, remark) of each baseline, beside a plan of `value` seconds; what cannot run says why."""
    lines = []
    for name, baseline in baselines.items():
        seconds = format_seconds(baseline.value) if math.isfinite(baseline.value) else "–"
        ratio = f"{baseline.value / value:.2f}× the plan's time" if value > 0 and math.isfinite(value) else ""
        if not math.isfinite(baseline.value):
            ratio = baseline.broken or "it cannot run"
        remark = f"breaks a rule: {baseline.broken}" if baseline.broken and seconds != "–" else ratio
        lines.append((_baseline_name(name, baseline), seconds, remark))
    return lines


def host_remark(problem: Problem, judgement: Judgement) -> str:
    """Why the load of a host exceeds the latency; "" if none does."""
    over = [
        use.device
        for device, use in zip(problem.cluster, judgement.devices, strict=True)
        if device.is_host and use.load > judgement.value * (1 + 1e-9)
    ]
    if problem.objective.kind != "latency" or not over:
        return ""
    return f"{over[0]} runs several ops at once: its load adds up their times, which may be more than the latency"


def replica_lines(judgement: Judgement) -> list[str]:
    """A sentence per replicated stage: its devices, and the seconds of synchronization."""
    lines, names = [], [use.device for use in judgement.devices]
    members_by_device: dict[str, list[int]] = {}
    for d, use in enumerate(judgement.devices):
        for name in {use.device, use.repeats} - {""}:
            members_by_device.setdefault(name, []).append(d)
    for use in judgement.devices:
        members = members_by_device[use.device]
        if len(members) > 1 and use.ops:
            sync = f", synchronization {format_seconds(use.sync)} per sample" if use.sync else ""
            lines.append(f"{_format_runs(members, names)} share one stage (×{len(members)}){sync}")
    return lines


def _format_runs(members: list[int], names: list[str]) -> str:
    """Device names; three or more consecutive ones as the first and the last."""
    runs: list[list[int]] = []
    for d in members:
        if runs and runs[-1][-1] == d - 1:
            runs[-1].append(d)
        else:
            runs.append([d])
    words = [[f"{names[run[0]]} – {names[run[-1]]}"] if len(run) > 2 else [names[d] for d in run] for run in runs]
    return ", ".join(word for some in words for word in some)


def _baseline_name(name: str, baseline: Baseline) -> str:
    """The name of a baseline; of one device its own, unless the rules need more, and of replicas their number."""
    used = baseline.devices
    if name == REPLICAS and used:
        return f"{name} (×{len(used)})"
    if name != SINGLE_DEVICE or not used:
        return name
    return AS_FAR if len(used) > 1 else f"{name} ({used[0]})"
