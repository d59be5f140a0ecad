"""hops(): what it costs in ONNX Runtime that an op's tensor comes from another device, by chains that go to and fro."""

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
from placewise.processes.scratch import scratch
from placewise.runtimes.base import Job
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import fresh_inputs
from placewise.runtimes.onnxruntime.runtime import OnnxRuntime

CHAIN = 24
"""Ops of a chain, on the two devices in turns."""
SMALL, LARGE = 16, 1 << 18
"""Elements (float32) of the tensors: a cache line, and what a layer hands on."""
SAMPLES = 40
MOST_PAIRS = 6
_KINDS = ("Abs", "Neg")

Pair = tuple[str, str]


def hops(
    cluster: Cluster, places: Sequence[Place], calls: Mapping[str, float], *, seconds: float = 120.0
) -> dict[Pair, tuple[list[float], list[float]]]:
    """By pair of devices on cores, over samples: seconds that a small tensor from the other one costs besides the call
    of the piece that takes it (`calls`), and bytes/s at which a large one costs more.

    A chain of ops that changes device after each of them is compared with the same chain on one device. The figures are
    of both directions together. Of more than `MOST_PAIRS` pairs some are measured, and the others are given what these
    had together. Raises RunError.
    """
    pairs = list(combinations([number for number, place in enumerate(places) if place.kind == "cores"], 2))
    chosen = (
        [pairs[row] for row in sorted({row * len(pairs) // MOST_PAIRS for row in range(MOST_PAIRS)})] if pairs else []
    )
    found: dict[Pair, tuple[list[float], list[float]]] = {}
    with scratch() as folder:
        small, large = (chain(folder / f"{size}.onnx", size) for size in (SMALL, LARGE))
        for one, other in chosen:
            pair = cluster.names[one], cluster.names[other]
            call = (calls.get(pair[0], 0.0) + calls.get(pair[1], 0.0)) / 2
            little, much = (_extra(cluster, places, path, (one, other), seconds) for path in (small, large))
            latency = [max(extra - call, 0.0) for extra in little]
            rates = [4 * (LARGE - SMALL) / max(more - less, 1e-9) for more, less in zip(much, little, strict=True)]
            found[pair] = found[pair[::-1]] = latency, rates
    pooled = [late for few, _ in found.values() for late in few], [rate for _, few in found.values() for rate in few]
    for one, other in pairs:
        pair = cluster.names[one], cluster.names[other]
        found.setdefault(pair, pooled)
        found.setdefault(pair[::-1], pooled)
    return found


def _extra(cluster: Cluster, places: Sequence[Place], path: str, pair: tuple[int, int], seconds: float) -> list[float]:
    """Seconds per op, sorted, that going to and fro takes longer than staying on the first device."""
    problem = build(path, cluster)
    job = Job(problem, Placement.on(pair[0], CHAIN), tuple(places), seconds=seconds)
    samples = [fresh_inputs(problem.graph, seed) for seed in range(SAMPLES)]
    took = []
    for device in (np.full(CHAIN, pair[0], np.int32), np.array(pair * (CHAIN // 2), np.int32)):
        ready = OnnxRuntime().prepare(job.on(Placement(device)))
        try:
            ready.time(samples[:5])
            took.append(np.array(ready.time(samples)))
        finally:
            ready.close()
    alone = float(np.median(took[0]))
    extra: list[float] = ((np.sort(took[1]) - alone) / (CHAIN - 1)).tolist()
    return extra


def chain(path: Path, size: int, ops: int = CHAIN) -> str:
    """A model of ops one after the other on `size` elements, written to `path`."""
    nodes = [
        helper.make_node(_KINDS[number % 2], [f"t{number}"], [f"t{number + 1}"], name=f"op{number}")
        for number in range(ops)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (size,)) for name in ("t0", f"t{ops}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)
