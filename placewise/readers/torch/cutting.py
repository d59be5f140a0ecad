"""Split an exported program into modules, each with some of its calls and their weights.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

Device = str | torch.device
_ASSERTIONS = ("_assert", "_functional_assert", "sym_constrain_range", "_functional_sym_constrain_range", "_print")


class Piece(NamedTuple):
    """A module of some calls: it takes the values `reads` and returns a tuple of the values `makes`, in order."""

    module: fx.GraphModule
    reads: tuple[str, ...]
    makes: tuple[str, ...]


class Value(NamedTuple):
    """A tensor between stages: its name, shape and type, and whether gradients come back."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    trains: bool

    def empty(self, device: torch.device) -> torch.Tensor:
        """A tensor like it."""
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.trains)


class StagePlan(NamedTuple):
    """The stages of a program: the calls of each in order, and the names of the values that it reads and makes."""

    nodes: tuple[tuple[fx.Node, ...], ...]
    reads: tuple[tuple[str, ...], ...]
    makes: tuple[tuple[str, ...], ...]

    @property
    def crossing(self) -> list[str]:
        """Every value that leaves its stage, in order."""
        return list(dict.fromkeys(name for makes in self.makes for name in makes))


def is_item(node: fx.Node) -> bool:
    """Whether a node selects one of several results; such nodes do not count as calls, as in a saved archive."""
    return getattr(node.target, "__name__", "") == "getitem" and not isinstance(node.meta.get("val"), (int, float))


def calls_of(program: ExportedProgram) -> list[fx.Node]:
    """The calls of a program; the index of a call is its number in the archive (`origin`)."""
    return [node for node in program.graph.nodes if node.op == "call_function" and not is_item(node)]


def steps_of(program: ExportedProgram) -> list[fx.Node]:
    """The nodes that a run needs, in order, without assertions and unused calls."""
    needed: set[fx.Node] = {node for node in program.graph.nodes if node.op == "output"}
    steps = []
    for node in reversed(program.graph.nodes):
        if node in needed or (node.op == "call_function" and writes_of(node)):
            needed.update(node.all_input_nodes)
            if node.op == "call_function":
                steps.append(node)
    return steps[::-1]


def writes_of(node: fx.Node) -> list[fx.Node]:
    """The values that a call modifies in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or _is_assertion(node):
        return []
    written = [argument for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    return [value for argument in written for value in _argument_nodes(node, schema, argument)]


def views_of(node: fx.Node) -> list[fx.Node]:
    """The values whose memory the results of a call may share."""
    if is_item(node):
        return views_of(node.all_input_nodes[0])
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    return [value for item in schema.arguments if item.alias_info for value in _argument_nodes(node, schema, item)]


def make_pure(steps: Sequence[fx.Node]) -> None:
    """Replace in-place calls by out-of-place ones if nothing else observes the write."""
    place = {node: number for number, node in enumerate(steps)}
    root: dict[fx.Node, fx.Node] = {}
    members: dict[fx.Node, list[fx.Node]] = {}
    for node in steps:
        written, shared = writes_of(node), views_of(node)
        pure = _find_pure_op(node) if len(written) == 1 else None
        if pure is not None:
            memory = root.get(written[0], written[0])
            users = {user for member in [memory, *members.get(memory, ())] for user in member.users} - {node}
            if memory in place and all(place.get(user, len(place)) < place[node] for user in users):
                node.target, shared = pure, []
        root[node] = root.get(shared[0], shared[0]) if shared else node
        members.setdefault(root[node], []).append(node)


def check_writes(steps: Sequence[fx.Node], where: Mapping[fx.Node, int]) -> None:
    """Raise ValueError if memory that a call modifies is used at more than one place (`where`)."""
    root: dict[fx.Node, fx.Node] = {}
    users: dict[fx.Node, list[fx.Node]] = {}
    written: dict[fx.Node, fx.Node] = {}
    for node in steps:
        shared = views_of(node)
        root[node] = root.get(shared[0], shared[0]) if shared else node
        for used in [root[node], *(root.get(read, read) for read in node.all_input_nodes)]:
            users.setdefault(used, []).append(node)
        for value in writes_of(node):
            written[root.get(value, value)] = node
    for used, writer in written.items():
        other = next((node for node in users[used] if where[node] != where[writer]), None)
        if other is not None:
            raise ValueError(
                f"the call {writer.name!r} writes in place to memory that {other.name!r} on another device uses: keep "
                "both on one device (--together)"
            )


def weights_of(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constants by the name of their placeholder. Raises ValueError."""
    held: dict[str, torch.Tensor] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            continue
        data = program.state_dict.get(spec.target or "", program.constants.get(spec.target or ""))
        if not isinstance(data, torch.Tensor):
            raise ValueError(f"{spec.arg.name!r} is not a tensor but a {type(data).__name__}")
        held[spec.arg.name] = data.detach()
    return held


def inputs_of(program: ExportedProgram) -> list[str]:
    """The names of the program's user inputs, in order."""
    return [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]


def outputs_of(program: ExportedProgram) -> list[str]:
    """The distinct values that the program returns, without constants."""
    kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind in kinds]
    values = {node.name for node in program.graph.nodes}
    return list(dict.fromkeys(spec.arg.name for spec in specs if getattr(spec.arg, "name", None) in values))


def build_piece(
    program: ExportedProgram,
    nodes: Sequence[fx.Node],
    makes: Sequence[str],
    held: Mapping[str, torch.Tensor],
    *,
    device: Device,
    reads: Sequence[str] = (),
    moved: dict[tuple[str, str], torch.Tensor] | None = None,
) -> Piece:
    """A module of `nodes`, in this order, on `device`.

    Needed values in `held` become buffers of the module; the others are its inputs, starting with those of `reads`.
    `moved` caches tensors by name and device, so that pieces share their weights.
    """
    graph, root, moved = fx.Graph(), nn.Module(), {} if moved is None else moved
    known: dict[fx.Node, fx.Node] = {}
    named, inside = {node.name: node for node in program.graph.nodes}, set(nodes)
    needed = [read for node in nodes for read in node.all_input_nodes if read not in inside]
    needed += [named[name] for name in makes if named[name] not in inside]
    inputs = [named[name] for name in reads]
    inputs += [node for node in needed if node.op != "get_attr" and node.name not in held]
    for node in dict.fromkeys(inputs):
        known[node] = graph.placeholder(node.name)
    for node in dict.fromkeys(needed):
        if node in known:
            continue
        if node.op == "get_attr":
            value = _move_body(copy.deepcopy(_attribute(program.graph_module, str(node.target))), device)
        elif (node.name, str(device)) in moved:
            value = moved[node.name, str(device)]
        else:
            value = moved[node.name, str(device)] = held[node.name].to(device)
        name = f"held_{len(known)}"
        root.register_buffer(name, value) if isinstance(value, torch.Tensor) else setattr(root, name, value)
        known[node] = graph.get_attr(name)
    for node in nodes:
        clone = known[node] = graph.node_copy(node, known.__getitem__)
        clone.args, clone.kwargs = _move_devices(clone.args, device), _move_devices(clone.kwargs, device)
    graph.output(tuple(known[named[name]] for name in makes))
    return Piece(fx.GraphModule(root, graph), tuple(node.name for node in dict.fromkeys(inputs)), tuple(makes))


def assign_steps(
    program: ExportedProgram, steps: Sequence[fx.Node], place_of_call: Mapping[int, int], *, ordered: bool = False
) -> dict[fx.Node, int]:
    """The place of every step: that of its call (by number), else of its first reader, else of its inputs.

    With `ordered`, places are stages, and other steps go to the earliest stage that reads them.
    """
    numbers = {node: number for number, node in enumerate(calls_of(program))}
    rank = {node: number for number, node in enumerate(steps)}
    places: dict[fx.Node, int] = {}
    for node in reversed(steps):
        users = [user for user in node.users if user in places]
        if numbers.get(node) in place_of_call:
            places[node] = place_of_call[numbers[node]]
        elif users:
            places[node] = min(places[user] for user in users) if ordered else places[min(users, key=rank.__getitem__)]
    for node in steps:
        reads = [places[read] for read in node.all_input_nodes if read in places]
        if is_item(node) and reads:
            places[node] = reads[0]
        places.setdefault(node, max(reads) if reads else min(place_of_call.values(), default=0))
    return places


def plan_stages(program: ExportedProgram, steps: Sequence[fx.Node], stage_of_call: Mapping[int, int]) -> StagePlan:
    """The stages of `steps`, from the stage of calls by number; other calls follow them.

    A stage reads what it or a later stage needs, and passes on what later ones need. The first one reads the program's
    inputs, the last one makes its outputs. Raises ValueError if a value would flow backwards.
    """
    stages = assign_steps(program, steps, stage_of_call, ordered=True)
    check_writes(steps, stages)
    count = max([*stages.values(), *stage_of_call.values()], default=0) + 1
    born = dict.fromkeys(inputs_of(program), 0)
    until = dict.fromkeys(outputs_of(program), count - 1)
    for node in steps:
        born[node.name] = stages[node]
        for read in node.all_input_nodes:
            until[read.name] = max(until.get(read.name, 0), stages[node])
            if born.get(read.name, 0) > stages[node]:
                raise ValueError(f"{node.name!r} is in an earlier stage than {read.name!r}, which it reads")
    passed = [[name for name in born if born[name] <= by < until.get(name, 0)] for by in range(count)]
    reads = [inputs_of(program), *passed[:-1]]
    makes = [*passed[:-1], outputs_of(program)]
    nodes = [tuple(node for node in steps if stages[node] == place) for place in range(count)]
    return StagePlan(tuple(nodes), tuple(map(tuple, reads)), tuple(map(tuple, makes)))


def build_stage(program: ExportedProgram, place_of_call: Mapping[int, int], place: int, *, device: Device) -> Piece:
    """The module of one stage: that at `place` of `plan_stages`, whose errors it raises."""
    steps = steps_of(program)
    make_pure(steps)
    plan = plan_stages(program, steps, place_of_call)
    held = weights_of(program)
    return build_piece(program, plan.nodes[place], plan.makes[place], held, device=device, reads=plan.reads[place])


class HostStage(nn.Module):
    """A stage on `device` whose inputs and outputs are in host memory, as gloo takes them."""

    def __init__(self, module: nn.Module, device: Device) -> None:
        super().__init__()
        self.module, self.device = module, torch.device(device)

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(value.cpu() for value in self.module(*(value.to(self.device) for value in values)))


class MicrobatchStage(nn.Module):
    """A stage module for pipeline schedules: inputs and outputs of the pipeline have an additional first dimension.

    Schedules split inputs into micro-batches along the first dimension and concatenate outputs along it; the first
    dimension of a sample itself may be anything. What a stage hands on is contiguous: backends send memory as it lies.
    """

    def __init__(self, module: nn.Module, *, first: bool, last: bool) -> None:
        super().__init__()
        self.module, self.first, self.last = module, first, last

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.module(*([value[0] for value in values] if self.first else values))
        return tuple(_contiguous(value)[None] if self.last else _contiguous(value) for value in outputs)


def _contiguous(value: Any) -> Any:
    """A tensor with its values in memory in their order; anything else as it is."""
    return value.resolve_conj().resolve_neg().contiguous() if isinstance(value, torch.Tensor) else value


def _argument_nodes(node: fx.Node, schema: Any, argument: Any) -> list[fx.Node]:
    place = next(place for place, other in enumerate(schema.arguments) if other.name == argument.name)
    value = node.kwargs.get(argument.name, node.args[place] if place < len(node.args) else None)
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if isinstance(item, fx.Node)]


def _find_pure_op(node: fx.Node) -> Any:
    """The out-of-place variant of an in-place operator, or None."""
    name, _, overload = str(node.target).removeprefix("aten.").partition(".")
    pure = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") and not name.endswith("__") else None
    return getattr(pure, overload, None)


def _is_assertion(node: fx.Node) -> bool:
    name = str(getattr(node.target, "_schema", node.target)).partition("::")[2]
    return name.startswith(_ASSERTIONS)


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _move_devices(value: Any, device: Device) -> Any:
    """Arguments with every traced device replaced by `device`."""
    return fx.node.map_aggregate(value, lambda item: torch.device(device) if isinstance(item, torch.device) else item)


def _move_body(body: Any, device: Device) -> Any:
    """A submodule or tensor on `device`."""
    if isinstance(body, fx.GraphModule):
        for module in body.modules():
            for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
                node.args, node.kwargs = _move_devices(node.args, device), _move_devices(node.kwargs, device)
        body.recompile()
    return body.to(device) if isinstance(body, (nn.Module, torch.Tensor)) else body
