"""measure_hops(): the cost of a tensor from another device in ONNX Runtime, by chains that alternate between two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from placewise.core.build import build
from placewise.model.cluster import Cluster
from placewise.model.placement import Placement
from placewise.processes.scratch import scratch_folder
from placewise.runtimes.base import Job
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import fresh_inputs
from placewise.runtimes.onnxruntime.runtime import OnnxRuntime

CHAIN = 24
"""Ops of a chain that alternates between two devices."""
SMALL, LARGE = 16, 1 << 18
"""Elements (float32) of the tensors: a cache line, and the result of a layer."""
SAMPLES = 40
MAX_PAIRS = 6
_KINDS = ("Abs", "Neg")

Pair = tuple[str, str]


def measure_hops(
    cluster: Cluster, places: Sequence[Place], calls: Mapping[str, float], *, seconds: float = 120.0
) -> dict[Pair, tuple[list[float], list[float]]]:
    """By pair of devices on cores, over samples: the seconds that a small tensor from the other device costs besides
    the call of the piece that reads it (`calls`, by device), and the bytes/s at which larger tensors cost more.

    A chain of ops that changes the device after every op is compared with the same chain on one device, so the figures
    cover both directions together. Of more than `MAX_PAIRS` pairs, some are measured, and the others get all figures
    of these. Raises RunError.
    """
    pairs = list(combinations([number for number, place in enumerate(places) if place.kind == "cores"], 2))
    rows = sorted({row * len(pairs) // MAX_PAIRS for row in range(MAX_PAIRS)}) if pairs else []
    figures: dict[Pair, tuple[list[float], list[float]]] = {}
    with scratch_folder() as folder:
        small, large = (write_chain(folder / f"{size}.onnx", size) for size in (SMALL, LARGE))
        for one, other in (pairs[row] for row in rows):
            pair = cluster.names[one], cluster.names[other]
            call = (calls.get(pair[0], 0.0) + calls.get(pair[1], 0.0)) / 2
            base = _extra_seconds(cluster, places, small, (one, other), seconds)
            more = _extra_seconds(cluster, places, large, (one, other), seconds)
            latency = [max(extra - call, 0.0) for extra in base]
            rates = [4 * (LARGE - SMALL) / max(high - low, 1e-9) for high, low in zip(more, base, strict=True)]
            figures[pair] = figures[pair[::-1]] = latency, rates
    pooled = (
        [latency for latencies, _ in figures.values() for latency in latencies],
        [rate for _, rates in figures.values() for rate in rates],
    )
    for one, other in pairs:
        pair = cluster.names[one], cluster.names[other]
        figures.setdefault(pair, pooled)
        figures.setdefault(pair[::-1], pooled)
    return figures


def _extra_seconds(
    cluster: Cluster, places: Sequence[Place], path: str, pair: tuple[int, int], seconds: float
) -> list[float]:
    """Seconds per op, sorted, that alternating takes longer than staying on the first device."""
    problem = build(path, cluster)
    job = Job(problem, Placement.on(pair[0], CHAIN), tuple(places), seconds=seconds)
    samples = [fresh_inputs(problem.graph, seed) for seed in range(SAMPLES)]
    runs = []
    for device in (np.full(CHAIN, pair[0], np.int32), np.array(pair * (CHAIN // 2), np.int32)):
        with OnnxRuntime().prepare(job.on(Placement(device))) as prepared:
            prepared.time(samples[:5])
            runs.append(np.array(prepared.time(samples)))
    alone = float(np.median(runs[0]))
    extra: list[float] = ((np.sort(runs[1]) - alone) / (CHAIN - 1)).tolist()
    return extra


def write_chain(path: Path, size: int, ops: int = CHAIN) -> str:
    """Write a model of a chain of ops on `size` elements to `path`, and return the path."""
    nodes = [
        helper.make_node(_KINDS[number % 2], [f"t{number}"], [f"t{number + 1}"], name=f"op{number}")
        for number in range(ops)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (size,)) for name in ("t0", f"t{ops}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)
