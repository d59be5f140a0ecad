"""The kernels that ONNX Runtime creates from the ops of a session, as far as memory goes, in running order.

Fusions follow its documentation (onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html) and
onnxruntime/core/optimizer: batch normalization, activations and sums into convolutions; a bias, a scale or a transpose
into a matrix product; GELU and SiLU that are written out. Intermediate results of a fused kernel take no memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

from placewise.model.graph import Graph
from placewise.simulate.in_place import IN_PLACE, VIEWS

_CONVOLUTIONS = frozenset({"Conv"})
_INTO_CONVOLUTIONS = frozenset({"BatchNormalization", "Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"})
_SUMS = frozenset({"Add", "Sum"})
_SCALES = frozenset({"Mul", "Div"})
_ACTIVATIONS = {"Erf": "Gelu", "Sigmoid": "QuickGelu"}
"""The first op of an activation that is written out (x · σ(x), or x and a function of erf x), and the fused kernel."""


@dataclass(frozen=True, slots=True)
class SessionValue:
    """A tensor: its bytes, its shape (None if it is open), and the bytes of an element."""

    nbytes: int
    shape: tuple[int, ...] | None
    itemsize: int


@dataclass(slots=True, eq=False)
class SessionKernel:
    """One kernel: its first op, its kind, and the numbers of the values that it reads and makes.

    Its first result may overwrite one of `overwrites`; the result of a `view` is the value that it reads. `rank` is
    the order of creation: nodes of the file, then fused kernels, then blocked kernels.
    """

    op: int
    kind: str
    reads: list[int]
    makes: list[int]
    overwrites: tuple[int, ...] = ()
    view: bool = False
    rank: tuple[int, int] = (0, 0)


@dataclass(slots=True, eq=False)
class Session:
    """Kernels in running order over values; the caller provides `inputs` and takes `outputs`."""

    kernels: list[SessionKernel]
    values: dict[int, SessionValue]
    inputs: frozenset[int]
    outputs: set[int]


def build_session(graph: Graph, ops: Iterable[int]) -> Session:
    """The session that runs these ops of a graph; values have the numbers of the graph's tensors."""
    tensors, inside = graph.tensors, sorted(ops)
    members = frozenset(inside)
    made = {tensor for op in inside for tensor in graph.outputs_of(op)}
    used_outside = {tensor for tensor in made if not members.issuperset(graph.consumers_of(tensor).tolist())}
    outputs = used_outside | {tensor for tensor in made if tensors.output[tensor]}
    kernels = [_unfused_kernel(graph, op) for op in inside]
    inputs = frozenset(tensor for kernel in kernels for tensor in kernel.reads) - made
    values = {tensor: _session_value(graph, tensor) for tensor in sorted(inputs | made)}
    session = Session(kernels, values, inputs, outputs)
    session.kernels = _Fusion(graph, session).fuse()
    return session


def order_kernels(session: Session) -> Session:
    """The session with its kernels in the order in which ONNX Runtime runs them.

    A depth-first search from the kernels whose results no other kernel reads, the highest rank first, back through what
    they read, again the highest rank first. As in Graph::ReverseDFSFrom of onnxruntime/core/graph/graph.cc.
    """
    producer = {value: kernel for kernel in session.kernels for value in kernel.makes}
    read = {value for kernel in session.kernels for value in kernel.reads}
    ends = [kernel for kernel in session.kernels if read.isdisjoint(kernel.makes)]
    stack = [(kernel, False) for kernel in _sort_by_rank(ends)]
    seen, order = set[SessionKernel](), list[SessionKernel]()
    while stack:
        kernel, ready = stack.pop()
        if ready:
            order.append(kernel)
        elif kernel not in seen:
            seen.add(kernel)
            sources = {producer[value] for value in kernel.reads if value in producer}
            stack += [(kernel, True), *((other, False) for other in _sort_by_rank(sources - seen))]
    return replace(session, kernels=order)


def _sort_by_rank(kernels: Iterable[SessionKernel]) -> list[SessionKernel]:
    return sorted(kernels, key=lambda kernel: kernel.rank)


def _unfused_kernel(graph: Graph, op: int) -> SessionKernel:
    kind, reads = graph.ops.kind[op], graph.inputs_of(op).tolist()
    overwrites = tuple(reads) if kind in IN_PLACE else ()
    return SessionKernel(op, kind, reads, list(graph.outputs_of(op)), overwrites, kind in VIEWS, (0, op))


def _session_value(graph: Graph, tensor: int) -> SessionValue:
    shape, nbytes = graph.tensors.shape[tensor], max(int(graph.tensors.bytes[tensor]), 0)
    size = math.prod(shape)
    if min(shape, default=0) < 0 or size <= 0:
        return SessionValue(nbytes, None, 1)
    return SessionValue(nbytes, tuple(map(int, shape)), nbytes // size)


class _Fusion:
    """One pass over the kernels, in which each may be fused into one before it."""

    def __init__(self, graph: Graph, session: Session) -> None:
        self._graph, self._session = graph, session
        self._uses = Counter(value for kernel in session.kernels for value in kernel.reads)
        self._producer: dict[int, SessionKernel] = {}
        self._position: dict[SessionKernel, int] = {}  # of the kernels that remain
        self._numbers = count(graph.n_tensors)

    def fuse(self) -> list[SessionKernel]:
        for position, kernel in enumerate(self._session.kernels):
            self._position[kernel] = position
            if self._fuse_into_matmul(kernel) or self._fuse_into_convolution(kernel) or self._fuse_activation(kernel):
                del self._position[kernel]
            else:
                self._producer |= dict.fromkeys(kernel.makes, kernel)
        return sorted(self._position, key=self._position.__getitem__)

    def _exclusive_producer(self, value: int) -> SessionKernel | None:
        """The kernel that makes a value for one reader only."""
        exclusive = self._uses[value] == 1 and value not in self._session.outputs
        return self._producer.get(value) if exclusive else None

    def _absorb(self, kernel: SessionKernel, part: SessionKernel) -> bool:
        """Let `kernel` make the results of `part`, as a new node of the graph."""
        kernel.makes, kernel.rank = list(part.makes), (1, part.op)
        self._producer |= dict.fromkeys(part.makes, kernel)
        return True

    def _fuse_into_matmul(self, kernel: SessionKernel) -> bool:
        """Fuse a scale, a transpose of an operand, or a bias, which makes a two-dimensional Gemm and a view of it."""
        if kernel.kind == "MatMul":
            for row, value in enumerate(kernel.reads):
                source = self._exclusive_producer(value)
                if source is not None and self._swaps_last_axes(source):
                    del self._position[source]
                    kernel.reads[row] = source.reads[0]
            return False
        source = self._exclusive_producer(kernel.reads[0]) if len(kernel.reads) == 1 else None
        if source is None or source.kind != "MatMul":
            return False
        if kernel.kind in _SCALES and self._has_scalar_weights(kernel):
            return self._absorb(source, kernel)
        if kernel.kind != "Add" or len(source.reads) != 1:
            return False
        values, flat = self._session.values, next(self._numbers)
        result = values[kernel.makes[0]]
        shape = None if result.shape is None else (math.prod(result.shape[:-1]), *result.shape[-1:])
        values[flat] = SessionValue(result.nbytes, shape, result.itemsize)
        source.kind, source.makes, source.rank = "Gemm", [flat], (1, source.op)
        kernel.kind, kernel.reads, kernel.view, kernel.rank = "Reshape", [flat], True, (1, kernel.op)
        return False

    def _fuse_into_convolution(self, kernel: SessionKernel) -> bool:
        if kernel.kind in _INTO_CONVOLUTIONS and len(kernel.reads) == 1:
            source = self._exclusive_producer(kernel.reads[0])
            return source is not None and source.kind in _CONVOLUTIONS and self._absorb(source, kernel)
        if kernel.kind not in _SUMS or len(kernel.reads) != 2:
            return False
        for value, other in (kernel.reads, kernel.reads[::-1]):
            source, values = self._exclusive_producer(value), self._session.values
            equal = values[value].shape == values[other].shape
            if source is not None and source.kind in _CONVOLUTIONS and not source.overwrites and equal:
                source.reads, source.overwrites = [*source.reads, other], (other,)
                return self._absorb(source, kernel)
        return False

    def _fuse_activation(self, kernel: SessionKernel) -> bool:
        """Fuse x · σ(x), and ½ x (1 + erf(x / √2)) from the division on, into one kernel."""
        if kernel.kind == "Erf":
            scale = self._exclusive_producer(kernel.reads[0]) if kernel.reads else None
            if scale is not None and scale.kind in _SCALES and self._has_scalar_weights(scale):
                del self._position[scale]
                kernel.reads = list(scale.reads)
            return False
        for value in kernel.reads if kernel.kind in ("Add", "Mul") else ():
            source = self._exclusive_producer(value)
            others = set(kernel.reads) - {value}
            if source is None or source.kind not in (*_ACTIVATIONS, "Gelu") or not others.issubset(source.reads):
                continue
            if others:
                source.kind, source.overwrites = _ACTIVATIONS.get(source.kind, source.kind), ()
            elif not self._has_scalar_weights(kernel) or source.kind == "Sigmoid":
                continue
            return self._absorb(source, kernel)
        return False

    def _swaps_last_axes(self, kernel: SessionKernel) -> bool:
        """Whether it is a transpose of the last two axes."""
        order = self._graph.ops.attributes[kernel.op].get("perm", ()) if kernel.kind == "Transpose" else ()
        rank = len(order)
        return rank > 1 and tuple(order) == (*range(rank - 2), rank - 1, rank - 2)

    def _has_scalar_weights(self, kernel: SessionKernel) -> bool:
        """Whether it reads one tensor, and besides it only single numbers."""
        weights = self._graph.weights_of(kernel.op).tolist()
        return len(kernel.reads) == 1 and all(math.prod(self._graph.weights.shape[w]) == 1 for w in weights)
