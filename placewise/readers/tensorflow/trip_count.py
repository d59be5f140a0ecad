"""The trip count of a loop, if constants determine it: the condition is evaluated iteration by iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from placewise.readers.tensorflow.abstract_values import AbstractValue, NodeCall
from placewise.readers.tensorflow.constant_folding import evaluate_freely
from placewise.readers.tensorflow.nodes import FunctionBody, Loop, Node, OutputRef
from placewise.readers.tensorflow.types import Array, array_of

MAX_ITERATIONS = 4_096
MAX_EVALUATIONS = 200_000


def count_iterations(loop: Loop, state: Sequence[AbstractValue]) -> tuple[int | None, int]:
    """Return the number of iterations from this state, and the number of nodes evaluated.

    The first is None if it depends on data, exceeds `MAX_ITERATIONS` or takes more than `MAX_EVALUATIONS` evaluations.
    """
    needed, body = _find_condition_state(loop)
    cond = _slice(loop.cond, loop.cond.returns[:1])
    results = [loop.body.returns[place] for place in needed]
    current, steps = list(state), 0
    for count in range(MAX_ITERATIONS + 1):
        steps += len(cond) + len(body)
        verdict = _evaluate_nodes(loop.cond, cond, current, loop.cond.returns[:1])[0]
        if verdict is None or verdict.size != 1 or steps > MAX_EVALUATIONS:
            break
        if not verdict.reshape(-1)[0]:
            return count, steps
        for place, data in zip(needed, _evaluate_nodes(loop.body, body, current, results), strict=True):
            current[place] = replace(current[place], data=data)
    return None, steps


def _find_condition_state(loop: Loop) -> tuple[list[int], list[Node]]:
    """The indices of the state on which the condition depends, and the nodes of the body that compute them."""
    places: set[int] = set()
    new = _find_read_arguments(loop.cond, _slice(loop.cond, loop.cond.returns[:1]), loop.cond.returns[:1])
    while not new <= places:
        places |= new
        returns = [loop.body.returns[place] for place in sorted(places) if place < loop.n_state]
        new = _find_read_arguments(loop.body, _slice(loop.body, returns), returns)
    needed = sorted(place for place in places if place < loop.n_state)
    return needed, _slice(loop.body, [loop.body.returns[place] for place in needed])


def _slice(body: FunctionBody, returns: Sequence[OutputRef]) -> list[Node]:
    """The nodes of a body that some of its results depend on, in order."""
    needed = {ref.node for ref in returns}
    nodes = []
    for node in reversed(body.nodes):
        if node.name in needed:
            nodes.append(node)
            needed.update(ref.node for ref in node.inputs)
    return nodes[::-1]


def _find_read_arguments(body: FunctionBody, nodes: Sequence[Node], returns: Sequence[OutputRef]) -> set[int]:
    read = {ref.node for node in nodes for ref in node.inputs} | {ref.node for ref in returns}
    return {place for place, name in enumerate(body.args) if name in read}


def _evaluate_nodes(
    body: FunctionBody, nodes: Sequence[Node], state: Sequence[AbstractValue], results: Sequence[OutputRef]
) -> list[Array | None]:
    known: dict[OutputRef, AbstractValue] = {
        OutputRef(name, 0): value for name, value in zip(body.args, state, strict=True)
    }
    for node in nodes:
        for port, data in enumerate(_evaluate_node(node, known)):
            if data is not None:
                known[OutputRef(node.name, port)] = AbstractValue(str(data.dtype), data.shape, data)
    return [known[ref].data if ref in known else None for ref in results]


def _evaluate_node(node: Node, known: Mapping[OutputRef, AbstractValue]) -> list[Array | None]:
    if node.op == "Const" and "value" in node.attr:
        return [array_of(node.attr["value"].tensor)]
    args = tuple(known.get(ref, AbstractValue("unknown", None)) for ref in node.inputs)
    return evaluate_freely(NodeCall(node, args))
