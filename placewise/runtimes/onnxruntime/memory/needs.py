"""What a session needs, and what the sessions of each device of a placement need together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from placewise.model.graph import Graph
from placewise.runtimes.onnxruntime.memory.buffers import spans_of
from placewise.runtimes.onnxruntime.memory.chunks import Arena, arena_of
from placewise.runtimes.onnxruntime.memory.kernels import session_of
from placewise.runtimes.onnxruntime.memory.layout import with_layouts
from placewise.runtimes.onnxruntime.memory.order import in_order
from placewise.simulate.blocks import storage_bytes
from placewise.transform.pieces import Pieces


class Needs(NamedTuple):
    """Bytes of a session: its weights, what its caller holds for it while it runs, and its arena for all the rest."""

    weights: int
    handed: int
    arena: Arena

    @property
    def most(self) -> int:
        """Weights, what is handed over, and all of the arena that is ever used."""
        return self.weights + self.handed + self.arena.touched


def needs_of(
    graph: Graph, ops: Iterable[int], *, blocked: bool = True, doubling: bool = True, bound: bool = True
) -> Needs:
    """What a session that runs these ops of an ONNX graph needs.

    `blocked`: on a CPU, where convolutions have a layout of their own; `doubling`: the arena's regions double; `bound`:
    outputs lie where the caller says, and not in the arena. Temporary buffers of kernels (a convolution that is not
    blocked, a quantized product) are not counted.
    """
    inside = sorted(ops)
    session = in_order(session_of(graph, inside))
    handed = sum(session.values[value].nbytes for value in session.given | (session.kept if bound else set()))
    spans = spans_of(in_order(with_layouts(graph, session)) if blocked else session, bound=bound)
    used = {int(graph.weights.storage[weight]) for op in inside for weight in graph.weights_of(op).tolist()}
    weights = int(storage_bytes(graph)[sorted(used)].sum()) if used else 0
    return Needs(weights, handed, arena_of(spans, doubling=doubling))


def needs_of_devices(
    graph: Graph, pieces: Pieces, members: Sequence[Sequence[int]], on_host: Sequence[bool]
) -> list[int]:
    """The most bytes that each device needs [n_devices]: a session keeps its arena between runs, so they add up.

    `members` are the devices that run each piece, `on_host` [n_devices] says which of them are CPUs.
    """
    total = np.zeros(len(on_host), np.int64)
    for piece, own in enumerate(members):
        ops = np.flatnonzero(pieces.piece == piece).tolist()
        for blocked in {on_host[device] for device in own}:
            most = needs_of(graph, ops, blocked=blocked).most
            total[[device for device in own if on_host[device] == blocked]] += most
    return total.tolist()
