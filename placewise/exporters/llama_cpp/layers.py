"""The layers of a model as llama.cpp counts them: the input embeddings, the layers, and the output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from placewise.exporters.llama_cpp.words import TARGET
from placewise.exporters.stack import Stack
from placewise.exporters.stages import require_stack
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import CORE


@dataclass(frozen=True, slots=True, eq=False)
class LayerSequence:
    """The `position` [n_ops] of each op: 0 for input embeddings, 1 to n for layers, n + 1 for the output.

    `experts` [n_ops] marks the ops of experts. `host` is the device of the host memory, −1 if the cluster has none.
    """

    stack: Stack
    position: Ints
    experts: Bools
    host: int

    @property
    def with_experts(self) -> list[int]:
        """The positions that have experts, in order; the first layers of some models have none."""
        found: list[int] = np.unique(self.position[self.experts]).tolist()
        return found

    def leave_experts(self, away: Iterable[int]) -> Ints:
        """The position of every op [n_ops], 0 for the experts of the positions `away`."""
        return np.where(self.experts & np.isin(self.position, [*away]), 0, self.position).astype(np.int32)

    def place(self, line: Ints, away: Iterable[int]) -> Ints:
        """The device of every op [n_ops]: that of its position in `line` [layers + 2], or the host for the experts of
        the positions `away`.
        """
        device: Ints = np.where(self.experts & np.isin(self.position, [*away]), self.host, line[self.position])
        return device


def find_layers(problem: Problem, placement: Placement | None) -> LayerSequence:
    """The layers of a model. Of several hosts, the one with most of the ops of a `placement` is meant.

    Raises ExportError for a model without a stack of layers.
    """
    stack = require_stack(problem, TARGET)
    kinds = [device.kind for device in problem.cluster]
    host = "cpu" if "cpu" in kinds else CORE
    hosts = [device for device in np.flatnonzero(problem.allowed.any(axis=0)).tolist() if kinds[device] == host]
    if placement is not None and hosts:
        hosts.sort(key=lambda host: -int((placement.device == host).sum()))
    marks = np.array(["experts" in inside.split(".") for inside in stack.inside], np.bool_)
    layered = (stack.of >= 0) & (stack.of < stack.count)
    line = np.where(_find_embeddings(problem, stack), 0, np.maximum(stack.of + 1, 1)).astype(np.int32)
    return LayerSequence(stack, line, marks & layered, hosts[0] if hosts else -1)


def join_embeddings(position: Ints) -> Ints:
    """Positions where the input embeddings are with the first layer, for a cluster without a host."""
    return np.maximum(position - 1, 0).astype(np.int32)


def _find_embeddings(problem: Problem, stack: Stack) -> Bools:
    """The ops [n_ops] before the layers that look up embeddings or lead to such an op; blocks stay whole."""
    graph, maker = problem.graph, problem.graph.tensors.producer
    embeds = graph.ops.kind.equals("Gather") & (np.diff(graph.weight_offsets) > 0) & (stack.of < 0)
    for op in reversed(range(graph.n_ops)):
        if embeds[op]:
            sources = maker[graph.inputs_of(op)]
            sources = sources[sources >= 0]
            embeds[sources[(stack.of[sources] < 0) & (graph.ops.phase[sources] == graph.ops.phase[op])]] = True
    whole: Bools = np.isin(problem.block, problem.block[embeds])
    return whole
