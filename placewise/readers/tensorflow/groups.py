"""Colocation groups: what the file asks for (``_class``), gradients with their ops, updates with their variables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from placewise.readers.tensorflow.draft import OpRecord
from placewise.readers.tensorflow.nodes import Node

_LOCATED = "loc:@"
_GRADIENT = re.compile(r"^gradients(?:_\d+)?$")
_TAPE = "gradient_tape"


def find_colocation_groups(ops: Sequence[OpRecord]) -> list[int]:
    """A group per op, −1 for an op that is alone.

    Together are: ops that the file wants with the same op or variable; in training graphs also a gradient and its
    op, and all ops that use a variable which a backward op changes: it would have to be copied after every step.
    """
    number = {made.name: op for op, made in enumerate(ops)}
    parent = list(range(len(ops)))

    def root(op: int) -> int:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    def join(first: int, second: int) -> None:
        low, high = sorted((root(first), root(second)))
        parent[high] = low

    anchors: dict[str, int] = {}
    for op, made in enumerate(ops):
        for name in _colocated_names(made.node):
            join(op, number[name] if name in number else anchors.setdefault(name, op))
        if made.backward:
            forward = find_forward_op(made.name, number)
            if forward is not None and forward != op:
                join(op, forward)
    for users in _users_of_trained_variables(ops):
        for user in users[1:]:
            join(users[0], user)
    return _numbered([root(op) for op in range(len(ops))])


def find_forward_op(name: str, number: dict[str, int]) -> int | None:
    """The op whose gradient this one is, by its name: ``gradients/<op>_grad/…`` or ``gradient_tape/<op>/…``."""
    parts = name.split("/")
    start = next((place + 1 for place, part in enumerate(parts[:-1]) if _GRADIENT.match(part) or part == _TAPE), None)
    if start is None:
        return None
    for stop in range(len(parts) - 1, start, -1):
        path = parts[start:stop]
        words = "/".join([*path[:-1], path[-1].removesuffix("_grad")])
        if words in number:
            return number[words]
    return None


def _colocated_names(node: Node) -> list[str]:
    return [text.removeprefix(_LOCATED) for text in node.texts("_class") if text.startswith(_LOCATED)]


def _users_of_trained_variables(ops: Sequence[OpRecord]) -> list[list[int]]:
    """By variable that an update changes, the ops that use it."""
    changed = {weight for made in ops if made.backward and _is_update(made.node.op) for weight in made.weights[:1]}
    users: dict[int, list[int]] = {weight: [] for weight in sorted(changed)}
    for op, made in enumerate(ops):
        for weight in made.weights:
            if weight in users:
                users[weight].append(op)
    return list(users.values())


def _is_update(op: str) -> bool:
    """Whether an op changes the variable that it reads first."""
    return "Apply" in op or op.startswith("Assign")


def _numbered(roots: Sequence[int]) -> list[int]:
    size: dict[int, int] = {}
    for root in roots:
        size[root] = size.get(root, 0) + 1
    group: dict[int, int] = {}
    return [group.setdefault(root, len(group)) if size[root] > 1 else -1 for root in roots]
