"""A traced graph whose weights are packed as its configuration says."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import nn
from torch.nn.modules.conv import _ConvNd

from placewise.model.dtypes import dtype_code
from placewise.model.graph import Graph
from placewise.readers.huggingface.quantization import Packing, Quantization

TRANSPOSED = ("Conv1D",)
"""Linear layers of transformers whose weights are [inputs, outputs]."""
_BOTH = "gate_up"
"""In names of weights that hold two matrices of experts side by side."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A weight that may be packed: its packing, and whether it is [inputs, outputs]."""

    packing: Packing
    transposed: bool = False
    of_experts: bool = False

    def count_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Bytes of a weight [outputs, inputs], or of experts [experts, outputs, inputs]."""
        outputs, inputs = shape[-2:][::-1] if self.transposed else shape[-2:]
        many = int(np.prod(shape[:-2], dtype=np.int64))
        if self.of_experts and _BOTH in name:
            many, outputs = 2 * many, outputs // 2
        return many * self.packing.count_bytes(outputs, inputs)


def pack_weights(graph: Graph, module: nn.Module, quantization: Quantization) -> tuple[Graph, int]:
    """The graph with packed weights, and how many of them there are; tables that are looked up stay as they are."""
    known, weights = _list_matrices(module, quantization), graph.weights
    dtype, nbytes, count = weights.dtype.copy(), weights.bytes.copy(), 0
    for row, name in enumerate(weights.name):
        matrix = known.get(name) or known.get(_name_whole(name))
        if matrix is not None and len(weights.shape[row]) >= 2:
            dtype[row], count = dtype_code(matrix.packing.dtype), count + 1
            nbytes[row] = matrix.count_bytes(name, weights.shape[row])
    return replace(graph, weights=replace(weights, dtype=dtype, bytes=nbytes)), count


def _list_matrices(module: nn.Module, quantization: Quantization) -> dict[str, _Matrix]:
    found = dict[str, _Matrix]()
    head = getattr(module, "get_output_embeddings", lambda: None)()
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    for path, part in module.named_modules():
        if isinstance(part, nn.Embedding | _ConvNd) or (part is head and not quantization.head):
            continue
        linear = isinstance(part, nn.Linear) or type(part).__name__ in TRANSPOSED
        for name, weight in part.named_parameters(recurse=False):
            experts = weight.dim() == 3
            if (not experts and (not linear or name != "weight" or quantization.experts)) or id(weight) in tables:
                continue
            packing = quantization.find_packing(path)
            if packing is not None:
                transposed = type(part).__name__ in TRANSPOSED or bool(getattr(part, "is_transposed", False))
                found[f"{path}.{name}"] = _Matrix(packing, transposed, experts)
    return found


def _name_whole(name: str) -> str:
    """The name of the weight of all experts, for that of one: "mlp.experts.3.down_proj" → "mlp.experts.down_proj"."""
    path, _, last = name.rpartition(".")
    whole, _, number = path.rpartition(".")
    return f"{whole}.{last}" if number.isdecimal() else name
