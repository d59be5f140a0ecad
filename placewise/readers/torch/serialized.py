"""The program of a ``.pt2`` archive, as its JSON describes it, as a listing. PyTorch is not needed.

The format is that of torch/_export/serde/schema.py, schema version 8 (PyTorch 2.13).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from placewise.errors import ModelFileError
from placewise.readers.torch.dtypes import SERIALIZED
from placewise.readers.torch.kinds import written_by
from placewise.readers.torch.listing import Call, Listing, Meta, Parameter, Ref
from placewise.readers.torch.scopes import class_of, clean_scope
from placewise.readers.torch.sizes import Range, Size, Sizes
from placewise.readers.torch.symbols import MOST

KNOWN_VERSION = 8
_ARITHMETIC = ("_operator", "math", "torch", "builtins")
_NUMBERS = {"as_sym_int": "int64", "as_sym_bool": "bool", "as_sym_float": "float64"}
_VALUES = ("as_tensor", "as_tensors", "as_optional_tensor", "as_optional_tensors", "as_nested_tensors", *_NUMBERS)
_WEIGHTS = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
_WRITTEN = ("buffer_mutation", "parameter_mutation", "user_input_mutation")
_SAVE_AGAIN = "save the program again with torch.export.save"


def listing_of_json(program: Any, weights: Mapping[str, Any], dims: Mapping[str, int]) -> Listing:
    """A program as plain data, bodies still inside; `weights` says where the bytes of each weight lie.

    Raises ModelFileError for a dimension without a number. A program that is not as the format says leads to
    whatever error its values lead to.
    """
    graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
    inputs, parameters = [], []
    for spec in signature["input_specs"]:
        ((kind, content),) = spec.items()
        if kind in _WEIGHTS:
            name, value = content[_WEIGHTS[kind]], content["arg"]["name"]
            entry = weights.get(name)
            trains = kind == "parameter" and (entry is None or bool(entry["tensor_meta"].get("requires_grad", True)))
            parameters.append(Parameter(value, name, _storage(name, entry), trains))
        elif kind == "user_input" and "as_tensor" in content["arg"]:
            inputs.append(content["arg"]["as_tensor"]["name"])
    shapes = {name: [_size(size) for size in graph["tensor_values"][name]["sizes"]] for name in inputs}
    ranges = {symbol: _range(ends) for symbol, ends in program["range_constraints"].items()}
    body = _body(graph, Sizes({**_numbers_given(graph, signature), **shapes}, dims, ranges=ranges))
    outputs, written = list[str](), list[str]()
    for spec in signature["output_specs"]:
        ((kind, content),) = spec.items()
        if kind in _WRITTEN:
            written.append(content["arg"]["name"])
        elif kind in ("user_output", "loss_output"):
            outputs.extend(_names(content["arg"]))
    return Listing(body.metas, tuple(parameters), tuple(inputs), body.calls, tuple(outputs), tuple(written))


def modules_of_json(program: Any) -> dict[str, str]:
    """The class of each module that the calls of a program were made in, by its path."""
    found: dict[str, str] = {}
    for node in program["graph_module"]["graph"]["nodes"]:
        for entry in str((node.get("metadata") or {}).get("nn_module_stack", "")).split(";"):
            parts = entry.split(",")
            if len(parts) > 2:
                found.setdefault(clean_scope(parts[1]), class_of(parts[2]))
    return found


def _numbers_given(graph: Any, signature: Any) -> dict[str, Size | None]:
    """Inputs that are numbers left open, by name."""
    named = [
        name for spec in signature["input_specs"] if "user_input" in spec for name in _names(spec["user_input"]["arg"])
    ]
    return {name: _size(graph["sym_int_values"][name]) for name in named if name in graph["sym_int_values"]}


def _range(ends: Any) -> Range:
    """The range of a symbol; ends that are open are null, or the largest numbers there are."""
    least, largest = ends.get("min_val"), ends.get("max_val")
    is_open = largest is None or int(largest) >= MOST
    return 0 if least is None else int(least), None if is_open else int(largest)


def _storage(name: str, entry: Any) -> object:
    """Equal for weights that are the same bytes of the same member of the archive.

    Tensors without data (meta) are all written to one member: nothing says which of them are tied.
    """
    meta = None if entry is None else entry["tensor_meta"]
    if meta is None or (meta.get("device") or {}).get("type") == "meta":
        return name
    offset, sizes = meta["storage_offset"]["as_int"], [int(size["as_int"]) for size in meta["sizes"]]
    return (entry["path_name"], offset, meta["dtype"], math.prod(sizes))


def _body(graph: Any, sizes: Sizes) -> Listing:
    metas: dict[str, Meta] = {}
    made_by = {name: node["name"] or "" for node in graph["nodes"] for name in _results(node)}
    for name, meta in graph["tensor_values"].items():
        metas[name] = _meta(meta, name, made_by.get(name, name), sizes)
    numbers = {
        name: sizes.known(_size(value))
        for kind in ("sym_int_values", "sym_bool_values", "sym_float_values")
        for name, value in graph.get(kind, {}).items()
    }
    calls = [_call(node, number, numbers, metas, sizes) for number, node in enumerate(graph["nodes"])]
    inputs = tuple(next(iter(_names(argument)), "") for argument in graph["inputs"])
    outputs = tuple(name for argument in graph["outputs"] for name in _names(argument))
    return Listing(metas, (), inputs, tuple(calls), outputs)


def _call(node: Any, number: int, numbers: Mapping[str, int | None], metas: dict[str, Meta], sizes: Sizes) -> Call:
    target = _target(node["target"])
    arguments = {
        item["name"] or str(place): _argument(item["arg"], numbers, sizes) for place, item in enumerate(node["inputs"])
    }
    if target.partition("::")[0] not in _ARITHMETIC:
        for output in node["outputs"]:
            ((kind, content),) = output.items()
            if kind in _NUMBERS:
                metas[content["as_name"]] = Meta((), _NUMBERS[kind])
    results = tuple(_results(node))
    return Call(
        name=str(node.get("name") or (results[0] if results else f"node_{number}")),
        target=target,
        arguments=arguments,
        results=results,
        scope=_scope(node.get("metadata") or {}),
        origin=number,
        mutates=written_by(target, arguments),
    )


def _results(node: Any) -> Iterator[str]:
    return (name for output in node["outputs"] for name in _names(output))


def _target(text: str) -> str:
    """``torch.ops.aten.add.Tensor`` → ``aten::add.Tensor``; functions of Python as ``_operator::mul``."""
    if text.startswith("torch.ops."):
        namespace, _, rest = text.removeprefix("torch.ops.").partition(".")
        return f"{namespace}::{rest}"
    module, _, name = text.rpartition(".")
    return f"{module}::{name}"


def _meta(meta: Any, name: str, made_by: str, sizes: Sizes) -> Meta:
    shape = tuple(sizes.of(_size(size), name, made_by) for size in meta["sizes"])
    if min(shape, default=0) < 0 or max(shape, default=0) >= 1 << 62:
        raise ModelFileError(f"tensor {name!r} has the shape {shape}", remedy=_SAVE_AGAIN)
    strides = [sizes.known(_size(stride)) for stride in meta["strides"]]
    known = tuple(stride for stride in strides if stride is not None)
    return Meta(shape, SERIALIZED.get(meta["dtype"], "unknown"), known if len(known) == len(shape) else None)


def _size(value: Any) -> Size | None:
    """A number, or the text of an expression; None for what is no size (a truth value, say)."""
    ((kind, content),) = value.items()
    if kind == "as_int":
        return int(content)
    return str(content["expr_str"]) if kind == "as_expr" else None


def _argument(argument: Any, numbers: Mapping[str, int | None], sizes: Sizes) -> Any:
    ((kind, content),) = argument.items()
    if kind in ("as_tensor", "as_optional_tensor"):
        return Ref(content["name"]) if "name" in content else _argument(content, numbers, sizes)
    if kind == "as_tensors":
        return [Ref(item["name"]) for item in content]
    if kind == "as_nested_tensors":
        return [[Ref(item["name"]) for item in row] for row in content]
    if kind == "as_name":
        known = numbers.get(content)
        return Ref(content) if known is None else known
    if kind in _NUMBERS:
        return _argument(content, numbers, sizes)
    if kind in ("as_sym_ints", "as_sym_bools", "as_sym_floats", "as_optional_tensors"):
        return [_argument(item, numbers, sizes) for item in content]
    if kind == "as_string_to_argument":
        return [_argument(item, numbers, sizes) for item in content.values()]
    if kind == "as_graph":
        return _body(content["graph"], sizes)
    plain = ("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings", "as_int_lists", "as_float_lists")
    if kind in ("as_float", "as_floats"):
        return [float(item) for item in content] if kind == "as_floats" else float(content)
    return content if kind in plain else None


def _names(argument: Any) -> Iterator[str]:
    """The values in an argument or result, lists of them included."""
    if isinstance(argument, list):
        for item in argument:
            yield from _names(item)
    elif "name" in argument or "as_name" in argument:
        yield argument.get("name", argument.get("as_name"))
    else:
        ((kind, content),) = argument.items()
        if kind in _VALUES:
            yield from _names(content)


def _scope(metadata: Mapping[str, str]) -> str:
    """The path of the innermost module: entries are ``key,path,type``, the outermost first."""
    last = str(metadata.get("nn_module_stack", "")).rpartition(";")[2].split(",")
    return clean_scope(last[1]) if len(last) > 2 else ""
