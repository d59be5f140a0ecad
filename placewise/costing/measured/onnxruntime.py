"""ONNX Runtime's profile: the JSON that a session with `enable_profiling` writes.

Kernels are events of category "Node" named ``<node>_kernel_time``, in microseconds, with the node's type and execution
provider (onnxruntime.ai, "Profiling"). Nodes are those of the optimized graph: some replace several ops, some are new.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path
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

_FUSED = re.compile(r"(/[A-Za-z]+/?|_nchwc|_nhwc|_token_\d+|_fused|_gemm_transpose|_quant)$")
"""Suffixes that fusions add to a name: ``matmul/MatMulScaleFusion/``, ``relu_nchwc``."""

Key = tuple[str, str, str, str]


def read_onnxruntime(path: Path) -> Timings:
    """The median over runs of every node's kernel, without the first run. Raises CostError."""
    starts: list[float] = []
    kernels: list[tuple[float, Key, float]] = []
    for number, event in enumerate(events(path)):
        name, category = str(event.get("name", "")), event.get("cat")
        if category == "Session" and name == "model_run":
            starts.append(_number(event, "ts", number))
        elif category == "Node" and name.endswith(_KERNEL):
            args = event.get("args")
            args = args if isinstance(args, Mapping) else {}
            node = str(args.get("node_index", ""))
            key = (name.removesuffix(_KERNEL), str(args.get("op_name", "")), str(args.get("provider", "")), node)
            seconds = read_seconds(event.get("dur"), f"event {number}", unit=_MICRO)
            kernels.append((_number(event, "ts", number), key, seconds))
    if not kernels:
        raise CostError("holds no times of nodes", remedy="run the session before end_profiling()")
    runs = sorted(starts)
    rows = [
        TimingRow(
            name,
            median_over_runs(times),
            kind=kind,
            device=_DEVICES.get(provider, provider),
            aliases=_strip_fusion_suffixes(name),
            spread=spread_over_runs(times),
        )
        for (name, kind, provider, _), times in _sum_by_run(kernels, runs).items()
    ]
    count = max(len(runs), 1)
    return Timings(f"ONNX Runtime profile of {count} {'run' if count == 1 else 'runs'}", tuple(rows))


def _sum_by_run(kernels: Iterable[tuple[float, Key, float]], runs: list[float]) -> dict[Key, list[float]]:
    """Seconds of every node in every run; iterations of a loop add up."""
    sums: dict[Key, dict[int, float]] = {}
    for start, key, seconds in kernels:
        turns = sums.setdefault(key, {})
        run = bisect_right(runs, start)
        turns[run] = turns.get(run, 0.0) + seconds
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
