"""A traced graph whose weights are packed as its configuration says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn
from torch.nn.modules.conv import _ConvNd

from placewise.model.dtypes import dtype_code
from placewise.model.graph import Graph
from placewise.readers.huggingface.quantization import Packing, Quantization

TRANSPOSED = ("Conv1D",)
"""Linear layers of transformers whose weights are [inputs, outputs]."""
_BOTH = "gate_up"
"""In names of weights that hold two matrices of experts side by side, which checkpoints keep apart."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight that may be packed: the packing (None: none) of each of its matrices, [experts, 1 or 2] of a mixture and
    one elsewhere, the bytes of an entry without one, and whether it is [inputs, outputs].
    """

    packings: tuple[tuple[Packing | None, ...], ...]
    entry_bytes: int
    transposed: bool = False

    @property
    def packing(self) -> Packing | None:
        """The packing of most of the matrices that have one."""
        counts = Counter(packing for row in self.packings for packing in row if packing is not None)
        return counts.most_common(1)[0][0] if counts else None

    def count_bytes(self, shape: tuple[int, ...], expert: int | None = None) -> int:
        """Bytes of a weight [outputs, inputs], of experts [experts, outputs, inputs], or of one expert of these."""
        outputs, inputs = shape[-2:][::-1] if self.transposed else shape[-2:]
        rows = self.packings if expert is None else self.packings[expert : expert + 1]
        outputs //= len(rows[0])
        plain = outputs * inputs * self.entry_bytes
        counts = Counter(packing for row in rows for packing in row)
        return sum(many * (plain if one is None else one.count_bytes(outputs, inputs)) for one, many in counts.items())


def pack_weights(graph: Graph, module: nn.Module, quantization: Quantization) -> tuple[Graph, int]:
    """The graph with packed weights, and how many of them there are; tables that are looked up stay as they are."""
    known, weights = _list_weights(module, quantization), graph.weights
    dtype, nbytes, count = weights.dtype.copy(), weights.bytes.copy(), 0
    for row, name in enumerate(weights.name):
        whole, expert = (name, None) if name in known else _split_expert(name)
        weight = known.get(whole)
        if weight is not None and weight.packing is not None and len(weights.shape[row]) >= 2:
            dtype[row], count = dtype_code(weight.packing.dtype), count + 1
            nbytes[row] = weight.count_bytes(weights.shape[row], expert)
    return replace(graph, weights=replace(weights, dtype=dtype, bytes=nbytes)), count


def _list_weights(module: nn.Module, quantization: Quantization) -> Mapping[str, _Weight]:
    found = dict[str, _Weight]()
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
            packings: tuple[tuple[Packing | None, ...], ...] = ((quantization.find_packing(path),),)
            if experts:
                packings = _pack_experts(quantization, path, name, weight.shape[0])
            transposed = type(part).__name__ in TRANSPOSED or bool(getattr(part, "is_transposed", False))
            found[f"{path}.{name}"] = _Weight(packings, weight.element_size(), transposed)
    return found


def _pack_experts(
    quantization: Quantization, path: str, name: str, count: int
) -> tuple[tuple[Packing | None, ...], ...]:
    """The packings [experts, matrices] of a weight of all experts: rules are for the matrices of each of them."""
    names = (name.replace(_BOTH, "gate"), name.replace(_BOTH, "up")) if _BOTH in name else (name,)
    apart = count if quantization.numbers_experts else 1
    rows = [tuple(quantization.find_packing(f"{path}.{expert}.{one}") for one in names) for expert in range(apart)]
    return tuple(rows * (count // apart))


def _split_expert(name: str) -> tuple[str, int | None]:
    """The name of the weight of all experts, and the number, for that of one.

    >>> _split_expert("mlp.experts.3.down_proj")
    ('mlp.experts.down_proj', 3)
    """
    path, _, last = name.rpartition(".")
    whole, _, number = path.rpartition(".")
    return (f"{whole}.{last}", int(number)) if number.isdecimal() else (name, None)
