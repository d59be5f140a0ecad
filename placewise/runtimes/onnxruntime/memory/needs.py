"""The memory of one session, and of all sessions on each device of a placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from placewise.model.graph import Graph
from placewise.runtimes.onnxruntime.memory.buffers import plan_buffers
from placewise.runtimes.onnxruntime.memory.chunks import ArenaUsage, simulate_arena
from placewise.runtimes.onnxruntime.memory.layout import block_layouts
from placewise.runtimes.onnxruntime.memory.session import build_session, order_kernels
from placewise.simulate.blocks import storage_bytes
from placewise.transform.pieces import Pieces


class SessionMemory(NamedTuple):
    """Bytes of a session: its weights, the inputs and outputs that its caller holds (`io`), and its arena."""

    weights: int
    io: int
    arena: ArenaUsage

    @property
    def peak(self) -> int:
        """Weights, inputs and outputs, and all of the arena that is ever used."""
        return self.weights + self.io + self.arena.touched


def predict_needs(
    graph: Graph, ops: Iterable[int], *, blocked: bool = True, doubling: bool = True, bound: bool = True
) -> SessionMemory:
    """The memory of a session that runs these ops of an ONNX graph.

    `blocked`: it runs on a CPU, where convolutions use a blocked layout. `doubling`: regions of the arena double.
    `bound`: the caller provides the memory of the outputs. Temporary buffers inside kernels (of a convolution that is
    not blocked, of a quantized product) are not counted.
    """
    inside = sorted(ops)
    session = order_kernels(build_session(graph, inside))
    io = sum(session.values[value].nbytes for value in session.inputs | (session.outputs if bound else set()))
    spans = plan_buffers(order_kernels(block_layouts(graph, session)) if blocked else session, bound=bound)
    used = {int(graph.weights.storage[weight]) for op in inside for weight in graph.weights_of(op).tolist()}
    weights = int(storage_bytes(graph)[sorted(used)].sum()) if used else 0
    return SessionMemory(weights, io, simulate_arena(spans, doubling=doubling))


def predict_device_needs(
    graph: Graph, pieces: Pieces, members: Sequence[Sequence[int]], on_host: Sequence[bool]
) -> list[int]:
    """The most bytes that each device needs [n_devices]. Sessions keep their arenas between runs, so they add up.

    `members` are the devices that run each piece; `on_host` [n_devices]: the device is a CPU.
    """
    total = np.zeros(len(on_host), np.int64)
    for piece, own in enumerate(members):
        ops = np.flatnonzero(pieces.piece == piece).tolist()
        for blocked in {on_host[device] for device in own}:
            peak = predict_needs(graph, ops, blocked=blocked).peak
            total[[device for device in own if on_host[device] == blocked]] += peak
    return total.tolist()
