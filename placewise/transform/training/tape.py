"""The training graph under construction: a copy of the forward graph, to which backward ops are added one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from placewise.errors import GraphError
from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph, Source
from placewise.model.tables import Attributes
from placewise.transform.rows import make_unique
from placewise.transform.training.flow import GradientFlow
from placewise.transform.training.rules.table import find_rule
from placewise.transform.training.values import ForwardOp, GraphValue

_IN_TRAINING = {"BatchNormalization": {"training_mode": 1}}
"""Attributes that ops assume in training."""
_WITHOUT_STATE = frozenset(("CacheUpdate",))
"""Kinds that keep no state in training: no tokens are generated, so none are cached."""


class Tape:
    """A builder that holds the forward graph under its original ids, and the gradients known so far.

    `group` [n_ops] is the colocation group of each forward op; `home` maps a storage to the weight whose shape its
    gradient has. Gradients from several ops are added up as they arrive, at the op of the latest one: a partial sum
    crosses to another device once, instead of every summand.
    """

    def __init__(
        self, graph: Graph, flow: GradientFlow, group: list[int], home: Mapping[int, GraphValue], outputs: set[int]
    ) -> None:
        self.graph, self.flow, self.group, self.home = graph, flow, group, home
        self.gradient: dict[int, GraphValue] = {}
        self.weight_gradient: dict[int, GraphValue] = {}
        self._builder = GraphBuilder()
        self._names = set(graph.ops.name)
        self._tensor_names = set(graph.tensors.name)
        self._made = [0] * graph.n_ops
        self._kinds, self._attributes = list(graph.ops.kind), list(graph.ops.attributes)
        self._scopes, self._origins = list(graph.ops.scope), list(graph.ops.origin)
        self._dtypes = [DTYPES[code] for code in graph.ops.dtype.tolist()]
        self._storage: list[int] = graph.weights.storage.tolist()
        self._copy(outputs)

    def build(self, source: Source | None) -> Graph:
        return self._builder.build(source)

    def backpropagate(self, op: int) -> None:
        """Add the ops that compute the gradients of an op's arguments, if its results have any."""
        gradients_in = {
            place: self.gradient.pop(value.number)
            for place, value in enumerate(self.flow.results[op])
            if value.number in self.gradient
        }
        if not gradients_in or not self.flow.wants[op]:
            return
        arguments, wants = self.flow.arguments[op], self.flow.wants[op]
        call = ForwardOp(
            self._kinds[op],
            self._attributes[op],
            arguments,
            self.flow.results[op],
            gradients_in,
            wants,
            partial(self.add_for, op),
        )
        try:
            gradients = find_rule(call.kind).rule(call)
        except (LookupError, ValueError, TypeError):
            raise GraphError(
                f"the arguments and attributes of op {self.graph.ops.name[op]!r} do not fit its kind ({call.kind})",
                remedy="check the model",
            ) from None
        for at, gradient in gradients.items():
            self.accumulate(op, arguments[at], gradient)

    def accumulate(self, op: int, value: GraphValue, gradient: GraphValue) -> None:
        """Add the contribution of op `op` to the gradient of a value."""
        if value.is_weight:
            known, key = self.weight_gradient, self._storage[value.number]
            gradient = self._match_shape(op, gradient, self.home[key])
        else:
            known, key = self.gradient, value.number
        if key in known:
            before = known[key]
            gradient = self.add_for(op, "Add", {0: before, 1: gradient}, (before,), {})[0]
        known[key] = gradient

    def add_for(
        self,
        op: int,
        kind: str,
        arguments: Mapping[int, GraphValue],
        like: Sequence[GraphValue],
        attributes: Attributes,
    ) -> list[GraphValue]:
        """Add a backward op of the forward op `op`, in its group; results have the types of the values `like`."""
        name = f"{self.graph.ops.name[op]}/grad:{self._made[op]}"
        self._made[op] += 1
        return self.add(name, kind, op, arguments, like, attributes)

    def add(
        self,
        name: str,
        kind: str,
        op: int,
        arguments: Mapping[int, GraphValue],
        like: Sequence[GraphValue],
        attributes: Attributes,
        *,
        dtype: str = "",
        state_bytes: int = 0,
    ) -> list[GraphValue]:
        """Add a backward op next to the forward op `op`."""
        name = make_unique(name, self._names)
        number = self._builder.add_op(
            name, kind, scope=self._scopes[op], attributes=attributes, dtype=dtype or self._dtypes[op], backward=True,
            group=self.group[op], state_bytes=state_bytes, origin=self._origins[op],
        )  # fmt: skip
        return self._connect(number, name, arguments, like)

    def add_loss(self, outputs: Sequence[GraphValue], group: int) -> None:
        """Add the op Loss, which reads these outputs, and the op that starts their gradients."""
        name = make_unique("loss", self._names)
        like = GraphValue(False, -1, (), "float32", 4)
        arguments = dict(enumerate(outputs))
        number = self._builder.add_op(name, "Loss", group=group, dtype=outputs[0].dtype)
        self._builder.set_output(self._connect(number, name, arguments, (like,))[0].number)
        first = make_unique(f"{name}/grad:0", self._names)
        layout = {"layout": (1, len(outputs)), "wrt": tuple(arguments)}
        number = self._builder.add_op(
            first, "gradient::Loss", group=group, dtype=outputs[0].dtype, attributes=layout, backward=True
        )
        gradients = self._connect(number, first, {1 + at: value for at, value in arguments.items()}, outputs)
        self.gradient |= {value.number: gradient for value, gradient in zip(outputs, gradients, strict=True)}

    def add_input(self, like: GraphValue) -> None:
        """Add an input of the model: the gradient of an output."""
        name = make_unique(f"{self.graph.tensors.name[like.number]}/grad", self._tensor_names)
        number = self._builder.add_tensor(-1, shape=like.shape, dtype=like.dtype, nbytes=like.nbytes, name=name)
        self.gradient[like.number] = like._replace(number=number)

    def _connect(
        self, op: int, name: str, arguments: Mapping[int, GraphValue], like: Sequence[GraphValue]
    ) -> list[GraphValue]:
        for at, value in arguments.items():
            use = self._builder.use_weight if value.is_weight else self._builder.add_edge
            use(value.number, op, at)
        results = []
        for place, value in enumerate(like):
            tensor = make_unique(f"{name}:{place}", self._tensor_names)
            number = self._builder.add_tensor(
                op, shape=value.shape, dtype=value.dtype, nbytes=value.nbytes, name=tensor
            )
            results.append(value._replace(is_weight=False, number=number))
        return results

    def _match_shape(self, op: int, gradient: GraphValue, like: GraphValue) -> GraphValue:
        """Convert a gradient to the shape of another use of the same storage: transposed, reshaped, or a slice."""
        if gradient.shape == like.shape:
            return gradient
        if gradient.shape == like.shape[::-1]:
            return self.add_for(op, "Transpose", {0: gradient}, (like,), {})[0]
        kind = "Reshape" if gradient.nbytes == like.nbytes else "gradient::Slice"
        return self.add_for(
            op, kind, {0: gradient}, (like,), {} if kind == "Reshape" else {"layout": (1, 0), "wrt": ()}
        )[0]

    def _copy(self, outputs: set[int]) -> None:
        graph, builder = self.graph, self._builder
        state = [
            0 if kind in _WITHOUT_STATE else nbytes
            for kind, nbytes in zip(self._kinds, graph.ops.state_bytes.tolist(), strict=True)
        ]
        for op, name in enumerate(graph.ops.name):
            attributes = self._attributes[op]
            if self._kinds[op] in _IN_TRAINING:
                attributes = {**attributes, **_IN_TRAINING[self._kinds[op]]}
            builder.add_op(
                name, self._kinds[op], scope=self._scopes[op], attributes=attributes, dtype=self._dtypes[op],
                group=self.group[op], state_bytes=state[op], origin=self._origins[op],
            )  # fmt: skip
        tensors, weights = graph.tensors, graph.weights
        columns = zip(
            tensors.name,
            tensors.producer.tolist(),
            tensors.bytes.tolist(),
            tensors.dtype.tolist(),
            tensors.shape,
            strict=True,
        )
        for number, (name, producer, nbytes, dtype, shape) in enumerate(columns):
            builder.add_tensor(
                producer, shape=shape, dtype=DTYPES[dtype], nbytes=nbytes, name=name, output=number in outputs
            )
        for number, name in enumerate(weights.name):
            builder.add_weight(
                name, shape=weights.shape[number], dtype=weights.dtype_name(number), nbytes=int(weights.bytes[number]),
                storage=int(weights.storage[number]), trainable=bool(weights.trainable[number]),
            )  # fmt: skip
        for edges, use in ((graph.edges, builder.add_edge), (graph.weight_edges, builder.use_weight)):
            for row in zip(edges.value.tolist(), edges.consumer.tolist(), edges.position.tolist(), strict=True):
                use(*row)
