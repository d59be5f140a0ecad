"""to_training: forward ops, their gradients and the optimizer's updates as one graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from placewise.errors import GraphError, InputError
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph, Source
from placewise.transform.training.flow import GradientFlow, find_loss, find_starts, trace_gradient_flow
from placewise.transform.training.tape import Tape
from placewise.transform.training.values import GraphValue


class Optimizer(NamedTuple):
    """The kind of an optimizer's update ops, and the number of values that it keeps per element of a weight."""

    kind: str
    moments: int


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {
        "adam": Optimizer("optimizer::Adam", 2),
        "momentum": Optimizer("optimizer::Momentum", 1),
        "sgd": Optimizer("optimizer::SGD", 0),
    }
)
"""By user-facing name: Adam (Kingma and Ba 2015) with both moments, SGD with and without momentum."""


def state_bytes_per_element(optimizer: Optimizer, weight: GraphValue, *, master_weights: bool) -> int:
    """Bytes per element kept between steps: moments of at least 32 bits, and a 32-bit copy of 16-bit weights."""
    bits = 8 * bytes_of((1,), weight.dtype)
    wide = 8 if bits == 64 else 4
    return optimizer.moments * wide + (4 if master_weights and bits < 32 else 0)


def count_elements(weight: GraphValue) -> int:
    """Elements of a weight; if a dimension is unknown, derived from its bytes."""
    if min(weight.shape, default=0) >= 0:
        return math.prod(weight.shape)
    return max(weight.nbytes, 0) // max(bytes_of((1,), weight.dtype), 1)


STEP = "training:"
"""Prefix of this transform's name in a source, followed by the optimizer."""


def is_training(graph: Graph) -> bool:
    """Whether the ops of a graph are those of a training step."""
    return bool(graph.ops.backward.any())


def planned_optimizer(source: Source | None) -> str:
    """The optimizer of a training graph, by what its source says; "" for another graph."""
    steps = () if source is None else source.transforms
    return next((step.removeprefix(STEP) for step in steps if step.startswith(STEP)), "")


def to_training(
    graph: Graph, *, optimizer: str = "adam", loss: bool = True, master_weights: bool = True, frozen: Sequence[str] = ()
) -> Graph:
    """Return the graph of one training step of the model with the forward graph `graph` (folded, ideally).

    Every op on a gradient's path gets backward ops in its colocation group. Every weight that trains gets an update
    op in the group of the first op that uses it. The update's state is what the `optimizer` ("adam", "momentum",
    "sgd") keeps, with a 32-bit copy of 16-bit weights unless `master_weights` is false. Updates come last, so all
    gradients of weights stay in memory until then. A tied weight is updated once; other groups that use it send
    their part of its gradient and receive the new weight.

    Gradients start at the model's loss, its first floating output of one element. Without one, an op Loss, with the
    cost of a softmax cross-entropy, reads the outputs that carry a gradient. With `loss` false, the gradients of
    outputs are inputs of the graph instead. `frozen`: regular expressions, searched in the names of weights;
    matching weights do not train.

    Raises GraphError for a graph that trains already, has phases, or has nothing to train; InputError for an unknown
    optimizer.
    """
    if optimizer not in OPTIMIZERS:
        raise InputError(f"there is no optimizer {optimizer!r}", remedy=f"choose one of {', '.join(OPTIMIZERS)}")
    _check_trainable(graph)
    flow = trace_gradient_flow(graph, frozen)
    first, own_loss = find_starts(graph, flow), find_loss(graph, flow) if loss else None
    if not first:
        raise _nothing_to_train(graph, frozen)
    group, users = _assign_groups(graph, flow)
    home = {key: _find_weight(flow.arguments[min(ops)], key, graph) for key, ops in users.items()}
    if not loss:
        outputs = set(np.flatnonzero(graph.tensors.output).tolist())
    else:
        outputs = set() if own_loss is None else {own_loss}
    tape = Tape(graph, flow, group, home, outputs)
    _start_gradients(tape, first, own_loss, loss)
    for op in reversed(range(graph.n_ops)):
        tape.backpropagate(op)
    _add_updates(tape, users, OPTIMIZERS[optimizer], master_weights)
    source = graph.source
    if source is not None:
        patterns = (frozen,) if isinstance(frozen, str) else tuple(frozen)
        options = {**source.options, "frozen": patterns} if patterns else source.options
        source = replace(source, options=options, transforms=(*source.transforms, f"{STEP}{optimizer}"))
    return tape.build(source)


def _check_trainable(graph: Graph) -> None:
    if is_training(graph):
        name = graph.ops.name[int(graph.ops.backward.argmax())]
        raise GraphError(f"the graph trains already: {name!r} is a backward op", remedy="give the forward graph")
    if len(graph.phases) > 1 or any(phase.repeats > 1 for phase in graph.phases):
        names = ", ".join(phase.name for phase in graph.phases)
        raise GraphError(
            f"the graph generates (phases {names}), and a training step does not", remedy="read it with tokens = 0"
        )


def _nothing_to_train(graph: Graph, frozen: Sequence[str]) -> GraphError:
    if not len(graph.weight_edges):
        return GraphError("no op uses a weight: there is nothing to train", remedy="give a model with weights")
    if not graph.tensors.output.any():
        return GraphError("no tensor is an output, so no gradient can start", remedy="mark the outputs of the model")
    if frozen and find_starts(graph, trace_gradient_flow(graph, ())):
        return GraphError(
            "all weights that could be trained are frozen: there is nothing to train", remedy="freeze fewer"
        )
    return GraphError(
        "no floating output depends on a weight that could be trained",
        remedy="give a model whose outputs are scores, not the choices made from them (ArgMax)",
    )


def _assign_groups(graph: Graph, flow: GradientFlow) -> tuple[list[int], dict[int, list[int]]]:
    """The group of each op (new for ops that train or pass a gradient on), and the ops that use each storage."""
    group, storage = graph.ops.group.tolist(), graph.weights.storage.tolist()
    users: dict[int, list[int]] = {}
    for op, arguments in enumerate(flow.arguments):
        for value in arguments.values():
            if value.is_weight:
                users.setdefault(storage[value.number], []).append(op)
    trained = {
        storage[of[at].number]
        for of, wants in zip(flow.arguments, flow.wants, strict=True)
        for at in wants
        if of[at].is_weight
    }
    needed = {op for key in trained for op in users[key]}
    following = max(group, default=-1) + 1
    for op, wants in enumerate(flow.wants):
        if group[op] < 0 and (wants or op in needed):
            group[op] = following
            following += 1
    return group, users


def _find_weight(arguments: dict[int, GraphValue], key: int, graph: Graph) -> GraphValue:
    return next(v for v in arguments.values() if v.is_weight and graph.weights.storage[v.number] == key)


def _start_gradients(tape: Tape, first: list[int], own_loss: int | None, loss: bool) -> None:
    values = {value.number: value for results in tape.flow.results for value in results}
    if own_loss is not None:
        maker = int(tape.graph.tensors.producer[own_loss])
        one = tape.add_for(maker, "ConstantOfShape", {}, (values[own_loss],), {"value": 1.0})
        tape.gradient[own_loss] = one[0]
    elif loss:
        tape.add_loss([values[number] for number in first], max(tape.group, default=-1) + 1)
    else:
        for number in first:
            tape.add_input(values[number])


def _add_updates(tape: Tape, users: dict[int, list[int]], optimizer: Optimizer, master_weights: bool) -> None:
    """Add the updates of all weights with a gradient, in order of first use, and send new values to other groups."""
    graph = tape.graph
    for op, key in sorted((min(users[key]), key) for key in tape.weight_gradient):
        gradient = tape.weight_gradient[key]
        weight = tape.home[key]
        kept = state_bytes_per_element(optimizer, weight, master_weights=master_weights)
        dtype = "float32" if kept and weight.dtype != "float64" else weight.dtype
        name = graph.weights.name[weight.number]
        elsewhere = {tape.group[user]: user for user in reversed(users[key]) if tape.group[user] != tape.group[op]}
        new = tape.add(
            f"{name}/update", optimizer.kind, op, {0: gradient, 1: weight}, (weight,) if elsewhere else (),
            {"kept": kept}, dtype=dtype, state_bytes=kept * count_elements(weight),
        )  # fmt: skip
        for number, user in enumerate(sorted(elsewhere.values())):
            tape.add(f"{name}/renew:{number}", "optimizer::Renew", user, {0: new[0]}, (), {})
