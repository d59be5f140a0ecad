"""How often a loop runs, where that follows from constants: its condition is evaluated round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from placewise.readers.tensorflow.call import Call, Value
from placewise.readers.tensorflow.nodes import Body, Loop, Node, Ref
from placewise.readers.tensorflow.types import Array, array_of
from placewise.readers.tensorflow.values import evaluate_freely

MOST_ROUNDS = 4_096
MOST_STEPS = 200_000


def rounds_of(loop: Loop, state: Sequence[Value]) -> tuple[int | None, int]:
    """The number of rounds from this state, and how many nodes were evaluated to find it.

    None where it depends on data, exceeds `MOST_ROUNDS` or takes more than `MOST_STEPS` evaluations.
    """
    needed, body = _needed(loop)
    cond = _slice(loop.cond, loop.cond.returns[:1])
    wanted = [loop.body.returns[place] for place in needed]
    current, steps = list(state), 0
    for count in range(MOST_ROUNDS + 1):
        steps += len(cond) + len(body)
        verdict = _values(loop.cond, cond, current, loop.cond.returns[:1])[0]
        if verdict is None or verdict.size != 1 or steps > MOST_STEPS:
            break
        if not verdict.reshape(-1)[0]:
            return count, steps
        for place, data in zip(needed, _values(loop.body, body, current, wanted), strict=True):
            current[place] = replace(current[place], data=data)
    return None, steps


def _needed(loop: Loop) -> tuple[list[int], list[Node]]:
    """The places of the state on which the condition depends, and the nodes of the body that make them."""
    wanted: set[int] = set()
    new = _arguments(loop.cond, _slice(loop.cond, loop.cond.returns[:1]), loop.cond.returns[:1])
    while not new <= wanted:
        wanted |= new
        returns = [loop.body.returns[place] for place in sorted(wanted) if place < loop.n_state]
        new = _arguments(loop.body, _slice(loop.body, returns), returns)
    needed = sorted(place for place in wanted if place < loop.n_state)
    return needed, _slice(loop.body, [loop.body.returns[place] for place in needed])


def _slice(body: Body, returns: Sequence[Ref]) -> list[Node]:
    """The nodes of a body that some of its results need, in order."""
    wanted = {ref.node for ref in returns}
    found = []
    for node in reversed(body.nodes):
        if node.name in wanted:
            found.append(node)
            wanted.update(ref.node for ref in node.inputs)
    return found[::-1]


def _arguments(body: Body, nodes: Sequence[Node], returns: Sequence[Ref]) -> set[int]:
    read = {ref.node for node in nodes for ref in node.inputs} | {ref.node for ref in returns}
    return {place for place, name in enumerate(body.args) if name in read}


def _values(body: Body, nodes: Sequence[Node], state: Sequence[Value], wanted: Sequence[Ref]) -> list[Array | None]:
    known: dict[Ref, Value] = {Ref(name, 0): value for name, value in zip(body.args, state, strict=True)}
    for node in nodes:
        for port, data in enumerate(_node_values(node, known)):
            if data is not None:
                known[Ref(node.name, port)] = Value(str(data.dtype), data.shape, data)
    return [known[ref].data if ref in known else None for ref in wanted]


def _node_values(node: Node, known: Mapping[Ref, Value]) -> list[Array | None]:
    if node.op == "Const" and "value" in node.attr:
        return [array_of(node.attr["value"].tensor)]
    args = tuple(known.get(ref, Value("unknown", None)) for ref in node.inputs)
    return evaluate_freely(Call(node, args))
