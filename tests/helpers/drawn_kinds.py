"""Problems with drawn kinds of ops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from simulate_problems import Choose

from placewise.model.graph import Source
from placewise.model.problem import Problem
from placewise.model.tables import Interned

KINDS = ("Op", "Reshape", "Relu", "Conv", "BatchNormalization", "Add", "Softmax", "Transpose", "Gelu")


MARKS: tuple[dict[str, int], ...] = ({}, {"view": 1}, {"copied": 1})


FORMATS = ("onnx", "torch-module", "")


def kinds_drawn(problem: Problem, choose: Choose) -> Problem:
    """The problem with kinds of ops of which some work in place, marks of views, and a format."""
    graph, n = problem.graph, problem.n_ops
    kind = Interned(KINDS, np.array([choose(0, len(KINDS) - 1) for _ in range(n)], np.int32))
    marks = Interned(MARKS, np.array([choose(0, 8) // 4 for _ in range(n)], np.int32))
    form = FORMATS[choose(0, 2)]
    source = Source("m", "", form) if form else None
    graph = replace(graph, ops=replace(graph.ops, kind=kind, attributes=marks), source=source)
    return replace(problem, graph=graph)
