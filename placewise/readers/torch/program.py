"""Programs of torch.export → graphs with one op per call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from placewise.errors import MissingExtraError
from placewise.model.graph import Graph, Source
from placewise.readers.base import NO_DIMS
from placewise.readers.torch.assemble import assemble
from placewise.readers.torch.dtypes import dtype_name
from placewise.readers.torch.inline import inline_bodies
from placewise.readers.torch.kinds import written_values
from placewise.readers.torch.sizes import Range, Size, Sizes
from placewise.readers.torch.symbols import MAX_SIZE
from placewise.readers.torch.traced_program import (
    Parameter,
    TensorMeta,
    TracedCall,
    TracedProgram,
    ValueRef,
    class_of,
    clean_scope,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node


def graph_of_program(
    program: ExportedProgram, *, source: Source | None = None, dims: Mapping[str, int] = NO_DIMS
) -> Graph:
    """The raw view of an exported program, decomposed or not: one op per call; `origin` is the number of the call.

    `dims` sets symbolic dimensions by symbol (``s77``), by input and axis (``input_ids:0``), or all first axes at once
    (``batch``). Assertions and size arithmetic are not ops; bodies that run once (autocast, no_grad) are inlined.
    Raises ModelFileError for open dimensions, and MissingExtraError without PyTorch.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError("reading PyTorch models", "torch") from None
    return assemble(inline_bodies(trace_program(program, dims)), source)


def modules_of(program: ExportedProgram) -> dict[str, str]:
    """The class names of the modules that contain calls, by path."""
    classes: dict[str, str] = {}
    for node in program.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            name = kind if isinstance(kind, str) else getattr(kind, "__qualname__", "")
            classes.setdefault(clean_scope(str(path)), class_of(name))
    return classes


def trace_program(program: ExportedProgram, dims: Mapping[str, int] = NO_DIMS) -> TracedProgram:
    """An exported program as plain data; bodies are not inlined."""
    from torch.export.graph_signature import InputKind, OutputKind

    signature = program.graph_signature
    placeholders = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    weights, inputs = [], []
    for spec in signature.input_specs:
        name = spec.arg.name
        if spec.kind == InputKind.USER_INPUT and _is_tensor(placeholders.get(name)):
            inputs.append(name)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            weights.append((name, spec.target or name, spec.kind == InputKind.PARAMETER))
    shapes = {
        spec.arg.name: _sizes_of(placeholders.get(spec.arg.name))
        for spec in signature.input_specs
        if spec.kind == InputKind.USER_INPUT
    }
    ranges = {str(symbol): _read_range(ends.lower, ends.upper) for symbol, ends in program.range_constraints.items()}
    sizes = Sizes(shapes, dims, ranges=ranges)
    written = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)
    body = _trace_graph(program.graph_module, sizes)
    data = {**program.constants, **program.state_dict}
    return TracedProgram(
        metas=body.metas,
        parameters=tuple(
            Parameter(
                name,
                target,
                storage_of(data.get(target), target),
                is_parameter and bool(getattr(data.get(target), "requires_grad", True)),
            )
            for name, target, is_parameter in weights
        ),
        inputs=tuple(inputs),
        calls=body.calls,
        outputs=tuple(_names(signature.output_specs, OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)),
        written=tuple(_names(signature.output_specs, *written)),
    )


def _read_range(least: Any, largest: Any) -> Range:
    """A range from sympy numbers, which may be infinite."""
    is_open = not largest.is_Integer or largest >= MAX_SIZE
    return int(least) if least.is_Integer else 0, None if is_open else int(largest)


def _sizes_of(value: Any) -> list[Size | None] | Size | None:
    return [_size_text(size) for size in value.shape] if _is_tensor(value) else _size_text(value)


def _names(specs: list[Any], *kinds: Any) -> Iterator[str]:
    return (str(spec.arg.name) for spec in specs if spec.kind in kinds and getattr(spec.arg, "name", None))


def storage_of(tensor: Any, default: object) -> object:
    """A key that is equal for tensors with the same memory, also on the meta device."""
    try:
        return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.nbytes)  # noqa: SLF001
    except (AttributeError, NotImplementedError, RuntimeError):
        return default


def _trace_graph(module: GraphModule, sizes: Sizes) -> TracedProgram:
    """One graph as plain data, with all placeholders as inputs."""
    items = _item_names(module)
    metas: dict[str, TensorMeta] = {}
    inputs, outputs, calls = [], [], list[TracedCall]()
    names: dict[str, str] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
            _add_meta(node.name, node.meta.get("val"), node.name, sizes, metas)
        elif node.op == "call_function" and not _is_item(node):
            results = list(_walk_results(node.name, node.meta.get("val"), items, names))
            for name, value in results:
                _add_meta(name, value, node.name, sizes, metas, is_number=not _is_arithmetic(node.target))
            calls.append(_trace_call(module, node, [name for name, _ in results], names, sizes, len(calls)))
        elif node.op == "output":
            outputs = [names.get(classes.name, classes.name) for classes in _walk_nodes(node.args)]
    return TracedProgram(metas, (), tuple(inputs), tuple(calls), tuple(outputs))


def _is_item(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and not isinstance(node.meta.get("val"), (int, float))


def _item_names(module: GraphModule) -> dict[tuple[str, int], list[str]]:
    """The names of nodes that select one of several results, by (node, index)."""
    items: dict[tuple[str, int], list[str]] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and _is_item(node):
            items.setdefault((node.args[0].name, node.args[1]), []).append(node.name)
    return items


def _walk_results(
    name: str, value: Any, items: Mapping[tuple[str, int], list[str]], names: dict[str, str]
) -> Iterator[tuple[str, Any]]:
    """The values in a nested result with their names; further names are added to `names`."""
    if not isinstance(value, (list, tuple)):
        if value is not None:
            yield name, value
        return
    for place, item in enumerate(value):
        called = items.get((name, place), [f"{name}_unused_{place}"])
        names.update(dict.fromkeys(called, called[0]))
        yield from _walk_results(called[0], item, items, names)


def _add_meta(
    name: str, value: Any, node: str, sizes: Sizes, metas: dict[str, TensorMeta], *, is_number: bool = False
) -> None:
    if _is_tensor(value):
        shape = tuple(sizes.resolve(_size_text(size), name, node) for size in value.shape)
        metas[name] = TensorMeta(shape, dtype_name(value.dtype), _read_strides(value, sizes))
    elif is_number and value is not None:
        kind = getattr(getattr(value, "node", None), "pytype", type(value))
        metas[name] = TensorMeta((), {bool: "bool", int: "int64"}.get(kind, "float64"))


def _read_strides(value: Any, sizes: Sizes) -> tuple[int, ...] | None:
    try:
        return tuple(sizes.resolve(_size_text(stride), "", "") for stride in value.stride())
    except (RuntimeError, NotImplementedError):  # sparse and nested tensors have none
        return None


def _trace_call(
    module: GraphModule, node: Node, results: list[str], names: Mapping[str, str], sizes: Sizes, number: int
) -> TracedCall:
    target = target_of(node.target)
    arguments = {
        name: _argument(module, value, names, sizes)
        for name, value in named_arguments(node.target, node.args, node.kwargs)
    }
    return TracedCall(
        name=node.name,
        target=target,
        arguments=arguments,
        results=tuple(results),
        scope=_scope_of(node),
        origin=number,
        mutates=written_values(target, arguments, written_arguments(node.target)),
    )


def target_of(target: Any) -> str:
    """``aten::add.Tensor`` for an operator, ``higher_order::cond``, ``_operator::mul`` for a Python function."""
    if hasattr(target, "_schema"):
        return str(target.name())
    if hasattr(target, "namespace"):
        return f"{target.namespace}::{target.name()}"
    return f"{getattr(target, '__module__', '')}::{getattr(target, '__name__', target)}"


def _is_arithmetic(target: Any) -> bool:
    return not hasattr(target, "_schema") and not hasattr(target, "namespace")


def named_arguments(target: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Arguments with the names and in the order of the schema; by number without a schema."""
    schema = [argument.name for argument in _schema(target)]
    for place, value in enumerate(args):
        yield (schema[place] if place < len(schema) else str(place)), value
    for name in sorted(kwargs, key=lambda name: schema.index(name) if name in schema else len(schema)):
        yield name, kwargs[name]


def written_arguments(target: Any) -> list[str]:
    """The arguments that are modified, by the schema."""
    return [item.name for item in _schema(target) if item.alias_info is not None and item.alias_info.is_write]


def _schema(target: Any) -> Any:
    return target._schema.arguments if hasattr(target, "_schema") else ()  # noqa: SLF001


def _argument(module: GraphModule, value: Any, names: Mapping[str, str], sizes: Sizes) -> Any:
    if isinstance(value, (list, tuple)):
        return [_argument(module, item, names, sizes) for item in value]
    if isinstance(value, dict):
        return [_argument(module, item, names, sizes) for item in value.values()]
    if hasattr(value, "op") and hasattr(value, "target"):
        if value.op == "get_attr":
            classes = module
            for part in str(value.target).split("."):
                classes = getattr(classes, part)
            return _trace_graph(classes, sizes) if hasattr(classes, "graph") else None
        known = sizes.resolve_or_none(_size_text(value.meta.get("val")))
        return ValueRef(names.get(value.name, value.name)) if known is None else known
    return value if isinstance(value, (bool, int, float, str)) else None


def _walk_nodes(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _walk_nodes(item)
    elif isinstance(value, dict):
        yield from _walk_nodes(list(value.values()))
    elif hasattr(value, "op") and hasattr(value, "target"):
        yield value


def _scope_of(node: Node) -> str:
    """The path of the innermost module that contains the call."""
    paths = [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return clean_scope(paths[-1]) if paths else ""


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _size_text(size: Any) -> Size | None:
    """A size as a number, or its expression in sympy's srepr; None for anything else."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    expression = getattr(getattr(size, "node", None), "expr", None)
    if expression is None:
        return None
    import sympy  # type: ignore[import-untyped]  # PyTorch brings it

    return str(sympy.srepr(expression))
