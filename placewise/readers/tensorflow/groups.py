"""Colocation groups: those in the file (``_class``), gradients with their ops, updates with their variables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from placewise.model.disjoint_sets import DisjointSets
from placewise.readers.tensorflow.draft import OpRecord
from placewise.readers.tensorflow.nodes import Node

_LOCATED = "loc:@"
_GRADIENT = re.compile(r"^gradients(?:_\d+)?$")
_TAPE = "gradient_tape"


def find_colocation_groups(ops: Sequence[OpRecord]) -> list[int]:
    """Return the group of each op, −1 for ops without one.

    Grouped are ops that the file colocates with the same op or variable. In training graphs, a gradient joins its
    forward op. All ops that use a variable which a backward op updates form one group: otherwise every step would copy
    the variable.
    """
    number = {record.name: op for op, record in enumerate(ops)}
    sets = DisjointSets(len(ops))
    anchors: dict[str, int] = {}
    for op, record in enumerate(ops):
        for name in _colocated_names(record.node):
            sets.join(op, number[name] if name in number else anchors.setdefault(name, op))
        if record.backward:
            forward = find_forward_op(record.name, number)
            if forward is not None and forward != op:
                sets.join(op, forward)
    for users in _users_of_trained_variables(ops):
        for user in users[1:]:
            sets.join(users[0], user)
    return sets.groups()


def find_forward_op(name: str, number: dict[str, int]) -> int | None:
    """Find the op of a gradient by its name: ``gradients/<op>_grad/…`` or ``gradient_tape/<op>/…``."""
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
    """For each variable that an update changes, the ops that use it."""
    updated = {
        weight for record in ops if record.backward and _is_update(record.node.op) for weight in record.weights[:1]
    }
    users: dict[int, list[int]] = {weight: [] for weight in sorted(updated)}
    for op, record in enumerate(ops):
        for weight in record.weights:
            if weight in users:
                users[weight].append(op)
    return list(users.values())


def _is_update(op: str) -> bool:
    """Whether an op updates the variable that is its first argument."""
    return "Apply" in op or op.startswith("Assign")
