"""The kernels that ONNX Runtime makes of the ops of a session, as far as memory goes: what is fused takes none.

After the fusions that its documentation names (onnxruntime.ai/docs/performance/model-optimizations/
graph-optimizations.html) and onnxruntime/core/optimizer: batch normalization, activations and sums into convolutions,
a bias, a scale or a transpose into a matrix product, GELU and SiLU that are written out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from placewise.model.graph import Graph
from placewise.simulate.in_place import IN_PLACE, VIEWS

_CONVOLUTIONS = frozenset({"Conv"})
_INTO_CONVOLUTIONS = frozenset({"BatchNormalization", "Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"})
_SUMS = frozenset({"Add", "Sum"})
_SCALES = frozenset({"Mul", "Div"})
_WRITTEN_OUT = {"Erf": "Gelu", "Sigmoid": "QuickGelu"}
"""What begins an activation that is written out: x · σ(x), or x and a function of erf x; and its kernel."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: its shape and the bytes of an element; the shape is None where it is open."""

    nbytes: int
    shape: tuple[int, ...] | None
    item: int


@dataclass(slots=True, eq=False)
class Kernel:
    """What runs as one: the op that it began as, its kind, and the values that it reads and makes, by number.

    The first value that it makes may take the place of one of `over`; that of a `view` is the one that it reads. `rank`
    says when it came into the graph: nodes of the file, then what is fused, then what is blocked.
    """

    op: int
    kind: str
    reads: list[int]
    makes: list[int]
    over: tuple[int, ...] = ()
    view: bool = False
    rank: tuple[int, int] = (0, 0)


@dataclass(slots=True, eq=False)
class Session:
    """Kernels in running order over values; `given` values are the caller's, `kept` ones are given back to it."""

    kernels: list[Kernel]
    values: dict[int, Value]
    given: frozenset[int]
    kept: set[int]


def session_of(graph: Graph, ops: Iterable[int]) -> Session:
    """The session that runs these ops of a graph; values are numbered as its tensors are."""
    tensors, inside = graph.tensors, sorted(ops)
    members = frozenset(inside)
    made = {tensor for op in inside for tensor in graph.outputs_of(op)}
    elsewhere = {tensor for tensor in made if not members.issuperset(graph.consumers_of(tensor).tolist())}
    kept = elsewhere | {tensor for tensor in made if tensors.output[tensor]}
    kernels = [_plain(graph, op) for op in inside]
    given = frozenset(tensor for kernel in kernels for tensor in kernel.reads) - made
    session = Session(kernels, {tensor: _value(graph, tensor) for tensor in sorted(given | made)}, given, kept)
    session.kernels = _Fusion(graph, session).kernels()
    return session


def _plain(graph: Graph, op: int) -> Kernel:
    kind, reads = graph.ops.kind[op], graph.inputs_of(op).tolist()
    over = tuple(reads) if kind in IN_PLACE else ()
    return Kernel(op, kind, reads, list(graph.outputs_of(op)), over, kind in VIEWS, (0, op))


def _value(graph: Graph, tensor: int) -> Value:
    shape, nbytes = graph.tensors.shape[tensor], max(int(graph.tensors.bytes[tensor]), 0)
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count <= 0:
        return Value(nbytes, None, 1)
    return Value(nbytes, tuple(map(int, shape)), nbytes // count)


class _Fusion:
    """One pass over the kernels, in which each may become a part of one that stands before it."""

    def __init__(self, graph: Graph, session: Session) -> None:
        self._graph, self._session = graph, session
        self._uses = Counter(value for kernel in session.kernels for value in kernel.reads)
        self._maker: dict[int, Kernel] = {}
        self._turn: dict[Kernel, int] = {}  # of those that are left
        self._numbers = count(graph.n_tensors)

    def kernels(self) -> list[Kernel]:
        for turn, kernel in enumerate(self._session.kernels):
            self._turn[kernel] = turn
            if self._into_matrix_product(kernel) or self._into_convolution(kernel) or self._written_out(kernel):
                del self._turn[kernel]
            else:
                self._maker |= dict.fromkeys(kernel.makes, kernel)
        return sorted(self._turn, key=self._turn.__getitem__)

    def _before(self, value: int) -> Kernel | None:
        """The kernel that makes a value which nobody but one reader wants."""
        alone = self._uses[value] == 1 and value not in self._session.kept
        return self._maker.get(value) if alone else None

    def _absorb(self, kernel: Kernel, part: Kernel) -> bool:
        """`kernel` makes what `part` would make, as a new node of the graph."""
        kernel.makes, kernel.rank = list(part.makes), (1, part.op)
        self._maker |= dict.fromkeys(part.makes, kernel)
        return True

    def _into_matrix_product(self, kernel: Kernel) -> bool:
        """A bias, which makes a Gemm of two dimensions and views of it; a scale; a transpose of what is read."""
        if kernel.kind == "MatMul":
            for row, value in enumerate(kernel.reads):
                before = self._before(value)
                if before is not None and self._swaps(before):
                    del self._turn[before]
                    kernel.reads[row] = before.reads[0]
            return False
        before = self._before(kernel.reads[0]) if len(kernel.reads) == 1 else None
        if before is None or before.kind != "MatMul":
            return False
        if kernel.kind in _SCALES and self._by_a_number(kernel):
            return self._absorb(before, kernel)
        if kernel.kind != "Add" or len(before.reads) != 1:
            return False
        values, flat = self._session.values, next(self._numbers)
        result = values[kernel.makes[0]]
        shape = None if result.shape is None else (math.prod(result.shape[:-1]), *result.shape[-1:])
        values[flat] = Value(result.nbytes, shape, result.item)
        before.kind, before.makes, before.rank = "Gemm", [flat], (1, before.op)
        kernel.kind, kernel.reads, kernel.view, kernel.rank = "Reshape", [flat], True, (1, kernel.op)
        return False

    def _into_convolution(self, kernel: Kernel) -> bool:
        if kernel.kind in _INTO_CONVOLUTIONS and len(kernel.reads) == 1:
            before = self._before(kernel.reads[0])
            return before is not None and before.kind in _CONVOLUTIONS and self._absorb(before, kernel)
        if kernel.kind not in _SUMS or len(kernel.reads) != 2:
            return False
        for value, other in (kernel.reads, kernel.reads[::-1]):
            before, values = self._before(value), self._session.values
            equal = values[value].shape == values[other].shape
            if before is not None and before.kind in _CONVOLUTIONS and not before.over and equal:
                before.reads, before.over = [*before.reads, other], (other,)
                return self._absorb(before, kernel)
        return False

    def _written_out(self, kernel: Kernel) -> bool:
        """Take x · σ(x) as one kernel, and so ½ x (1 + erf(x / √2)), from the division on."""
        if kernel.kind == "Erf":
            scale = self._before(kernel.reads[0]) if kernel.reads else None
            if scale is not None and scale.kind in _SCALES and self._by_a_number(scale):
                del self._turn[scale]
                kernel.reads = list(scale.reads)
            return False
        for value in kernel.reads if kernel.kind in ("Add", "Mul") else ():
            before = self._before(value)
            others = set(kernel.reads) - {value}
            if before is None or before.kind not in (*_WRITTEN_OUT, "Gelu") or not others.issubset(before.reads):
                continue
            if others:
                before.kind, before.over = _WRITTEN_OUT.get(before.kind, before.kind), ()
            elif not self._by_a_number(kernel) or before.kind == "Sigmoid":
                continue
            return self._absorb(before, kernel)
        return False

    def _swaps(self, kernel: Kernel) -> bool:
        """Whether it is a transpose of the last two dimensions."""
        order = self._graph.ops.attributes[kernel.op].get("perm", ()) if kernel.kind == "Transpose" else ()
        rank = len(order)
        return rank > 1 and tuple(order) == (*range(rank - 2), rank - 1, rank - 2)

    def _by_a_number(self, kernel: Kernel) -> bool:
        """Whether what it reads besides one tensor is a single number."""
        weights = self._graph.weights_of(kernel.op).tolist()
        return len(kernel.reads) == 1 and all(math.prod(self._graph.weights.shape[w]) == 1 for w in weights)
