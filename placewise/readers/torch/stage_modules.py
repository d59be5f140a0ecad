"""Cut a live model into the stages of a pipeline: whole modules as they are written, and the calls between them.

The flow of tensors between modules comes from torch.export. What depends on the model's inputs alone and reads no
weight (masks, positions) is computed by every stage that reads it; all else belongs to one stage.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from placewise.readers.torch.cutting import Value
from placewise.readers.torch.parallel_modules import TokenGather

_UNCHANGED = ("aten.to.", "aten.alias.", "aten.contiguous.")
"""Operators that may return their argument itself."""


class ModulePlan(NamedTuple):
    """The modules of a stage by path ("" is the whole model), and the calls outside of modules by name."""

    modules: Sequence[str]
    calls: Sequence[str] = ()


@dataclass(frozen=True)
class _Step:
    """A call of a module (`path`) or of an operator (`node`): the values that it reads and makes."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    path: str = ""
    node: fx.Node | None = None
    arguments: Any = None
    in_spec: Any = None

    @property
    def is_module(self) -> bool:
        return self.node is None


class StageModule(nn.Module):
    """One stage: takes the values `takes`, as the model's inputs or from the stage before, and returns `returns`.

    Parameters keep the names that they have in the model. The last stage returns the model's outputs as a tuple; with
    `out_spec`, `arrange` puts them into their own structure. `changes` are applied to what calls outside of modules
    make.
    """

    def __init__(
        self,
        model: nn.Module,
        program: ExportedProgram,
        steps: Sequence[_Step],
        takes: Sequence[Value],
        returns: Sequence[Value],
    ) -> None:
        super().__init__()
        self.takes, self.returns = tuple(takes), tuple(returns)
        self._steps, self._out_spec = tuple(steps), program.call_spec.out_spec
        self._outputs = _list_outputs(program)
        self._held: dict[str, str] = {}
        self.changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        self._graphs = program.graph_module
        self.train(model.training)
        for step in steps:
            if step.is_module:
                _adopt(self, step.path, model.get_submodule(step.path))
        weights = {
            spec.arg.name: str(spec.target)
            for spec in program.graph_signature.input_specs
            if spec.kind != InputKind.USER_INPUT
        }
        constants = {**program.constants}
        for name in {read for step in steps if not step.is_module for read in step.reads} & weights.keys():
            target = weights[name]
            path, _, own = target.rpartition(".")
            owner = model.get_submodule(path)
            value = getattr(owner, own, None)
            value = constants[target] if value is None else value
            place = _container(self, path)
            if isinstance(value, nn.Parameter):
                place.register_parameter(own, value)
            elif own not in dict(place.named_buffers(recurse=False)):
                place.register_buffer(own, value, persistent=False)
            self._held[name] = target

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        env: dict[str, Any] = {value.name: given for value, given in zip(self.takes, values, strict=True)}
        for name, target in self._held.items():
            path, _, own = target.rpartition(".")
            env[name] = getattr(self.get_submodule(path), own)
        for step in self._steps:
            if step.is_module:
                flat = [env[item] if isinstance(item, str) else item[0] for item in step.arguments]
                args, kwargs = pytree.tree_unflatten(flat, step.in_spec)
                module = self if not step.path else self.get_submodule(step.path)
                results = pytree.tree_leaves(module(*args, **kwargs), is_leaf=lambda item: item is None)
                env.update(zip(step.makes, results, strict=True))
            else:
                name = step.makes[0]
                made = self._call(step, env)
                env[name] = self.changes[name](made) if name in self.changes else made
        return tuple(_wait(env[value.name]) for value in self.returns)

    def arrange(self, outputs: Sequence[torch.Tensor]) -> Any:
        """The model's outputs in their own structure, from what the last stage returns."""
        flat = dict(zip((value.name for value in self.returns), outputs, strict=True))
        return pytree.tree_unflatten(
            [flat[item] if isinstance(item, str) else item[0] for item in self._outputs], self._out_spec
        )

    def _call(self, step: _Step, env: Mapping[str, Any]) -> Any:
        node: Any = step.node
        given = dict(zip(node.all_input_nodes, step.reads, strict=True))

        def value(read: fx.Node) -> Any:
            return getattr(self._graphs, str(read.target)) if read.op == "get_attr" else env[given[read]]

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
        return node.target(*args, **kwargs)


def callable_modules(model: nn.Module, paths: Sequence[str]) -> list[str]:
    """These paths, with the members of lists and dictionaries of modules, which nobody calls, in their place."""
    found: list[str] = []
    for path in paths:
        module = model.get_submodule(path)
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            found += callable_modules(model, [f"{path}.{name}" for name, _ in module.named_children()])
        else:
            found.append(path)
    return found


def export_model(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    plan: Sequence[ModulePlan],
    others: Collection[str] = (),
) -> ExportedProgram:
    """The flow of tensors between the modules that the stages of a plan have as a whole, and into the `others`."""
    paths = tuple({path: None for path in (*(path for stage in plan for path in stage.modules), *others) if path})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model, tuple(args), dict(kwargs), preserve_module_call_signature=paths)


def find_arguments(program: ExportedProgram, path: str, gathers: Sequence[TokenGather]) -> dict[int, TokenGather]:
    """What a module gathers, by place among its arguments: those that have the whole shape in the program.

    Raises ValueError where there are none, or where the calls of the module differ.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    shape = {name: tuple(value.shape) for name, value in values.items() if isinstance(value, torch.Tensor)}
    wanted = {tuple(one.shape): one for one in gathers}
    calls = []
    for entry in program.module_call_graph:
        if entry.signature is not None and entry.fqn.partition("@")[0] == path:
            given = [shape.get(getattr(item, "name", "")) for item in entry.signature.inputs]
            calls.append({place: wanted[one] for place, one in enumerate(given) if one in wanted})
    seen = {tuple(one.shape) for call in calls for one in call.values()}
    if seen != wanted.keys() or any(call != calls[0] for call in calls):
        raise ValueError(f"the module {path!r} is not always given the tokens that the plan gathers for it")
    return calls[0]


def build_stage_module(
    model: nn.Module, program: ExportedProgram, plan: Sequence[ModulePlan], place: int
) -> StageModule:
    """The stage number `place` of a plan; `program` is that of `export_model`.

    Raises ValueError for a module that is in no stage, and if a value would flow backwards.
    """
    steps = _list_steps(program, {path for stage in plan for path in stage.modules})
    inputs, outputs = _list_inputs(program), [item for item in _list_outputs(program) if isinstance(item, str)]
    stages = _assign_stages(steps, plan, _free_steps(steps, inputs, model))
    born = dict.fromkeys(inputs, 0)
    for step, where in zip(steps, stages, strict=True):
        if where is not None:
            born |= dict.fromkeys(step.makes, where)
    needed = _plan_exchange(steps, stages, born, outputs, len(plan))
    trains = _depends_on_training(program, steps, model)
    meta = {node.name: node.meta.get("val") for node in program.graph.nodes}
    own, takes, makes = needed[place]
    return StageModule(
        model, program, [steps[number] for number in own],
        [_value(name, meta[name], name in trains) for name in (inputs if place == 0 else takes)],
        [_value(name, meta[name], name in trains) for name in makes],
    )  # fmt: skip


def checkpoint_modules(model: nn.Module, paths: Sequence[str]) -> None:
    """Let the modules at these paths keep only their inputs, and compute the rest again for the backward pass."""
    from torch.utils.checkpoint import checkpoint

    for path in callable_modules(model, paths):
        module = model.get_submodule(path)
        inner = module.forward

        def forward(*args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return inner(*args, **kwargs)
            return checkpoint(inner, *args, use_reentrant=False, **kwargs)

        module.forward = forward


def _list_steps(program: ExportedProgram, paths: set[str]) -> list[_Step]:
    """The calls of a program in order, those inside of a module at one of `paths` as one step.

    Raises ValueError where something reads what a module makes inside and does not return.
    """
    calls = {entry.fqn: entry.signature for entry in program.module_call_graph if entry.signature is not None}
    inner = {node: _module_call(node, calls, paths) for node in program.graph.nodes if node.op == "call_function"}
    same = _same_values(inner)
    steps: list[_Step] = []
    seen: set[str] = set()
    for node, call in inner.items():
        if call is None:
            reads = tuple(same.get(read.name, read.name) for read in node.all_input_nodes)
            steps.append(_Step(reads, (node.name,), node=node))
        elif call not in seen:
            seen.add(call)
            signature = calls[call]
            arguments = [_argument(item, same) for item in signature.inputs]
            reads = tuple(item for item in arguments if isinstance(item, str))
            makes = tuple(
                name if isinstance(name := _argument(item), str) else f"nothing_{call}_{place}"
                for place, item in enumerate(signature.outputs)
            )
            path = call.partition("@")[0]
            steps.append(_Step(reads, makes, path=path, arguments=arguments, in_spec=signature.in_spec))
    _require_returned(steps, inner)
    return steps


def _same_values(inner: Mapping[fx.Node, str | None]) -> dict[str, str]:
    """Values inside of modules that are those from outside, as those of casts that change nothing."""
    same: dict[str, str] = {}
    for node, call in inner.items():
        source = node.args[0] if node.args else None
        if call is None or not isinstance(source, fx.Node) or not str(node.target).startswith(_UNCHANGED):
            continue
        if inner.get(source) == call and source.name not in same:
            continue
        own, given = node.meta.get("val"), source.meta.get("val")
        if isinstance(own, torch.Tensor) and isinstance(given, torch.Tensor) and own.dtype == given.dtype:
            same[node.name] = same.get(source.name, source.name)
    return same


def _require_returned(steps: Sequence[_Step], inner: Mapping[fx.Node, str | None]) -> None:
    made = {name for step in steps for name in step.makes}
    hidden = {node.name: call for node, call in inner.items() if call is not None and node.name not in made}
    leak = next((read for step in steps for read in step.reads if read in hidden), None)
    if leak is not None:
        raise ValueError(f"the module {hidden[leak]!r} makes {leak!r}, which others read, and does not return it")


def _module_call(node: fx.Node, calls: Mapping[str, Any], paths: set[str]) -> str | None:
    """The outermost call of a module at one of `paths` that a node is part of."""
    for key, entry in node.meta.get("nn_module_stack", {}).items():
        path = entry[0]
        if path in paths:
            number = key.partition("@")[2]
            call = f"{path}@{number}" if number else path
            if call in calls:
                return call
    return None


def _argument(item: Any, same: Mapping[str, str] = {}) -> Any:
    """The name of a value, or a constant in a tuple of its own."""
    return (item.value,) if isinstance(item, ConstantArgument) else same.get(item.name, item.name)


def _list_inputs(program: ExportedProgram) -> list[str]:
    """The names of the tensors that the user gives."""
    specs = program.graph_signature.input_specs
    return [s.arg.name for s in specs if s.kind == InputKind.USER_INPUT and not isinstance(s.arg, ConstantArgument)]


def _list_outputs(program: ExportedProgram) -> list[Any]:
    """The user's outputs: names, or constants in tuples."""
    return [
        _argument(spec.arg)
        for spec in program.graph_signature.output_specs
        if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")
    ]


def _free_steps(steps: Sequence[_Step], inputs: Sequence[str], model: nn.Module) -> set[int]:
    """Steps that depend on inputs and constants alone, without weights that train."""
    known = set(inputs)
    free = set()
    for number, step in enumerate(steps):
        weighs = step.is_module and any(True for _ in model.get_submodule(step.path).parameters())
        if not weighs and all(read in known or read.startswith(("b_", "c_")) for read in step.reads):
            free.add(number)
            known |= set(step.makes)
    return free


def _assign_stages(steps: Sequence[_Step], plan: Sequence[ModulePlan], free: set[int]) -> list[int | None]:
    """The stage of every step; None for a step that every reader computes for itself."""
    module = {path: stage for stage, own in enumerate(plan) for path in own.modules}
    call = {name: stage for stage, own in enumerate(plan) for name in own.calls}
    found: list[int | None] = []
    made: dict[str, int] = {}
    for number, step in enumerate(steps):
        if number in free:
            found.append(None)
            continue
        own = module.get(step.path) if step.is_module else call.get(step.makes[0])
        earliest = max((made.get(read, 0) for read in step.reads), default=0)
        where = earliest if own is None else own
        found.append(where)
        made |= dict.fromkeys(step.makes, where)
    return found


def _plan_exchange(
    steps: Sequence[_Step], stages: Sequence[int | None], born: Mapping[str, int], outputs: Sequence[str], count: int
) -> list[tuple[list[int], list[str], list[str]]]:
    """By stage: the steps that it runs, the values that it takes from the one before, and those that it returns.

    `born` is the stage that makes each value that is no free one. Raises ValueError if a value would flow backwards.
    """
    found: list[tuple[list[int], list[str], list[str]]] = []
    later = list(dict.fromkeys(outputs))
    for place in range(count - 1, -1, -1):
        numbers = _needed_steps(steps, stages, place, set(later))
        own = {name for number in numbers for name in steps[number].makes}
        reads = dict.fromkeys([*later, *(read for number in numbers for read in steps[number].reads)])
        takes = [name for name in reads if name in born and name not in own]
        late = next((name for name in takes if born[name] > place), None)
        if late is not None:
            raise ValueError(f"stage {place} reads {late!r}, which stage {born[late]} makes: this is no line of stages")
        found.append((numbers, takes, later))
        later = takes
    return found[::-1]


def _needed_steps(steps: Sequence[_Step], stages: Sequence[int | None], place: int, makes: set[str]) -> list[int]:
    """The steps that a stage runs: its own that something needs, and the free ones that these or its results need."""
    needed, wanted = [], set(makes)
    for number in range(len(steps) - 1, -1, -1):
        step, where = steps[number], stages[number]
        is_needed = not wanted.isdisjoint(step.makes)
        if (where == place and (is_needed or _writes(step))) or (where is None and is_needed):
            needed.append(number)
            wanted |= set(step.reads)
    return needed[::-1]


def _writes(step: _Step) -> bool:
    schema = getattr(step.node.target, "_schema", None) if step.node is not None else None
    return schema is not None and schema.is_mutable


def _depends_on_training(program: ExportedProgram, steps: Sequence[_Step], model: nn.Module) -> set[str]:
    """The values through which gradients flow."""
    known = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.PARAMETER and model.get_parameter(str(spec.target)).requires_grad
    }
    real = {node.name for node in program.graph.nodes if _is_real(node.meta.get("val"))}
    for step in steps:
        weighs = step.is_module and any(p.requires_grad for p in model.get_submodule(step.path).parameters())
        if weighs or not known.isdisjoint(step.reads):
            known |= {name for name in step.makes if name in real}
    return known


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _value(name: str, meta: Any, trains: bool) -> Value:
    if not isinstance(meta, torch.Tensor):
        raise ValueError(f"{name!r} is no tensor and would go from stage to stage")
    return Value(name, tuple(int(size) for size in meta.shape), meta.dtype, trains)


def _container(root: nn.Module, path: str) -> nn.Module:
    """The module at a path, with empty modules on the way where there are none."""
    for part in path.split(".") if path else ():
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def _adopt(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module where it is in the model."""
    parent, _, name = path.rpartition(".")
    _container(root, parent).add_module(name, module)


def _wait(value: torch.Tensor) -> torch.Tensor:
    """The value of a collective that may still run."""
    wait = getattr(value, "wait", None)
    return wait() if callable(wait) else value
