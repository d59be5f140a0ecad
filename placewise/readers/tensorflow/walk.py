"""The walk over a graph's nodes: every node becomes an op, an input or a weight; calls and loops are written out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from placewise.errors import ModelFileError
from placewise.readers.tensorflow.call import Call, Type, Value
from placewise.readers.tensorflow.draft import Draft
from placewise.readers.tensorflow.infer import RULES, types_of
from placewise.readers.tensorflow.inputs import Dims, input_types
from placewise.readers.tensorflow.kinds import DOMAIN, kind_of
from placewise.readers.tensorflow.library import CALLS, Library
from placewise.readers.tensorflow.list_elements import elements_of, results_without_op
from placewise.readers.tensorflow.lists import HANDLE, MEASURES
from placewise.readers.tensorflow.nodes import Body, Loop, Node
from placewise.readers.tensorflow.packing import opened, packed, solid
from placewise.readers.tensorflow.rounds import rounds_of
from placewise.readers.tensorflow.types import array_of, dtype_of, shape_of
from placewise.readers.tensorflow.values import evaluate

MOST_UNROLLED = 100_000
"""Nodes that all rounds of one loop may come to; longer loops stay one op."""
DEEPEST_CALL = 64
MOST_NODES = 500_000
"""Functions and rounds of loops written out."""
WIDEST_GATE = 16
"""Ops that stand for a node which only gathers them; one that gathers more is an op, so that edges do not multiply."""
MOST_WAITS = 4
"""Ops that whoever reads an identity waits for; an identity that waits for more is an op that does so itself."""
INPUTS = ("Placeholder", "PlaceholderV2", "IteratorGetNext", "IteratorGetNextSync", "QueueDequeueV2",
          "QueueDequeueManyV2", "QueueDequeueUpToV2", "OneShotIteratorGetNext", "_Arg")  # fmt: skip
VARIABLES = ("Variable", "VariableV2", "VarHandleOp", "TemporaryVariable", "_VarHandlesOp")
IN_PLACE = ("Assign", "AssignAdd", "AssignSub", "ApplyGradientDescent", "ApplyMomentum", "ApplyAdam", "ApplyRMSProp",
            "ApplyAdagrad", "ApplyFtrl", "ScatterUpdate", "ScatterAdd", "ScatterSub", "SparseApplyAdagrad",
            "SparseApplyMomentum", "SparseApplyGradientDescent")  # fmt: skip
"""Ops whose result is the variable that they change."""
_MAKES_HANDLE = re.compile(r"(Handle|Iterator|Table|Stack|Queue|Reader|Barrier|Mutex)(Op)?(V\d)?$|Dataset")
_STACK = ("Stack", "StackV2", "StackPush", "StackPushV2", "StackPop", "StackPopV2")
_NO_RESULT = re.compile(
    r"NoOp|Assert|(Resource(Sparse)?(Apply|Scatter)|Assign\w*VariableOp|Save|Delete|DestroyResource|Write\w*Summary).*"
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A node on the way: its body, what stands before its name, the ops to wait for, and how many outputs are read.

    `ports` is −1 where nobody reads it nor waits for it.
    """

    call: Call
    body: Body
    path: str
    after: tuple[int, ...]
    ports: int
    depth: int


_Made = tuple[list[Value], tuple[int, ...]]
"""The results of a node, and the ops that must have run before what waits for the node."""


class Walk:
    """Adds to a draft what bodies say. `notes` counts what is worth a warning.

    Ops whose results are known numbers are constants in a training graph (where folding may not look behind
    weights), in rounds of loops, and where ONNX has no such op.
    """

    def __init__(self, library: Library, dims: Dims, *, training: bool) -> None:
        self.draft, self.library, self.dims, self.training = Draft(), library, dims, training
        self.notes: Counter[str] = Counter()
        self._variables: dict[str, Value] = {}
        self._constants: dict[tuple[str, str], Value] = {}
        self._stacks: dict[int, list[Value]] = {}
        self._ports: dict[int, dict[str, int]] = {}
        self._bodies: list[Body] = []
        self._visited = 0

    def whole(self, body: Body, *, strict: bool) -> list[Value]:
        """The results of a file's graph; unless `strict`, those that do not exist are left out."""
        self.draft.reserve([node.name for node in body.nodes])
        env, _ = self._walked(body, (), "", (), 0)
        returns = (ref for ref in body.returns if strict or ref.port < len(env.get(ref.node, ())))
        return [_looked_up(env, body.name, ref.node, ref.port) for ref in returns]

    def run(
        self, body: Body, args: Sequence[Value], *, path: str, after: tuple[int, ...], depth: int
    ) -> tuple[list[Value], tuple[int, ...]]:
        """What a body gives back for these arguments, and the ops to wait for."""
        if depth > DEEPEST_CALL:
            raise ModelFileError(f"calls are nested more than {DEEPEST_CALL} deep", remedy="export the model again")
        env, ends = self._walked(body, args, path, after, depth)
        returns = [_looked_up(env, body.name, ref.node, ref.port) for ref in body.returns]
        made = [value.maker for value in returns]
        effects = [op for node in body.nodes if has_no_result(node.op) for op in ends.get(node.name, ())]
        return returns, tuple(op for op in dict.fromkeys((*made, *effects)) if op >= 0)

    def _walked(
        self, body: Body, args: Sequence[Value], path: str, after: tuple[int, ...], depth: int
    ) -> tuple[dict[str, list[Value]], dict[str, tuple[int, ...]]]:
        """All values of a body by node, and the ops that stand for each node's end."""
        env = {name: [value] for name, value in zip(body.args, args, strict=False)}
        ends: dict[str, tuple[int, ...]] = {}
        ports = self._ports_of(body)
        for node in body.nodes:
            self._visited += 1
            if self._visited > MOST_NODES:
                raise ModelFileError(f"it unfolds to more than {MOST_NODES:,} nodes", remedy="export a smaller part")
            given = tuple(_looked_up(env, node.name, ref.node, ref.port) for ref in node.inputs)
            before = [op for name in node.controls for op in ends.get(name, ())]
            before += [op for value in given for op in value.after]
            waits = tuple(dict.fromkeys((*after, *before)))
            step = _Step(Call(node, given), body, path, waits, ports.get(node.name, -1), depth)
            env[node.name], ends[node.name] = self._visit(step)
        return env, ends

    def _visit(self, step: _Step) -> _Made:
        node = step.call.node
        if node.op == "Const":
            return [self._constant(step)], ()
        if node.op in VARIABLES:
            return [self._variable(node)], ()
        if node.op in INPUTS:
            self._refuse_captured(node)
            types = input_types(node, self.dims)
            names = [
                f"{step.path}{node.name}:{port}" if port else f"{step.path}{node.name}" for port in range(len(types))
            ]
            return [self.draft.input(name, kind) for name, kind in zip(names, types, strict=True)], ()
        if node.op in CALLS or node.op in self.library:
            name = node.function("f") if node.op in CALLS else node.op
            return self._call(step, name)
        if node.op in ("If", "StatelessIf"):
            return self._branch(step)
        if node.loop is not None:
            return self._loop(step, node.loop)
        if node.op in ("While", "StatelessWhile"):
            cond, body = (self.library.body(node.function(name)) for name in ("cond", "body"))
            return self._loop(step, Loop(cond, body, len(body.returns)))
        if node.op in ("NoOp", "ControlTrigger"):
            if len(step.after) <= WIDEST_GATE or step.ports < 0:
                return [], step.after
            return [], (self.draft.op(step.call, (), path=step.path, after=step.after)[0],)
        if node.op in _STACK:
            return self._stack(step)
        step = replace(step, call=opened(self.draft, step.call, path=step.path))
        found = results_without_op(step.call)
        if found is not None:
            return [value if value.is_list else replace(value, after=step.after) for value in found], step.after
        if node.op in ("TensorListStack", "TensorArrayGatherV3"):
            return self._stacked(step)
        if _only_passes(step.call, step.ports):
            return self._plain(replace(step, call=Call(replace(node, op="Identity"), step.call.args[:1])))
        return self._plain(step)

    def _refuse_captured(self, node: Node) -> None:
        if node.op == "Placeholder" and node.is_handle("dtype"):
            raise ModelFileError(
                f"{node.name!r} stands for a variable that is not in the file, so its size is unknown",
                remedy="save the model (tf.saved_model.save), or freeze it (convert_variables_to_constants_v2)",
            )

    def _stacked(self, step: _Step) -> _Made:
        """The elements of a list as one tensor."""
        call, flow = step.call, 0 if step.call.node.op == "TensorListStack" else 2
        items = elements_of(call.args[flow]) if flow < len(call.args) else []
        if not items:
            return self._plain(step)
        types = types_of(call, 1)
        number, values = packed(self.draft, call.node, call.args[flow], types, path=step.path, after=step.after)
        return values, (number,)

    def _plain(self, step: _Step, *, more: Sequence[int] = (), count: int = 0) -> _Made:
        """An ordinary op."""
        if step.call.node.op not in MEASURES:
            step = replace(step, call=solid(self.draft, step.call, path=step.path, after=step.after))
        call, op = step.call, step.call.node.op
        if op in ("Merge", "RefMerge"):
            self.notes["conditions in the style of TF1 count with both their sides"] += 1
        kind, types = "", [HANDLE]
        if has_no_result(op) or op in IN_PLACE:
            types = []
        elif op in RULES or not _MAKES_HANDLE.search(op):
            types = types_of(call, max(step.ports, count, 1))
        data = evaluate(call, types)
        told = types and all(value is not None for value in data)
        if told and (self.training or step.path or kind_of(op).startswith(DOMAIN)):
            kind = "Constant"
            types = [
                Type(made.dtype, value.shape) for made, value in zip(types, data, strict=True) if value is not None
            ]
        passes = kind_of(op) == "Identity" and len(call.args) > 0 and len(step.after) <= MOST_WAITS
        after = () if passes else step.after
        number, values = self.draft.op(call, types, path=step.path, kind=kind, after=after, data=data, more=more)
        if op in IN_PLACE:
            values = [replace(call.args[0], data=None, after=(number,))] if call.args else []
        if kind == "Constant":
            return values, ()
        if passes:  # who waits for a view waits for what it shows
            shown = call.args[0]
            ends = step.after if shown.maker < 0 else (*step.after, shown.maker)
            last = replace(values[0], after=step.after, maker=shown.maker, shows=shown.variable)
            last = replace(last, of_gradient=shown.of_gradient)
            return [last, *values[1:]], ends
        return values, (number,)

    def _constant(self, step: _Step) -> Value:
        node, key = step.call.node, (step.body.name, step.call.node.name)
        if key not in self._constants:
            tensor = node.attr["value"].tensor if "value" in node.attr else None
            if tensor is None:
                raise ModelFileError(f"constant {node.name!r} has no value", remedy="export the model again")
            dtype, shape = dtype_of(tensor.dtype), shape_of(tensor.tensor_shape)
            weight = self.draft.weight(node.name, dtype, shape)
            self._constants[key] = Value(dtype, shape, array_of(tensor), weight=weight)
        return self._constants[key]

    def _variable(self, node: Node) -> Value:
        """A variable; those that share a name are one."""
        name = node.text("shared_name") or node.name
        if name not in self._variables:
            dtype, shape = node.dtype("dtype"), node.shape("shape")
            if shape is None or min(shape, default=0) < 0:
                self.notes[f"variables without a whole shape count as empty (first: {name!r})"] += 1
            handle = node.op == "VarHandleOp"
            self._variables[name] = Value(dtype, shape, weight=self.draft.weight(name, dtype, shape), handle=handle)
        return self._variables[name]

    def _call(self, step: _Step, name: str) -> _Made:
        return self.run(self.library.body(name), step.call.args, path=step.path, after=step.after, depth=step.depth + 1)

    def _branch(self, step: _Step) -> _Made:
        """The branch that a known condition picks; else one op that holds the constants of both."""
        node, data = step.call.node, step.call.args[0].data if step.call.args else None
        names = [node.function("then_branch"), node.function("else_branch")]
        if data is not None and data.size == 1:
            name = names[0] if data.reshape(-1)[0] else names[1]
            inner = replace(step, call=replace(step.call, args=step.call.args[1:]))
            return self._call(inner, name)
        bodies = [self.library.body(name) for name in names]
        self.notes["conditions on data stay one op each, without the arithmetic inside"] += 1
        return self._plain(step, more=self._held(bodies, step.depth), count=len(bodies[0].returns))

    def _loop(self, step: _Step, loop: Loop) -> _Made:
        """Round after round, where their number is known; else one op that holds the constants inside."""
        args, node = step.call.args, step.call.node
        if len(args) != len(loop.body.args) or len(args) != len(loop.cond.args):
            raise ModelFileError(f"loop {node.name!r} and its body disagree on arguments", remedy="export it again")
        rounds, steps = rounds_of(loop, args)
        self._visited += steps // 4
        if rounds is not None and rounds * self._nodes_in([loop.body], step.depth) <= MOST_UNROLLED:
            state, fixed = list(args[: loop.n_state]), args[loop.n_state :]
            ends = step.after
            for number in range(rounds):
                path = f"{step.path}{node.name}/{number}/"
                state, ends = self.run(
                    loop.body, (*state, *fixed), path=path, after=() if number else step.after, depth=step.depth + 1
                )
            return state, ends
        self.notes["loops whose rounds are not known stay one op each, without the arithmetic inside"] += 1
        more = self._held([loop.cond, loop.body], step.depth)
        types = [Type(value.dtype, value.shape) for value in args[: loop.n_state]]
        args = solid(self.draft, step.call, path=step.path, after=step.after).args
        whole = Call(replace(node, op="While"), args)
        number, values = self.draft.op(whole, types, path=step.path, after=step.after, more=more)
        kept = [
            replace(made, is_list=value.is_list) if value.weight < 0 else value
            for made, value in zip(values, args, strict=False)
        ]
        return kept, (number,)

    def _stack(self, step: _Step) -> _Made:
        """What is pushed in one round of a loop is what another pops; the stack itself is nowhere."""
        call = step.call
        if call.node.op in ("Stack", "StackV2"):
            number = -2 - len(self._stacks)
            self._stacks[number] = []
            return [Value(*HANDLE, tensor=number)], ()
        stack = self._stacks.setdefault(call.args[0].tensor, []) if call.args else []
        if call.node.op.startswith("StackPush"):
            stack.append(call.args[1])
            return [call.args[1]], step.after
        if stack:
            return [stack.pop()], step.after
        return self._plain(step)

    def _held(self, bodies: Sequence[Body], depth: int) -> list[int]:
        """The constants inside bodies that are not written out, and inside what they call."""
        found: list[int] = []
        for body in self._reached(bodies, depth):
            for node in body.nodes:
                if node.op == "Const":
                    found.append(self._constant(_Step(Call(node, ()), body, "", (), 1, depth)).weight)
        return list(dict.fromkeys(found))

    def _nodes_in(self, bodies: Sequence[Body], depth: int) -> int:
        return sum(len(body.nodes) for body in self._reached(bodies, depth))

    def _reached(self, bodies: Sequence[Body], depth: int) -> list[Body]:
        """These bodies and all that they call, each once."""
        found: dict[str, Body] = {}
        stack = list(bodies)
        while stack:
            body = stack.pop()
            if body.name in found:
                continue
            found[body.name] = body
            for node in body.nodes:
                names = [value.func.name for value in node.attr.values() if value.WhichOneof("value") == "func"]
                names += [node.op] if node.op in self.library else []
                stack += [self.library.body(name) for name in names if name in self.library]
                stack += [node.loop.cond, node.loop.body] if node.loop is not None else []
        return list(found.values())

    def _ports_of(self, body: Body) -> Mapping[str, int]:
        """By node that is read or waited for, the number of its outputs that are read: the last one's and one."""
        if id(body) not in self._ports:
            ports: dict[str, int] = {name: 0 for node in body.nodes for name in node.controls}
            for ref in (*(ref for node in body.nodes for ref in node.inputs), *body.returns):
                ports[ref.node] = max(ports.get(ref.node, 0), ref.port + 1)
            self._ports[id(body)] = ports
            self._bodies.append(body)  # keeps its id its own
        return self._ports[id(body)]


def _only_passes(call: Call, ports: int) -> bool:
    """Whether an op gives on its first argument: one of several identities, or a sum along no axis."""
    if call.node.op == "IdentityN":
        return ports <= 1 and len(call.args) > 0
    axes = call.args[1].data if call.node.op in ("Sum", "Mean", "Max", "Min", "Prod") and len(call.args) > 1 else None
    return axes is not None and axes.size == 0


def has_no_result(op: str) -> bool:
    """Whether an op is there only for what it does."""
    return _NO_RESULT.fullmatch(op) is not None


def _looked_up(env: Mapping[str, Sequence[Value]], reader: str, name: str, port: int) -> Value:
    values = env.get(name, ())
    if port >= len(values):
        raise ModelFileError(
            f"reads output {port} of {name!r}, which has {len(values)}",
            where=f"node {reader!r}",
            remedy="export the model again",
        )
    return values[port]
