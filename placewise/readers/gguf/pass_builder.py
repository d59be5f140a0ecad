"""Adds ops to a graph whose weights are tensors of a GGUF file.

Products are computed in float16 and results are float32, as in llama.cpp; a quantized weight counts with its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from placewise._util.llama_defaults import MICRO_BATCH
from placewise.errors import ModelFileError
from placewise.model.builder import GraphBuilder
from placewise.readers.gguf.header import Tensor
from placewise.readers.gguf.types import element_type, find_type

ARITHMETIC, ACTIVATION = "float16", "float32"
TYPES = "types"
"""The attribute of an op that has the types of ggml of its weights, in their order."""
LOOKUP = "Gather"
"""The kind of an op that looks up rows of a table, its first argument."""
SECOND = "decode/"
"""Prefix of the names of ops in the second pass."""
Part = Mapping[str, Tensor]
"""The tensors of one projection or norm, by the end of their names: "weight", "bias"."""
NO_PART: Part = {}
NEW_GROUP = -1
"""Of an op that shares no colocation group with others of its pass."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: `batch` sequences of `tokens` new positions, of which attention sees `visible`.

    The cache has `capacity` positions for `sequences` batches, of entries of the types `cache` (keys, values).
    A prompt is read by `micro_batch` tokens at a time.
    """

    batch: int
    tokens: int
    visible: int
    capacity: int
    sequences: int
    cache: tuple[str, str]
    number: int = 0
    micro_batch: int = MICRO_BATCH

    @property
    def rows(self) -> int:
        return self.batch * self.tokens


@dataclass(slots=True)
class PassBuilder:
    """The graph so far; equal ops of both passes share a colocation group, by their order in the pass.

    `caches` has the keys and values of a layer in this pass. `homes` has an op of a layer that costs nothing.
    """

    now: Pass
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    weights: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    caches: dict[int, tuple[int, int]] = field(default_factory=dict)
    homes: dict[int, int] = field(default_factory=dict)

    def begin(self, now: Pass) -> None:
        """Begin with the first op of another pass."""
        self.now, self.groups = now, 0

    def op(
        self,
        name: str,
        kind: str,
        scope: str,
        inputs: Sequence[int],
        shape: tuple[int, ...],
        *,
        weights: Iterable[Tensor] = (),
        attributes: Mapping[str, Any] | None = None,
        group: int = NEW_GROUP,
        state_bytes: int = 0,
        dtype: str = ACTIVATION,
    ) -> int:
        """Add an op; return its result. Its group is the next one unless a `group` is given."""
        number = self.add(name, kind, scope, inputs, weights, attributes, group, state_bytes)
        return self.result(number, name, shape, dtype)

    def add(
        self,
        name: str,
        kind: str,
        scope: str,
        inputs: Sequence[int],
        weights: Iterable[Tensor] = (),
        attributes: Mapping[str, Any] | None = None,
        group: int = NEW_GROUP,
        state_bytes: int = 0,
    ) -> int:
        """Add an op without results; return it."""
        if group < 0:
            group, self.groups = self.groups, self.groups + 1
        weights = tuple(weights)
        known = dict(attributes or {})
        if weights:
            known[TYPES] = tuple(weight.type for weight in weights)
        op = self.builder.add_op(
            self.named(name), kind, scope=scope, attributes=known, dtype=ARITHMETIC, group=group,
            state_bytes=0 if self.now.number else state_bytes, origin=(self.builder.n_ops,), phase=self.now.number,
        )  # fmt: skip
        tables = weights if kind == LOOKUP else ()
        for table in tables:
            self.builder.use_weight(self.weight(table), op)
        for tensor in inputs:
            self.builder.add_edge(tensor, op)
        for weight in weights[len(tables) :]:
            self.builder.use_weight(self.weight(weight), op)
        return op

    def result(self, op: int, name: str, shape: tuple[int, ...], dtype: str = ACTIVATION, *, view: bool = False) -> int:
        """Add a result of an op; a `view` has a shape and no bytes."""
        nbytes = 0 if view else None
        return self.builder.add_tensor(op, shape=shape, dtype=dtype, nbytes=nbytes, name=self.named(name))

    def named(self, name: str) -> str:
        return f"{SECOND}{name}" if self.now.number else name

    def weight(self, tensor: Tensor) -> int:
        """The weight of the graph for a tensor of the file: one for both passes."""
        if tensor.name not in self.weights:
            self.weights[tensor.name] = self.builder.add_weight(
                tensor.name, shape=tensor.shape, dtype=element_type(tensor.type), nbytes=tensor.nbytes
            )
        return self.weights[tensor.name]

    def view(self, name: str, kind: str, scope: str, inputs: Sequence[int], shape: tuple[int, ...]) -> int:
        """A result that is the input in another shape, or a part of it: it moves nothing."""
        return self.op(name, kind, scope, inputs, shape, attributes={"view": 1})

    def product(self, name: str, part: Part, hidden: int, rows: int, columns: int = 0) -> int:
        """Rows times a matrix [outputs, inputs] with its bias. `columns`: outputs, if not those of the matrix."""
        matrix = part["weight"]
        if len(matrix.shape) < 2:
            raise ModelFileError(f"the tensor {matrix.name!r} is no matrix")
        outputs = columns or math.prod(matrix.shape[:-1])
        return self.op(name, "Gemm", name, [hidden], (rows, outputs), weights=part.values(), attributes={"transB": 1})

    def norm(self, name: str, part: Part, hidden: int, shape: tuple[int, ...]) -> int:
        """A norm, of the kind that its tensors tell; the input itself where there is none."""
        if not part:
            return hidden
        kind = "LayerNormalization" if "bias" in part else "RMSNormalization"
        return self.op(name, kind, name, [hidden], shape, weights=part.values())


def cache_bytes(entries: int, name: str) -> int:
    """Bytes of so many entries of a cache of a type."""
    kind = find_type(name)
    return -(-entries // kind.block) * kind.block_bytes
