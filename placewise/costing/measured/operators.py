"""Operators of PyTorch by name, against kinds and names of ops: which can be which."""

from __future__ import annotations

import re
from collections.abc import Mapping

from placewise.model.graph import Graph

_KINDS: Mapping[str, str] = {
    "linear": "Gemm MatMul", "addmm": "Gemm MatMul", "mm": "MatMul Gemm", "bmm": "MatMul", "baddbmm": "Gemm MatMul",
    "conv1d": "Conv", "conv2d": "Conv", "conv3d": "Conv", "convolution": "Conv ConvTranspose",
    "conv_transpose1d": "ConvTranspose", "conv_transpose2d": "ConvTranspose", "conv_transpose3d": "ConvTranspose",
    "batch_norm": "BatchNormalization", "layer_norm": "LayerNormalization", "native_layer_norm": "LayerNormalization",
    "group_norm": "GroupNormalization", "instance_norm": "InstanceNormalization", "rms_norm": "RMSNormalization",
    "scaled_dot_product_attention": "Attention", "embedding": "Gather", "index_select": "Gather", "select": "Gather",
    "max_pool1d": "MaxPool", "max_pool2d": "MaxPool", "max_pool3d": "MaxPool", "avg_pool1d": "AveragePool",
    "avg_pool2d": "AveragePool", "avg_pool3d": "AveragePool",
    "adaptive_avg_pool1d": "GlobalAveragePool ReduceMean", "adaptive_avg_pool2d": "GlobalAveragePool ReduceMean",
    "mean": "ReduceMean GlobalAveragePool", "sum": "ReduceSum", "amax": "ReduceMax", "max": "ReduceMax Max",
    "view": "Reshape Flatten", "reshape": "Reshape Flatten", "flatten": "Flatten Reshape", "contiguous": "Reshape",
    "permute": "Transpose", "transpose": "Transpose", "t": "Transpose", "cat": "Concat", "stack": "Concat",
    "chunk": "Split", "split": "Split", "silu": "Swish", "hardswish": "HardSwish", "to": "Cast", "clamp": "Clip",
    "rsub": "Sub", "masked_fill": "Where", "log_softmax": "LogSoftmax", "lstm": "LSTM", "gru": "GRU",
}  # fmt: skip
_NUMBER = re.compile(r"_\d+$")


def operator_of(event: str) -> str:
    """``aten::add_`` → ``add``; "" for what is no operator."""
    namespace, _, name = event.partition("::")
    return name.strip("_") if namespace == "aten" and "::" not in name else ""


class Candidates:
    """What the ops of a graph may be called in a trace."""

    def __init__(self, graph: Graph) -> None:
        self.names = [
            _NUMBER.sub("", name.rpartition("/")[2].removeprefix("node_")).strip("_") for name in graph.ops.name
        ]
        self.kinds = [kind.rpartition("::")[2] for kind in graph.ops.kind]
        self._known = set(self.names) | {kind.lower() for kind in self.kinds}
        self._known |= {name for name, kinds in _KINDS.items() if set(kinds.split()) & set(self.kinds)}

    def has(self, operator: str) -> bool:
        """Whether any op may be this operator."""
        return bool(operator) and (operator in self._known or operator.replace("_", "") in self._known)

    def fits(self, operator: str, op: int) -> bool:
        kind = self.kinds[op]
        same = operator == self.names[op] or operator.replace("_", "") == kind.lower()
        return same or kind in _KINDS.get(operator, "").split()
