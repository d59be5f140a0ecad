"""The functions of a graph. Bodies are built at the first call."""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from placewise.errors import GraphError, ModelFileError
from placewise.model.topology import describe_cycle, find_cycle, sort_topologically
from placewise.readers.tensorflow.nodes import FunctionBody, Node, OutputRef

CALLS = ("PartitionedCall", "StatefulPartitionedCall", "RemoteCall", "SymbolicGradient")
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "Switch": ("output_false", "output_true"),
    "RefSwitch": ("output_false", "output_true"),
    "Merge": ("output", "value_index"),
    "TopKV2": ("values", "indices"),
    "TopK": ("values", "indices"),
    "Unique": ("y", "idx"),
    "UniqueV2": ("y", "idx"),
    "UniqueWithCounts": ("y", "idx", "count"),
    "BroadcastGradientArgs": ("r0", "r1"),
    "SoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "SparseSoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "MaxPoolWithArgmax": ("output", "argmax"),
    "TensorListPopBack": ("output_handle", "tensor"),
    "TensorArrayV3": ("handle", "flow"),
    "TensorArrayGradV3": ("grad_handle", "flow_out"),
    "LSTMBlockCell": ("i", "cs", "f", "o", "ci", "co", "h"),
    "LSTMBlockCellGrad": ("cs_prev_grad", "dicfo", "wci_grad", "wcf_grad", "wco_grad"),
    "BlockLSTM": ("i", "cs", "f", "o", "ci", "co", "h"),
    "BlockLSTMV2": ("i", "cs", "f", "o", "ci", "co", "h"),
    "GRUBlockCell": ("r", "u", "c", "h"),
    "CudnnRNN": ("output", "output_h", "output_c", "reserve_space"),
    "CudnnRNNV2": ("output", "output_h", "output_c", "reserve_space", "host_reserved"),
    "CudnnRNNV3": ("output", "output_h", "output_c", "reserve_space", "host_reserved"),
    "StatelessRandomGetKeyCounter": ("key", "counter"),
    "StatelessRandomGetKeyCounterAlg": ("key", "counter", "alg"),
    "NonMaxSuppressionV4": ("selected_indices", "valid_outputs"),
    "NonMaxSuppressionV5": ("selected_indices", "selected_scores", "valid_outputs"),
    "Svd": ("s", "u", "v"),
    "Qr": ("q", "r"),
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "_FusedBatchNormEx"),
        ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3"),
    ),
    "FusedBatchNormGradV3": (
        "x_backprop", "scale_backprop", "offset_backprop", "reserve_space_4", "reserve_space_5",
    ),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2"),
        ("x_backprop", "scale_backprop", "offset_backprop", "reserve_space_3", "reserve_space_4"),
    ),
}  # fmt: skip
"""Ordered names of the outputs of ops with several outputs: functions refer to outputs by name."""


class Library:
    """The functions of a file by name."""

    def __init__(self, proto: Any) -> None:
        self._functions = {function.signature.name: function for function in proto.function}
        self._bodies: dict[str, FunctionBody] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def body(self, name: str) -> FunctionBody:
        """Return a function's body; raises ModelFileError or GraphError if it is malformed."""
        if name not in self._functions:
            raise ModelFileError(
                f"function {name!r} is called but missing from the file", remedy="export the model again"
            )
        if name not in self._bodies:
            self._bodies[name] = self._build_body(name)
        return self._bodies[name]

    def check_unfolded_size(self, nodes: Iterable[Any], most: int) -> None:
        """Raise ModelFileError if the calls in `nodes`, once inlined, exceed `most` nodes or recurse."""
        callees = {name: Counter(self._called_functions(f.node_def)) for name, f in self._functions.items()}
        try:
            callees_first = list(graphlib.TopologicalSorter(callees).static_order())
        except graphlib.CycleError as error:
            raise ModelFileError(f"function {error.args[1][0]!r} calls itself", remedy="export it again") from None
        size: dict[str, int] = {}
        for name in callees_first:
            inner = sum(count * size[other] for other, count in callees[name].items())
            size[name] = len(self._functions[name].node_def) + inner
        if sum(size[name] for name in self._called_functions(nodes)) > most:
            raise ModelFileError(f"its functions unfold to more than {most:,} nodes", remedy="export it again")

    def _called_functions(self, nodes: Iterable[Any]) -> Iterator[str]:
        for node in nodes:
            name = node.attr["f"].func.name if node.op in CALLS and "f" in node.attr else node.op
            if name in self._functions:
                yield name

    def _build_body(self, name: str) -> FunctionBody:
        function = self._functions[name]
        args = tuple(arg.name for arg in function.signature.input_arg)
        ops = {proto.name: proto.op for proto in function.node_def}
        known = {*ops, *args}
        where = f"function {name!r}"

        def ref(text: str) -> OutputRef:
            producer, _, rest = text.partition(":")
            if producer not in known:
                raise ModelFileError(f"reads {text!r}, which nothing produces", where=where, remedy="export it again")
            if not rest:
                return OutputRef(producer, 0)
            output, _, index = rest.rpartition(":") if ":" in rest else (rest, "", "0")
            return OutputRef(producer, self._port(ops.get(producer, ""), output, index, f"{where}: {text!r}"))

        nodes = [
            Node(
                proto.name,
                proto.op,
                tuple(ref(text) for text in proto.input if not text.startswith("^")),
                tuple(text[1:] for text in proto.input if text.startswith("^")),
                proto.attr,
                proto.device,
            )
            for proto in function.node_def
        ]
        missing = [arg.name for arg in function.signature.output_arg if arg.name not in function.ret]
        if missing:
            raise ModelFileError(f"does not define its result {missing[0]!r}", where=where, remedy="export again")
        returns = tuple(ref(function.ret[arg.name]) for arg in function.signature.output_arg)
        return FunctionBody(name, args, sort_nodes(nodes, args), returns)

    def _port(self, op: str, output: str, index: str, where: str) -> int:
        """The port of element `index` of the output argument `output`."""
        if not index.isdecimal() or len(index) > 6:
            raise ModelFileError("lacks an output number", where=where, remedy="export the model again")
        names = OUTPUTS.get(op, ())
        if op in self._functions:
            names = tuple(arg.name for arg in self._functions[op].signature.output_arg)
        return (names.index(output) if output in names else 0) + int(index)


def sort_nodes(nodes: Sequence[Node], external: Collection[str] = ()) -> tuple[Node, ...]:
    """Sort the nodes topologically, as close to their order as possible. Raises ModelFileError or GraphError."""
    place = {node.name: number for number, node in enumerate(nodes)}
    if len(place) < len(nodes):
        raise ModelFileError("two nodes have the same name", remedy="give every node its own name")
    needs = [_find_dependencies(node, place, external) for node in nodes]
    order = sort_topologically(needs, range(len(nodes)))
    if len(order) < len(nodes):
        stuck = set(range(len(nodes))).difference(order)
        before = {number: next(other for other in needs[number] if other in stuck) for number in sorted(stuck)}
        cycle = find_cycle(before)
        shown = describe_cycle([repr(nodes[number].name) for number in cycle])
        raise GraphError(f"the graph has a cycle: {shown}", remedy="export the model again")
    return tuple(nodes[number] for number in order)


def _find_dependencies(node: Node, place: Mapping[str, int], external: Collection[str]) -> set[int]:
    dependencies = set()
    for name in (*(ref.node for ref in node.inputs), *node.controls):
        if name in place:
            dependencies.add(place[name])
        elif name not in external:
            raise ModelFileError(
                f"reads {name!r}, which no node produces", where=f"node {node.name!r}", remedy="export the model again"
            )
    return dependencies
