"""Import a graph node by node: a node becomes an op, an input or a weight; calls are inlined, loops unrolled."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from placewise.errors import ModelFileError
from placewise.readers.tensorflow.abstract_values import AbstractValue, NodeCall, Type
from placewise.readers.tensorflow.constant_folding import evaluate
from placewise.readers.tensorflow.draft import Draft
from placewise.readers.tensorflow.infer import RULES, infer_types
from placewise.readers.tensorflow.inputs import InputDims, read_input_types
from placewise.readers.tensorflow.kinds import DOMAIN, kind_of
from placewise.readers.tensorflow.library import CALLS, Library
from placewise.readers.tensorflow.list_elements import (
    elements_of,
    evaluate_list_op,
    materialize_lists,
    pack_list,
    unpack_list,
)
from placewise.readers.tensorflow.lists import HANDLE, METADATA_OPS
from placewise.readers.tensorflow.nodes import FunctionBody, Loop, Node
from placewise.readers.tensorflow.trip_count import count_iterations
from placewise.readers.tensorflow.types import array_of, dtype_of, shape_of

MAX_UNROLLED = 100_000
"""The most nodes in all iterations of one loop together; longer loops remain one op."""
DEEPEST_CALL = 64
MAX_NODES = 500_000
"""The most nodes after inlining and unrolling."""
WIDEST_GATE = 16
"""The most ops that replace a node which only gathers them; a node that gathers more becomes an op, to limit edges."""
MAX_WAITS = 4
"""The most ops that readers of an identity wait for; an identity with more becomes an op that waits itself."""
INPUTS = ("Placeholder", "PlaceholderV2", "IteratorGetNext", "IteratorGetNextSync", "QueueDequeueV2",
          "QueueDequeueManyV2", "QueueDequeueUpToV2", "OneShotIteratorGetNext", "_Arg")  # fmt: skip
VARIABLES = ("Variable", "VariableV2", "VarHandleOp", "TemporaryVariable", "_VarHandlesOp")
IN_PLACE = ("Assign", "AssignAdd", "AssignSub", "ApplyGradientDescent", "ApplyMomentum", "ApplyAdam", "ApplyRMSProp",
            "ApplyAdagrad", "ApplyFtrl", "ScatterUpdate", "ScatterAdd", "ScatterSub", "SparseApplyAdagrad",
            "SparseApplyMomentum", "SparseApplyGradientDescent")  # fmt: skip
"""Ops whose result is the variable that they update."""
_MAKES_HANDLE = re.compile(r"(Handle|Iterator|Table|Stack|Queue|Reader|Barrier|Mutex)(Op)?(V\d)?$|Dataset")
_STACK = ("Stack", "StackV2", "StackPush", "StackPushV2", "StackPop", "StackPopV2")
_NO_RESULT = re.compile(
    r"NoOp|Assert|(Resource(Sparse)?(Apply|Scatter)|Assign\w*VariableOp|Save|Delete|DestroyResource|Write\w*Summary).*"
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A node to import: its body, the prefix of its name, the ops to wait for, and the number of outputs in use.

    `ports` is −1 if no node reads it or waits for it.
    """

    call: NodeCall
    body: FunctionBody
    path: str
    after: tuple[int, ...]
    ports: int
    depth: int


_Outcome = tuple[list[AbstractValue], tuple[int, ...]]
"""The results of a node, and the ops that must run before ops that wait for the node."""


class GraphImporter:
    """Adds function bodies to a draft. `notes` counts warnings.

    Ops with known results become constants in training graphs (where folding must not look behind weights), inside
    iterations of loops, and where ONNX lacks the op.
    """

    def __init__(self, library: Library, dims: InputDims, *, training: bool) -> None:
        self.draft, self.library, self.dims, self.training = Draft(), library, dims, training
        self.notes: Counter[str] = Counter()
        self._variables: dict[str, AbstractValue] = {}
        self._constants: dict[tuple[str, str], AbstractValue] = {}
        self._stacks: dict[int, list[AbstractValue]] = {}
        self._ports: dict[int, dict[str, int]] = {}
        self._bodies: list[FunctionBody] = []
        self._visited = 0

    def import_graph(self, body: FunctionBody, *, strict: bool) -> list[AbstractValue]:
        """Import the file's graph and return its results; unless `strict`, missing ones are left out."""
        self.draft.reserve([node.name for node in body.nodes])
        env, _ = self._import_nodes(body, (), "", (), 0)
        returns = (ref for ref in body.returns if strict or ref.port < len(env.get(ref.node, ())))
        return [_look_up(env, body.name, ref.node, ref.port) for ref in returns]

    def import_body(
        self, body: FunctionBody, args: Sequence[AbstractValue], *, path: str, after: tuple[int, ...], depth: int
    ) -> tuple[list[AbstractValue], tuple[int, ...]]:
        """Import a body with these arguments; return its results and the ops to wait for."""
        if depth > DEEPEST_CALL:
            raise ModelFileError(f"calls are nested more than {DEEPEST_CALL} deep", remedy="export the model again")
        env, ends = self._import_nodes(body, args, path, after, depth)
        returns = [_look_up(env, body.name, ref.node, ref.port) for ref in body.returns]
        makers = [value.maker for value in returns]
        effects = [op for node in body.nodes if has_no_result(node.op) for op in ends.get(node.name, ())]
        return returns, tuple(op for op in dict.fromkeys((*makers, *effects)) if op >= 0)

    def _import_nodes(
        self, body: FunctionBody, args: Sequence[AbstractValue], path: str, after: tuple[int, ...], depth: int
    ) -> tuple[dict[str, list[AbstractValue]], dict[str, tuple[int, ...]]]:
        """All values of a body by node, and the ops that mark the end of each node."""
        env = {name: [value] for name, value in zip(body.args, args, strict=False)}
        ends: dict[str, tuple[int, ...]] = {}
        ports = self._count_used_ports(body)
        for node in body.nodes:
            self._visited += 1
            if self._visited > MAX_NODES:
                raise ModelFileError(f"it unrolls to more than {MAX_NODES:,} nodes", remedy="export a smaller part")
            arguments = tuple(_look_up(env, node.name, ref.node, ref.port) for ref in node.inputs)
            before = [op for name in node.controls for op in ends.get(name, ())]
            before += [op for value in arguments for op in value.after]
            waits = tuple(dict.fromkeys((*after, *before)))
            step = _Step(NodeCall(node, arguments), body, path, waits, ports.get(node.name, -1), depth)
            env[node.name], ends[node.name] = self._import_node(step)
        return env, ends

    def _import_node(self, step: _Step) -> _Outcome:
        node = step.call.node
        if node.op == "Const":
            return [self._add_constant(step)], ()
        if node.op in VARIABLES:
            return [self._add_variable(node)], ()
        if node.op in INPUTS:
            self._check_captured(node)
            types = read_input_types(node, self.dims)
            names = [
                f"{step.path}{node.name}:{port}" if port else f"{step.path}{node.name}" for port in range(len(types))
            ]
            return [self.draft.add_input(name, kind) for name, kind in zip(names, types, strict=True)], ()
        if node.op in CALLS or node.op in self.library:
            name = node.function("f") if node.op in CALLS else node.op
            return self._inline_call(step, name)
        if node.op in ("If", "StatelessIf"):
            return self._import_branch(step)
        if node.loop is not None:
            return self._import_loop(step, node.loop)
        if node.op in ("While", "StatelessWhile"):
            cond, body = (self.library.body(node.function(name)) for name in ("cond", "body"))
            return self._import_loop(step, Loop(cond, body, len(body.returns)))
        if node.op in ("NoOp", "ControlTrigger"):
            if len(step.after) <= WIDEST_GATE or step.ports < 0:
                return [], step.after
            return [], (self.draft.add_op(step.call, (), path=step.path, after=step.after)[0],)
        if node.op in _STACK:
            return self._import_stack_op(step)
        step = replace(step, call=unpack_list(self.draft, step.call, path=step.path))
        results = evaluate_list_op(step.call)
        if results is not None:
            return [value if value.is_list else replace(value, after=step.after) for value in results], step.after
        if node.op in ("TensorListStack", "TensorArrayGatherV3"):
            return self._stack_list(step)
        if _is_pass_through(step.call, step.ports):
            return self._add_plain_op(replace(step, call=NodeCall(replace(node, op="Identity"), step.call.args[:1])))
        return self._add_plain_op(step)

    def _check_captured(self, node: Node) -> None:
        if node.op == "Placeholder" and node.is_handle("dtype"):
            raise ModelFileError(
                f"{node.name!r} refers to a variable that is not in the file, so its size is unknown",
                remedy="save the model (tf.saved_model.save), or freeze it (convert_variables_to_constants_v2)",
            )

    def _stack_list(self, step: _Step) -> _Outcome:
        """Stack the elements of a list into one tensor."""
        call, flow = step.call, 0 if step.call.node.op == "TensorListStack" else 2
        items = elements_of(call.args[flow]) if flow < len(call.args) else []
        if not items:
            return self._add_plain_op(step)
        types = infer_types(call, 1)
        number, values = pack_list(self.draft, call.node, call.args[flow], types, path=step.path, after=step.after)
        return values, (number,)

    def _add_plain_op(self, step: _Step, *, more: Sequence[int] = (), count: int = 0) -> _Outcome:
        """Add an ordinary op."""
        if step.call.node.op not in METADATA_OPS:
            step = replace(step, call=materialize_lists(self.draft, step.call, path=step.path, after=step.after))
        call, op = step.call, step.call.node.op
        if op in ("Merge", "RefMerge"):
            self.notes["both sides of TF1 conditions are counted"] += 1
        kind, types = "", [HANDLE]
        if has_no_result(op) or op in IN_PLACE:
            types = []
        elif op in RULES or not _MAKES_HANDLE.search(op):
            types = infer_types(call, max(step.ports, count, 1))
        data = evaluate(call, types)
        is_known = types and all(value is not None for value in data)
        if is_known and (self.training or step.path or kind_of(op).startswith(DOMAIN)):
            kind = "Constant"
            types = [
                Type(inferred.dtype, value.shape)
                for inferred, value in zip(types, data, strict=True)
                if value is not None
            ]
        passes = kind_of(op) == "Identity" and len(call.args) > 0 and len(step.after) <= MAX_WAITS
        after = () if passes else step.after
        number, values = self.draft.add_op(call, types, path=step.path, kind=kind, after=after, data=data, more=more)
        if op in IN_PLACE:
            values = [replace(call.args[0], data=None, after=(number,))] if call.args else []
        if kind == "Constant":
            return values, ()
        if passes:  # waiting for a view means waiting for its source
            source = call.args[0]
            ends = step.after if source.maker < 0 else (*step.after, source.maker)
            last = replace(values[0], after=step.after, maker=source.maker, shows=source.variable)
            last = replace(last, of_gradient=source.of_gradient)
            return [last, *values[1:]], ends
        return values, (number,)

    def _add_constant(self, step: _Step) -> AbstractValue:
        node, key = step.call.node, (step.body.name, step.call.node.name)
        if key not in self._constants:
            tensor = node.attr["value"].tensor if "value" in node.attr else None
            if tensor is None:
                raise ModelFileError(f"constant {node.name!r} has no value", remedy="export the model again")
            dtype, shape = dtype_of(tensor.dtype), shape_of(tensor.tensor_shape)
            weight = self.draft.add_weight(node.name, dtype, shape)
            self._constants[key] = AbstractValue(dtype, shape, array_of(tensor), weight=weight)
        return self._constants[key]

    def _add_variable(self, node: Node) -> AbstractValue:
        """Add a variable; variables with the same shared name are one."""
        name = node.text("shared_name") or node.name
        if name not in self._variables:
            dtype, shape = node.dtype("dtype"), node.shape("shape")
            if shape is None or min(shape, default=0) < 0:
                self.notes[f"variables of unknown shape count as empty (first: {name!r})"] += 1
            handle = node.op == "VarHandleOp"
            self._variables[name] = AbstractValue(
                dtype, shape, weight=self.draft.add_weight(name, dtype, shape), handle=handle
            )
        return self._variables[name]

    def _inline_call(self, step: _Step, name: str) -> _Outcome:
        return self.import_body(
            self.library.body(name), step.call.args, path=step.path, after=step.after, depth=step.depth + 1
        )

    def _import_branch(self, step: _Step) -> _Outcome:
        """Import the branch that a known condition selects; else add one op that holds the constants of both."""
        node, data = step.call.node, step.call.args[0].data if step.call.args else None
        names = [node.function("then_branch"), node.function("else_branch")]
        if data is not None and data.size == 1:
            name = names[0] if data.reshape(-1)[0] else names[1]
            inner = replace(step, call=replace(step.call, args=step.call.args[1:]))
            return self._inline_call(inner, name)
        bodies = [self.library.body(name) for name in names]
        self.notes["conditions on data remain one op each; the arithmetic inside is not counted"] += 1
        return self._add_plain_op(
            step, more=self._find_inner_constants(bodies, step.depth), count=len(bodies[0].returns)
        )

    def _import_loop(self, step: _Step, loop: Loop) -> _Outcome:
        """Unroll a loop with a known trip count; else add one op that holds the constants inside."""
        args, node = step.call.args, step.call.node
        if len(args) != len(loop.body.args) or len(args) != len(loop.cond.args):
            raise ModelFileError(f"loop {node.name!r} and its body disagree on arguments", remedy="export it again")
        rounds, steps = count_iterations(loop, args)
        self._visited += steps // 4
        n_nodes = sum(len(body.nodes) for body in self._find_reachable_bodies([loop.body], step.depth))
        if rounds is not None and rounds * n_nodes <= MAX_UNROLLED:
            state, fixed = list(args[: loop.n_state]), args[loop.n_state :]
            ends = step.after
            for number in range(rounds):
                path = f"{step.path}{node.name}/{number}/"
                state, ends = self.import_body(
                    loop.body, (*state, *fixed), path=path, after=() if number else step.after, depth=step.depth + 1
                )
            return state, ends
        self.notes["loops with unknown trip counts remain one op each; the arithmetic inside is not counted"] += 1
        more = self._find_inner_constants([loop.cond, loop.body], step.depth)
        types = [Type(value.dtype, value.shape) for value in args[: loop.n_state]]
        args = materialize_lists(self.draft, step.call, path=step.path, after=step.after).args
        whole = NodeCall(replace(node, op="While"), args)
        number, values = self.draft.add_op(whole, types, path=step.path, after=step.after, more=more)
        kept = [
            replace(result, is_list=value.is_list) if value.weight < 0 else value
            for result, value in zip(values, args, strict=False)
        ]
        return kept, (number,)

    def _import_stack_op(self, step: _Step) -> _Outcome:
        """A pop returns what an iteration pushed; the stack itself disappears."""
        call = step.call
        if call.node.op in ("Stack", "StackV2"):
            number = -2 - len(self._stacks)
            self._stacks[number] = []
            return [AbstractValue(*HANDLE, tensor=number)], ()
        stack = self._stacks.setdefault(call.args[0].tensor, []) if call.args else []
        if call.node.op.startswith("StackPush"):
            stack.append(call.args[1])
            return [call.args[1]], step.after
        if stack:
            return [stack.pop()], step.after
        return self._add_plain_op(step)

    def _find_inner_constants(self, bodies: Sequence[FunctionBody], depth: int) -> list[int]:
        """The constants inside bodies that are not inlined, and inside the functions that they call."""
        weights: list[int] = []
        for body in self._find_reachable_bodies(bodies, depth):
            for node in body.nodes:
                if node.op == "Const":
                    weights.append(self._add_constant(_Step(NodeCall(node, ()), body, "", (), 1, depth)).weight)
        return list(dict.fromkeys(weights))

    def _find_reachable_bodies(self, bodies: Sequence[FunctionBody], depth: int) -> list[FunctionBody]:
        """These bodies and all bodies that they call, each once."""
        reached: dict[str, FunctionBody] = {}
        stack = list(bodies)
        while stack:
            body = stack.pop()
            if body.name in reached:
                continue
            reached[body.name] = body
            for node in body.nodes:
                names = [value.func.name for value in node.attr.values() if value.WhichOneof("value") == "func"]
                names += [node.op] if node.op in self.library else []
                stack += [self.library.body(name) for name in names if name in self.library]
                stack += [node.loop.cond, node.loop.body] if node.loop is not None else []
        return list(reached.values())

    def _count_used_ports(self, body: FunctionBody) -> Mapping[str, int]:
        """For each node that is read or waited for, the number of outputs in use: one more than the last port read."""
        if id(body) not in self._ports:
            ports: dict[str, int] = {name: 0 for node in body.nodes for name in node.controls}
            for ref in (*(ref for node in body.nodes for ref in node.inputs), *body.returns):
                ports[ref.node] = max(ports.get(ref.node, 0), ref.port + 1)
            self._ports[id(body)] = ports
            self._bodies.append(body)  # keeps its id unique
        return self._ports[id(body)]


def _is_pass_through(call: NodeCall, ports: int) -> bool:
    """Whether an op returns its first argument: IdentityN with one output, or a reduction along no axis."""
    if call.node.op == "IdentityN":
        return ports <= 1 and len(call.args) > 0
    axes = call.args[1].data if call.node.op in ("Sum", "Mean", "Max", "Min", "Prod") and len(call.args) > 1 else None
    return axes is not None and axes.size == 0


def has_no_result(op: str) -> bool:
    """Whether an op exists only for its side effects."""
    return _NO_RESULT.fullmatch(op) is not None


def _look_up(env: Mapping[str, Sequence[AbstractValue]], reader: str, name: str, port: int) -> AbstractValue:
    values = env.get(name, ())
    if port >= len(values):
        raise ModelFileError(
            f"reads output {port} of {name!r}, which has {len(values)}",
            where=f"node {reader!r}",
            remedy="export the model again",
        )
    return values[port]
