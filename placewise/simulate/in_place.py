"""Ops that may write their result over an operand: views, and what runtimes compute in place.

The kinds were measured with ONNX Runtime 1.31 (`python benchmarks/real/in_place.py`). A batch normalization after a
convolution is folded into its weights, and the kernel of a convolution computes a sum that follows: neither takes
memory of its own. Where PyTorch runs a program op by op, only views work in place.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from placewise.model.columns import Bools, frozen
from placewise.model.graph import Graph
from placewise.model.tables import RESHAPES

VIEWS = frozenset({"Identity", *RESHAPES})
IN_PLACE = frozenset({
    "Cast", "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu", "Shrink", "Sigmoid",
    "Softmax", "Softplus", "Softsign", "Tanh", "ThresholdedRelu",
})  # fmt: skip
_CONVOLUTIONS, _SUMS = frozenset({"Conv", "ConvTranspose"}), frozenset({"Add", "Sum"})
_NORMS = frozenset({"BatchNormalization"})
_OP_BY_OP = frozenset({"torch-export", "torch-module", "torch-modules", "huggingface", "pipedream"})
"""Formats of programs that PyTorch runs op by op."""


@lru_cache(maxsize=2)
def in_place_ops(graph: Graph) -> Bools:
    """The ops [n_ops] whose first result may take the memory of an equally large operand whose last reader they are."""
    views = (graph.ops.kind.equals_any(VIEWS) & ~_marked(graph, "copied")) | _marked(graph, "view")
    if graph.source is not None and graph.source.format in _OP_BY_OP:
        return frozen(views, np.bool_)
    convolved = graph.ops.kind.equals_any(_CONVOLUTIONS)
    folded = graph.ops.kind.equals_any(_NORMS) & _read_from(graph, convolved)
    added = graph.ops.kind.equals_any(_SUMS) & _read_from(graph, convolved | folded)
    return frozen(views | graph.ops.kind.equals_any(IN_PLACE) | folded | added, np.bool_)


def _marked(graph: Graph, attribute: str) -> Bools:
    attributes = graph.ops.attributes
    return np.array([bool(values.get(attribute, 0)) for values in attributes.values], np.bool_)[attributes.codes]


def _read_from(graph: Graph, makers: Bools) -> Bools:
    """The ops [n_ops] that read a result of `makers` [n_ops]."""
    readers = np.zeros(graph.n_ops, np.bool_)
    if not makers.any():
        return readers
    made = (graph.tensors.producer >= 0) & makers[graph.tensors.producer]
    readers[graph.edges.consumer[made[graph.edges.value]]] = True
    return readers
