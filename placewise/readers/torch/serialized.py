"""Parse the JSON program of a ``.pt2`` archive, without PyTorch.

The format is that of torch/_export/serde/schema.py, schema version 8 (PyTorch 2.13).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from placewise.errors import ModelFileError
from placewise.readers.torch.dtypes import SERIALIZED
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

KNOWN_VERSION = 8
_ARITHMETIC = ("_operator", "math", "torch", "builtins")
_NUMBERS = {"as_sym_int": "int64", "as_sym_bool": "bool", "as_sym_float": "float64"}
_VALUES = ("as_tensor", "as_tensors", "as_optional_tensor", "as_optional_tensors", "as_nested_tensors", *_NUMBERS)
_WEIGHTS = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
_WRITTEN = ("buffer_mutation", "parameter_mutation", "user_input_mutation")
_NAMES = frozenset({"name", "as_name", "target", "expr_str", *_WEIGHTS.values()})
_TABLES = frozenset({
    "tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values", "custom_obj_values",
    "as_string_to_argument",
})  # fmt: skip
_SAVE_AGAIN = "save the program again with torch.export.save"


def parse_program(program: Any, weights: Mapping[str, Any], dims: Mapping[str, int]) -> TracedProgram:
    """A program as plain data; bodies are not inlined. `weights` are the archive entries of weights by name.

    Raises ModelFileError for open dimensions. An invalid program may raise any lookup, type or value error.
    """
    _require_names(program)
    graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
    inputs, parameters = [], []
    for spec in signature["input_specs"]:
        ((kind, content),) = spec.items()
        if kind in _WEIGHTS:
            name, value = content[_WEIGHTS[kind]], content["arg"]["name"]
            entry = weights.get(name)
            trains = kind == "parameter" and (entry is None or bool(entry["tensor_meta"].get("requires_grad", True)))
            parameters.append(Parameter(value, name, _storage_key(name, entry), trains))
        elif kind == "user_input" and "as_tensor" in content["arg"]:
            inputs.append(content["arg"]["as_tensor"]["name"])
    shapes = {name: [_parse_size(size) for size in graph["tensor_values"][name]["sizes"]] for name in inputs}
    ranges = {symbol: _parse_range(ends) for symbol, ends in program["range_constraints"].items()}
    body = _parse_graph(graph, Sizes({**_number_inputs(graph, signature), **shapes}, dims, ranges=ranges))
    outputs, written = list[str](), list[str]()
    for spec in signature["output_specs"]:
        ((kind, content),) = spec.items()
        if kind in _WRITTEN:
            written.append(content["arg"]["name"])
        elif kind in ("user_output", "loss_output"):
            outputs.extend(_names(content["arg"]))
    return TracedProgram(body.metas, tuple(parameters), tuple(inputs), body.calls, tuple(outputs), tuple(written))


def _require_names(program: Any) -> None:
    """Raise TypeError for a name that is no text; a call alone may lack its own.

    The keys of some tables are the model's own names, of which one may be "target".
    """
    stack = [(program, False)]
    while stack:
        value, is_table = stack.pop()
        if isinstance(value, dict):
            for key in () if is_table else _NAMES & value.keys():
                if not isinstance(value[key], str) and (value[key] is not None or "target" not in value):
                    raise TypeError(f"the {key} {value[key]!r:.40} is no text")
            stack.extend((inner, key in _TABLES and not is_table) for key, inner in value.items())
        elif isinstance(value, list):
            stack.extend((inner, False) for inner in value)


def parse_modules(program: Any) -> dict[str, str]:
    """The class names of the modules that contain calls, by path."""
    classes: dict[str, str] = {}
    for node in program["graph_module"]["graph"]["nodes"]:
        for entry in str((node.get("metadata") or {}).get("nn_module_stack", "")).split(";"):
            parts = entry.split(",")
            if len(parts) > 2:
                classes.setdefault(clean_scope(parts[1]), class_of(parts[2]))
    return classes


def _number_inputs(graph: Any, signature: Any) -> dict[str, Size | None]:
    """Inputs that are open numbers, by name."""
    named = [
        name for spec in signature["input_specs"] if "user_input" in spec for name in _names(spec["user_input"]["arg"])
    ]
    return {name: _parse_size(graph["sym_int_values"][name]) for name in named if name in graph["sym_int_values"]}


def _parse_range(ends: Any) -> Range:
    """The range of a symbol; open ends are null or the largest representable numbers."""
    least, largest = ends.get("min_val"), ends.get("max_val")
    is_open = largest is None or int(largest) >= MAX_SIZE
    return 0 if least is None else int(least), None if is_open else int(largest)


def _storage_key(name: str, entry: Any) -> object:
    """A key that is equal for weights with the same bytes in the archive.

    Tensors without data (meta) share one member, so ties between them are unknown.
    """
    meta = None if entry is None else entry["tensor_meta"]
    if meta is None or (meta.get("device") or {}).get("type") == "meta":
        return name
    offset, sizes = meta["storage_offset"]["as_int"], [int(size["as_int"]) for size in meta["sizes"]]
    return (entry["path_name"], offset, meta["dtype"], math.prod(sizes))


def _parse_graph(graph: Any, sizes: Sizes) -> TracedProgram:
    metas: dict[str, TensorMeta] = {}
    made_by = {name: node["name"] or "" for node in graph["nodes"] for name in _results(node)}
    for name, meta in graph["tensor_values"].items():
        metas[name] = _parse_meta(meta, name, made_by.get(name, name), sizes)
    numbers = {
        name: sizes.resolve_or_none(_parse_size(value))
        for kind in ("sym_int_values", "sym_bool_values", "sym_float_values")
        for name, value in graph.get(kind, {}).items()
    }
    calls = [_parse_call(node, number, numbers, metas, sizes) for number, node in enumerate(graph["nodes"])]
    inputs = tuple(next(iter(_names(argument)), "") for argument in graph["inputs"])
    outputs = tuple(name for argument in graph["outputs"] for name in _names(argument))
    return TracedProgram(metas, (), inputs, tuple(calls), outputs)


def _parse_call(
    node: Any, number: int, numbers: Mapping[str, int | None], metas: dict[str, TensorMeta], sizes: Sizes
) -> TracedCall:
    target = _normalize_target(node["target"])
    arguments = {
        item["name"] or str(place): _parse_argument(item["arg"], numbers, sizes)
        for place, item in enumerate(node["inputs"])
    }
    if target.partition("::")[0] not in _ARITHMETIC:
        for output in node["outputs"]:
            ((kind, content),) = output.items()
            if kind in _NUMBERS:
                metas[content["as_name"]] = TensorMeta((), _NUMBERS[kind])
    results = tuple(_results(node))
    return TracedCall(
        name=str(node.get("name") or (results[0] if results else f"node_{number}")),
        target=target,
        arguments=arguments,
        results=results,
        scope=_scope_of(node.get("metadata") or {}),
        origin=number,
        mutates=written_values(target, arguments),
    )


def _results(node: Any) -> Iterator[str]:
    return (name for output in node["outputs"] for name in _names(output))


def _normalize_target(text: str) -> str:
    """``torch.ops.aten.add.Tensor`` → ``aten::add.Tensor``; Python functions → ``_operator::mul``."""
    if text.startswith("torch.ops."):
        namespace, _, rest = text.removeprefix("torch.ops.").partition(".")
        return f"{namespace}::{rest}"
    module, _, name = text.rpartition(".")
    return f"{module}::{name}"


def _parse_meta(meta: Any, name: str, made_by: str, sizes: Sizes) -> TensorMeta:
    shape = tuple(sizes.resolve(_parse_size(size), name, made_by) for size in meta["sizes"])
    if min(shape, default=0) < 0 or max(shape, default=0) >= 1 << 62:
        raise ModelFileError(f"tensor {name!r} has the shape {shape}", remedy=_SAVE_AGAIN)
    strides = [sizes.resolve_or_none(_parse_size(stride)) for stride in meta["strides"]]
    known = tuple(stride for stride in strides if stride is not None)
    return TensorMeta(shape, SERIALIZED.get(meta["dtype"], "unknown"), known if len(known) == len(shape) else None)


def _parse_size(value: Any) -> Size | None:
    """A number, or the text of an expression; None for other values, such as booleans."""
    ((kind, content),) = value.items()
    if kind == "as_int":
        return int(content)
    return str(content["expr_str"]) if kind == "as_expr" else None


def _parse_argument(argument: Any, numbers: Mapping[str, int | None], sizes: Sizes) -> Any:
    ((kind, content),) = argument.items()
    if kind in ("as_tensor", "as_optional_tensor"):
        return ValueRef(content["name"]) if "name" in content else _parse_argument(content, numbers, sizes)
    if kind == "as_tensors":
        return [ValueRef(item["name"]) for item in content]
    if kind == "as_nested_tensors":
        return [[ValueRef(item["name"]) for item in row] for row in content]
    if kind == "as_name":
        known = numbers.get(content)
        return ValueRef(content) if known is None else known
    if kind in _NUMBERS:
        return _parse_argument(content, numbers, sizes)
    if kind in ("as_sym_ints", "as_sym_bools", "as_sym_floats", "as_optional_tensors"):
        return [_parse_argument(item, numbers, sizes) for item in content]
    if kind == "as_string_to_argument":
        return [_parse_argument(item, numbers, sizes) for item in content.values()]
    if kind == "as_graph":
        return _parse_graph(content["graph"], sizes)
    plain = ("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings", "as_int_lists", "as_float_lists")
    if kind in ("as_float", "as_floats"):
        return [float(item) for item in content] if kind == "as_floats" else float(content)
    return content if kind in plain else None


def _names(argument: Any) -> Iterator[str]:
    """The value names in an argument or result, including nested lists."""
    if isinstance(argument, list):
        for item in argument:
            yield from _names(item)
    elif "name" in argument or "as_name" in argument:
        yield argument.get("name", argument.get("as_name"))
    else:
        ((kind, content),) = argument.items()
        if kind in _VALUES:
            yield from _names(content)


def _scope_of(metadata: Mapping[str, str]) -> str:
    """The path of the innermost module; entries are ``key,path,type``, outermost first."""
    last = str(metadata.get("nn_module_stack", "")).rpartition(";")[2].split(",")
    return clean_scope(last[1]) if len(last) > 2 else ""
