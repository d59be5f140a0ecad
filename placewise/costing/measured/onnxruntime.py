"""ONNX Runtime's profile: the JSON that a session with `enable_profiling` writes.

Calls of nodes are events of category "Node" named ``<node>_kernel_time``, in microseconds, with the node's type and
execution provider (onnxruntime.ai, "Profiling"). Nodes are those of the optimized graph: some replace several ops, some
are new. On a GPU such a call only launches kernels: what these take are events of category "Kernel", each behind the
call that launched it, whose name it has as ``parent_name`` and whose type as ``op_name``. Builds of ONNX Runtime
without CUDA's profiler write none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from placewise.costing.measured.content import events
from placewise.costing.measured.table import TimingRow, Timings, median_over_runs, read_seconds, spread_over_runs
from placewise.errors import CostError

_KERNEL = "_kernel_time"
_MICRO = 1e-6
_DEVICES: Mapping[str, str] = {
    "CPUExecutionProvider": "cpu", "DnnlExecutionProvider": "cpu", "XnnpackExecutionProvider": "cpu",
    "CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "cuda", "NvTensorRTRTXExecutionProvider": "cuda",
}  # fmt: skip
"""The device of an execution provider; others must be named by the user."""
_LAUNCHING = frozenset(provider for provider, device in _DEVICES.items() if device == "cuda")
"""Providers whose calls return before their kernels have run."""

_FUSED = re.compile(r"(/[A-Za-z]+/?|_nchwc|_nhwc|_token_\d+|_fused|_gemm_transpose|_quant)$")
"""Suffixes that fusions add to a name: ``matmul/MatMulScaleFusion/``, ``relu_nchwc``."""

Key = tuple[str, str, str, str]
"""Name, type, execution provider and number of a node."""


@dataclass(slots=True)
class TimedCall:
    """A call of a node: its start (microseconds), its seconds, and those of the kernels that it launched on a GPU."""

    start: float
    key: Key
    seconds: float
    launched: float = 0.0


@dataclass(slots=True)
class SessionTrace:
    """What a session did: starts (microseconds) and seconds of its runs, calls of nodes, and other kernels by name.

    `has_kernels`: there are times of kernels, so those of calls on a GPU are known to be only those of launching.
    """

    runs: list[tuple[float, float]] = field(default_factory=list)
    calls: list[TimedCall] = field(default_factory=list)
    others: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    has_kernels: bool = False

    def seconds(self, call: TimedCall) -> float:
        """The seconds that a node computes in one call."""
        return call.launched if self.has_kernels and call.key[2] in _LAUNCHING else call.seconds

    @property
    def notes(self) -> tuple[str, ...]:
        if self.has_kernels or not any(call.key[2] in _LAUNCHING for call in self.calls):
            return ()
        return (
            "this build of ONNX Runtime records no kernels of GPUs: times of their nodes are those of launching, and "
            "say little about how long each takes",
        )


def read_trace(path: Path) -> SessionTrace:
    """The calls and kernels of a profile. Raises CostError."""
    trace = SessionTrace()
    latest: dict[str, TimedCall] = {}
    for number, event in enumerate(events(path)):
        name, category = str(event.get("name", "")), event.get("cat")
        args = event.get("args")
        args = args if isinstance(args, Mapping) else {}
        if category == "Session" and name == "model_run":
            seconds = read_seconds(event.get("dur", 0), f"event {number}", unit=_MICRO)
            trace.runs.append((_number(event, "ts", number), seconds))
        elif category == "Node" and name.endswith(_KERNEL):
            node = str(args.get("node_index", ""))
            key = (name.removesuffix(_KERNEL), str(args.get("op_name", "")), str(args.get("provider", "")), node)
            seconds = read_seconds(event.get("dur"), f"event {number}", unit=_MICRO)
            call = TimedCall(_number(event, "ts", number), key, seconds)
            latest[name] = latest[key[1]] = call
            trace.calls.append(call)
        elif category == "Kernel":
            seconds, trace.has_kernels = read_seconds(event.get("dur"), f"event {number}", unit=_MICRO), True
            launcher = latest.get(str(args.get("parent_name") or args.get("op_name") or ""))
            if launcher is not None:
                launcher.launched += seconds
            elif trace.calls:
                trace.others[name] += seconds  # before the first call, weights are copied
    trace.runs.sort()
    return trace


def read_onnxruntime(path: Path) -> Timings:
    """The median over runs of every node's kernel, without the first run. Raises CostError."""
    trace = read_trace(path)
    if not trace.calls:
        raise CostError("holds no times of nodes", remedy="run the session before end_profiling()")
    return timings_of(trace)


def timings_of(trace: SessionTrace) -> Timings:
    """The median over runs of every node of a trace, without the first run, and the mean of other kernels."""
    count = max(len(trace.runs), 1)
    rows = [
        TimingRow(
            name,
            median_over_runs(times),
            kind=kind,
            device=_DEVICES.get(provider, provider),
            aliases=_strip_fusion_suffixes(name),
            spread=spread_over_runs(times),
        )
        for (name, kind, provider, _), times in _sum_by_run(trace).items()
    ]
    rows += [TimingRow(name, seconds / count, device="cuda") for name, seconds in trace.others.items()]
    form = f"ONNX Runtime profile of {count} {'run' if count == 1 else 'runs'}"
    return Timings(form, tuple(rows), notes=trace.notes)


def seconds_besides(trace: SessionTrace) -> float:
    """The median seconds of a run outside of what its nodes compute."""
    starts = [start for start, _ in trace.runs]
    rest = [seconds for _, seconds in trace.runs]
    for call in trace.calls:
        rest[max(bisect_right(starts, call.start) - 1, 0)] -= trace.seconds(call)
    return max(float(median(rest)), 0.0)


def _sum_by_run(trace: SessionTrace) -> dict[Key, Sequence[float]]:
    """Seconds of every node in every run; iterations of a loop add up."""
    sums: dict[Key, dict[int, float]] = {}
    starts = [start for start, _ in trace.runs]
    for call in trace.calls:
        turns = sums.setdefault(call.key, {})
        run = bisect_right(starts, call.start)
        turns[run] = turns.get(run, 0.0) + trace.seconds(call)
    return {key: [turns[run] for run in sorted(turns)] for key, turns in sums.items()}


def _number(event: Mapping[str, Any], key: str, number: int) -> float:
    value = event.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise CostError(f"has no number {key!r}", where=f"event {number}", remedy="give the file as the session wrote it")


def _strip_fusion_suffixes(name: str) -> tuple[str, ...]:
    """The names that a node had before ONNX Runtime's fusions, longest first."""
    names = [name := name.removeprefix("fused ")]
    while (shorter := _FUSED.sub("", name)) != name:
        names.append(name := shorter)
    return tuple(names)
