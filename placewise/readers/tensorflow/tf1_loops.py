"""TF1 loops, which are cycles of Enter, Merge, Switch and NextIteration, as loops with a condition and a body.

The form is that of tf.while_loop (Yu et al., Dynamic Control Flow in Large-Scale Machine Learning, EuroSys 2018):
each loop variable enters, merges with its next value, and exits at a switch that the condition controls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from placewise.errors import ModelFileError
from placewise.readers.tensorflow.library import sort_nodes
from placewise.readers.tensorflow.nodes import FunctionBody, Loop, Node, OutputRef

_ENTERS, _MERGES, _NEXTS = ("Enter", "RefEnter"), ("Merge", "RefMerge"), ("NextIteration", "RefNextIteration")
_EXITS, _SWITCHES = ("Exit", "RefExit"), ("Switch", "RefSwitch")
DEEPEST_FRAME = 16
Path = tuple[str, ...]


def collapse_loops(nodes: Sequence[Node]) -> tuple[list[Node], dict[OutputRef, OutputRef]]:
    """Replace each frame by a loop; return the nodes, and the new references of the loops' results.

    Raises ModelFileError for an incomplete frame.
    """
    if not any(node.op in _ENTERS for node in nodes):
        return list(nodes), {}
    frames = _LoopCollapser({node.name: node for node in nodes})
    path_of = _find_frames(nodes)
    members: dict[Path, list[Node]] = {}
    for node in nodes:
        members.setdefault(path_of[node.name], []).append(node)
    for path in sorted(members, key=len, reverse=True):
        if path:
            loop = frames.collapse(path, members[path], nodes)
            members.setdefault(path[:-1], []).append(loop)
    outside = [frames.resolve(node) for node in members.get((), []) if node.op not in _EXITS]
    return outside, frames.renamed


def _find_frames(nodes: Sequence[Node]) -> dict[str, Path]:
    """The frames around each node, outermost first; an Enter is inside its frame, an Exit outside."""
    nexts = {node.name for node in nodes if node.op in _NEXTS}
    forward = [
        replace(node, inputs=tuple(ref for ref in node.inputs if ref.node not in nexts)) if node.op in _MERGES else node
        for node in nodes
    ]
    frames: dict[str, Path] = {}
    for node in sort_nodes(forward):
        around = max((frames[name] for name in _predecessors(node)), key=len, default=())
        if node.op in _ENTERS:
            around = (*around, node.text("frame_name"))
        elif node.op in _EXITS:
            around = around[:-1]
        if len(around) > DEEPEST_FRAME:
            raise ModelFileError(f"loops are nested more than {DEEPEST_FRAME} deep", remedy="export the model again")
        frames[node.name] = around
    return frames


def _predecessors(node: Node) -> Iterable[str]:
    yield from (ref.node for ref in node.inputs)
    yield from node.controls


@dataclass(frozen=True, slots=True)
class _LoopVariable:
    """A loop variable: how it enters, where it merges, its switch and its next value."""

    enter: Node
    merge: Node
    switch: str
    following: Node


class _LoopCollapser:
    """Collapses loops; `renamed` maps references to results and values of collapsed loops."""

    def __init__(self, by_name: Mapping[str, Node]) -> None:
        self.by_name = by_name
        self.renamed: dict[OutputRef, OutputRef] = {}
        self._controls: dict[str, str] = {}

    def resolve(self, node: Node) -> Node:
        """Redirect a node's inputs from frames to the loops that replace them."""
        inputs = tuple(self.renamed.get(ref, ref) for ref in node.inputs)
        controls = tuple(dict.fromkeys(self._controls.get(name, name) for name in node.controls))
        return (
            node
            if (inputs, controls) == (node.inputs, node.controls)
            else replace(node, inputs=inputs, controls=controls)
        )

    def collapse(self, path: Path, members: Sequence[Node], nodes: Sequence[Node]) -> Node:
        """Build the loop that replaces the frame with these members."""
        name = "/".join(path)
        variables = self._variables(name, members)
        merged = {variable.enter.name for variable in variables}
        fixed = [node for node in members if node.op in _ENTERS and node.name not in merged]
        args = (*(variable.merge.name for variable in variables), *(node.name for node in fixed))
        for variable in variables:
            self.renamed[OutputRef(variable.switch, 1)] = OutputRef(variable.merge.name, 0)
        throw = next(node for node in members if node.op == "LoopCond")
        edge = {variable.switch for variable in variables}
        inner = (node for node in members if node.name not in edge and node.op not in (*_ENTERS, *_NEXTS, "LoopCond"))
        kept = {node.name: self.resolve(node) for node in inner}
        returns = [self.renamed.get(v.following.inputs[0], v.following.inputs[0]) for v in variables]
        controls = [control for v in variables for control in v.following.controls]
        verdict = self.renamed.get(throw.inputs[0], throw.inputs[0])
        loop = Loop(
            _build_body(f"{name}:cond", args, kept, [verdict], ()),
            _build_body(f"{name}:body", args, kept, returns, controls),
            len(variables),
        )
        enters = [*(variable.enter for variable in variables), *fixed]
        free = name if name not in self.by_name else f"{name}:loop"
        self._rename_exits(free, variables, nodes)
        return Node(
            free,
            "While",
            tuple(self.renamed.get(enter.inputs[0], enter.inputs[0]) for enter in enters),
            tuple(dict.fromkeys(self._controls.get(c, c) for enter in enters for c in enter.controls)),
            origin=throw.origin,
            loop=loop,
        )

    def _variables(self, name: str, members: Sequence[Node]) -> list[_LoopVariable]:
        throws = [node for node in members if node.op == "LoopCond"]
        switches = {node.inputs[0].node: node.name for node in members if node.op in _SWITCHES and len(node.inputs) > 1}
        if len(throws) != 1 or not throws[0].inputs:
            raise ModelFileError(f"loop {name!r} has {len(throws)} conditions", remedy="export the model again")
        variables = []
        for node in members:
            before = [self.by_name.get(ref.node) for ref in node.inputs] if node.op in _MERGES else []
            enter = next((other for other in before if other is not None and other.op in _ENTERS), None)
            following = next((other for other in before if other is not None and other.op in _NEXTS), None)
            if enter is None and following is None:
                continue
            switch = switches.get(node.name)
            if enter is None or following is None or switch is None or not enter.inputs or not following.inputs:
                raise ModelFileError(f"variable {node.name!r} of loop {name!r} is incomplete", remedy="export it again")
            variables.append(_LoopVariable(enter, node, switch, following))
        return variables

    def _rename_exits(self, loop: str, variables: Sequence[_LoopVariable], nodes: Sequence[Node]) -> None:
        place = {variable.switch: number for number, variable in enumerate(variables)}
        for node in nodes:
            left = self._origin(node) if node.op in _EXITS else ""
            if left in place:
                self.renamed[OutputRef(node.name, 0)] = OutputRef(loop, place[left])
                self._controls[node.name] = loop

    def _origin(self, node: Node) -> str:
        """The switch from which a value exits, possibly through identities."""
        while node.inputs and (before := self.by_name.get(node.inputs[0].node)) is not None:
            if before.op not in ("Identity", "RefIdentity"):
                return before.name
            node = before
        return ""


def _build_body(
    name: str, args: tuple[str, ...], inside: Mapping[str, Node], returns: Sequence[OutputRef], controls: Sequence[str]
) -> FunctionBody:
    """The nodes that `returns` and `controls` depend on, starting from the arguments."""
    needed: dict[str, Node] = {}
    stack = [*(ref.node for ref in returns), *controls]
    while stack:
        current = stack.pop()
        if current in args or current in needed:
            continue
        node = inside.get(current)
        if node is None:
            continue
        needed[current] = node
        stack += _predecessors(node)
    kept = [
        replace(node, controls=tuple(control for control in node.controls if control in needed))
        for node in inside.values()
        if node.name in needed
    ]
    return FunctionBody(name, args, sort_nodes(kept, args), tuple(returns))
