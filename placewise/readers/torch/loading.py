"""Load a program of torch.export without running anything that its file holds.

`torch.export.load` unpickles sample inputs, pickled weights and custom objects, evaluates size expressions, looks up
functions by name, writes names into source code that it executes, and loads compiled libraries. Here every string of
the description is checked first, weights are read as plain bytes, and nothing else of the archive is opened.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

import ast
import io
import json
import keyword
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

MAX_DESCRIPTION = 256 << 20
MAX_EXPRESSION, MAX_DIGITS, MAX_POWER, MAX_SYMBOL = 20_000, 20, 64, 10**6
_ARITHMETIC = """Symbol Integer Rational Float Add Mul Pow Max Min Abs Eq Ne Equality Unequality Lt Le Gt Ge LessThan
    GreaterThan StrictLessThan StrictGreaterThan And Or Not Piecewise ExprCondPair Mod floor ceiling FloorDiv
    ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural FloatPow
    FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat
    Identity"""
_FUNCTIONS = frozenset(_ARITHMETIC.split())
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
_NAMESPACES = frozenset({"aten", "prims", "quantized", "quantized_decomposed", "torchao", "torchvision"})
_CALLING = """associative_scan auto_functionalized auto_functionalized_v2 checkpoint cond flex_attention
    flex_attention_backward invoke_subgraph map map_impl out_dtype scan strict_mode tag_activation_checkpoint
    while_loop wrap wrap_activation_checkpoint wrap_with_autocast wrap_with_set_grad_enabled"""
_BODIES = frozenset(_CALLING.split())
"""Operators of PyTorch that call graphs of the program."""
_PYTHON = "eq ne le ge lt gt neg pos mul add sub floordiv mod pow truediv and_ or_ not_ lshift rshift getitem"
_SYMBOLIC = "sym_not sym_int sym_float sym_ite sym_max sym_min sym_sqrt _sym_sqrt"
_ON_NUMBERS = frozenset(
    [*(f"_operator.{name}" for name in _PYTHON.split()), *(f"torch.{name}" for name in _SYMBOLIC.split()), "math.trunc"]
)
_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.(\w+))?", re.ASCII)
_PLAIN = re.compile(r"[\w.:,+<=>@$ /-]*", re.ASCII)
_SYMBOL = re.compile(r"[A-Za-z]+(\d*)", re.ASCII)
_TEXTS = frozenset({"as_string", "as_strings"})
"""Where any text may stand: an operator's own argument."""
_NAMES = frozenset({"name", "as_name", "user_input_name"})
_NAMED = frozenset({"tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values"})
"""Tables with names of values as keys, of which one may be "target"."""
_TABLES = _NAMED | {"as_string_to_argument"}
"""Tables whose keys are no fields, and mean nothing."""


class UnsafeProgram(ValueError):
    """Loading the program would run something that its file holds, or the file is damaged; the message says what."""


def load_program(path: str, *, trust_model: bool = False) -> ExportedProgram:
    """The program of a ``.pt2`` archive, without its sample inputs.

    With `trust_model`, torch.export.load runs whatever the file holds. Raises UnsafeProgram, and any error of PyTorch.
    """
    if trust_model:
        return torch.export.load(path)
    from torch._export.serde import schema, serialize

    with zipfile.ZipFile(path) as archive:
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        programs = [name for name in members if re.fullmatch(r"models/[^/]+\.json", name)]
        if len(programs) != 1:
            raise UnsafeProgram(f"the archive holds {len(programs)} programs")
        name = programs[0].removeprefix("models/").removesuffix(".json")
        description = plain_description(_read_json(archive, members[programs[0]]))
        weights = _read_tensors(archive, members, "weights", name)
        constants = _read_tensors(archive, members, "constants", name)
    for target in _operators_in(description):
        require_operator(target)
    parsed = serialize._dict_to_dataclass(schema.ExportedProgram, description)  # type: ignore[no-untyped-call] # noqa: SLF001
    return serialize.ExportedProgramDeserializer().deserialize(parsed, weights, constants, b"")


def sample_inputs(program: ExportedProgram) -> list[torch.Tensor]:
    """A tensor for every input of a program, in order: normal floats, and integers of 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    drawn = []
    for spec in program.graph_signature.input_specs:
        value = values.get(spec.arg.name)
        if spec.kind == InputKind.USER_INPUT and isinstance(value, torch.Tensor):
            shape = [int(size) for size in value.shape]
            if value.is_floating_point() or value.is_complex():
                drawn.append(torch.randn(shape, generator=generator).to(value.dtype))
            else:
                drawn.append(torch.randint(0, 2, shape, generator=generator).to(value.dtype))
    return drawn


def plain_description(document: Any) -> dict[str, Any]:
    """The description of a program, with every string checked, and without what loading it does not need.

    Raises UnsafeProgram.
    """
    try:
        module: dict[str, Any] = document["graph_module"]
        inputs = sum(bool({"user_input", "constant_input"} & set(spec)) for spec in module["signature"]["input_specs"])
        outputs = sum(bool({"user_output", "loss_output"} & set(spec)) for spec in module["signature"]["output_specs"])
        plain = {
            "graph_module": {
                "graph": _plain_value(module["graph"]),
                "signature": _plain_value(module["signature"]),
                "module_call_graph": [{"fqn": "", "signature": _flat_signature(inputs, outputs)}],
                "metadata": {},
                "treespec_namedtuple_fields": {},
            },
            "opset_version": document["opset_version"],
            "range_constraints": _plain_ranges(document["range_constraints"]),
            "schema_version": document["schema_version"],
            "verifiers": ["TRAINING"],
            "torch_version": "",
            "guards_code": [],
        }
        _check_strings(plain["opset_version"], "")
        _check_strings(plain["schema_version"], "")
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnsafeProgram(f"its description is damaged ({type(error).__name__})") from None
    return plain


def plain_expression(text: Any) -> str:
    """A size expression that holds nothing but arithmetic of symbols, written anew. Raises UnsafeProgram."""
    if not isinstance(text, str) or len(text) > MAX_EXPRESSION:
        raise UnsafeProgram("a size is no expression, or too long")
    try:
        tree = ast.parse(text, mode="eval").body
        _check_expression(tree, power=False)
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnsafeProgram(f"the size {text[:80]!r} is more than arithmetic") from None


def require_operator(target: str) -> None:
    """Raise UnsafeProgram for a call of anything but an operator that computes tensors or numbers."""
    if target in _ON_NUMBERS:
        return
    namespace, name, overload = _split_operator(target)
    found: Any = getattr(getattr(torch.ops, namespace), name, None)
    if namespace == "higher_order":
        return
    found = getattr(found, overload, None)
    schema = getattr(found, "_schema", None)
    if not isinstance(found, torch._ops.OpOverload) or schema is None:  # noqa: SLF001
        raise UnsafeProgram(f"it calls {target[:80]!r}, which PyTorch does not have here")
    if any("filename" in argument.name for argument in schema.arguments):
        raise UnsafeProgram(f"it calls {target[:80]!r}, which opens files")


def _split_operator(target: str) -> tuple[str, str, str]:
    """``torch.ops.aten.add.Tensor`` → its namespace, name and overload. Raises UnsafeProgram for other functions."""
    match = _OPERATOR.fullmatch(target)
    namespace, name, overload = match.groups() if match else ("", "", None)
    known = name in _BODIES and overload is None if namespace == "higher_order" else bool(overload)
    if not known or (namespace not in _NAMESPACES and namespace != "higher_order"):
        raise UnsafeProgram(f"it calls {target[:80]!r}, which is no operator of a model")
    return namespace, name, overload or ""


def _operators_in(value: Any, key: str = "") -> Iterator[str]:
    """Every operator that a checked description calls or passes on; `key` is the last one above it."""
    if isinstance(value, list):
        for item in value:
            yield from _operators_in(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in ("target", "as_operator") and key not in _TABLES:
                yield item
            yield from _operators_in(item, "" if key in _TABLES else name)


def _plain_value(value: Any, key: str = "") -> Any:
    """A part of a description, checked; `key` is the last one above it."""
    if isinstance(value, list):
        return [_plain_value(item, key) for item in value]
    if not isinstance(value, dict):
        _check_strings(value, key)
        return value
    if key in _TABLES:
        _check_strings(list(value), "name" if key in _NAMED else "")
        return {name: _plain_value(item) for name, item in value.items()}
    plain: dict[str, Any] = {}
    for name, item in value.items():
        if name in ("custom_obj", "as_custom_obj", "class_fqn") or (name == "custom_obj_values" and item):
            raise UnsafeProgram("it holds custom objects, which are unpickled")
        _check_strings(name, "")
        if name == "expr_str":
            plain[name] = plain_expression(item)
        elif name == "metadata":
            plain[name] = {}
        else:
            plain[name] = _plain_value(item, name)
    return plain


def _check_strings(value: Any, key: str) -> None:
    if isinstance(value, (list, dict)):
        for item in value.items() if isinstance(value, dict) else value:
            _check_strings(list(item) if isinstance(item, tuple) else item, key)
    if key in ("target", "as_operator"):
        if not isinstance(value, str):
            raise UnsafeProgram("it calls something without a name")
        if value not in _ON_NUMBERS:
            _split_operator(value)
    elif isinstance(value, str) and key not in _TEXTS:
        named = key in _NAMES and value
        if not _PLAIN.fullmatch(value) or (named and (not value.isidentifier() or keyword.iskeyword(value))):
            raise UnsafeProgram(f"the name {value[:80]!r} would become source code")


def _check_expression(node: ast.AST, *, power: bool) -> None:
    """Raise ValueError for anything but calls of known functions with numbers and symbols; `power` is inside of one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        if abs(node.value) >= 10**MAX_DIGITS:
            raise ValueError
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check_expression(node.operand, power=power)
    elif isinstance(node, ast.Name) and node.id[-1].isdigit():
        _check_symbol(node.id)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        _check_call(node, node.func.id, power=power)
    else:
        raise ValueError


def _check_call(node: ast.Call, name: str, *, power: bool) -> None:
    settings = [getattr(item.value, "value", None) for item in node.keywords]
    if not all(type(setting) in (bool, int) for setting in settings):
        raise ValueError
    arguments = list(node.args)
    if name in ("Symbol", "Float", "Integer") and arguments and isinstance(arguments[0], ast.Constant):
        first = arguments[0].value
        if isinstance(first, str):
            if name == "Symbol":
                _check_symbol(first)
            elif len(first) > MAX_DIGITS + 10 or abs(float(first)) >= 10**MAX_DIGITS:
                raise ValueError
            arguments = arguments[1:]
    if name in _POWERS:
        inside = [item for argument in arguments[1:] for item in ast.walk(argument)]
        numbers = [item.value for item in inside if isinstance(item, ast.Constant)]
        if power or not all(isinstance(each, (int, float)) and abs(each) <= MAX_POWER for each in numbers):
            raise ValueError
    for argument in arguments:
        _check_expression(argument, power=power or name in _POWERS)


def _check_symbol(name: str) -> None:
    """Raise ValueError unless this is a symbol's name, such as ``s77`` or ``u0``: loading counts up to the number."""
    match = _SYMBOL.fullmatch(name)
    if match is None or keyword.iskeyword(name) or int(match[1][:MAX_DIGITS] or 0) > MAX_SYMBOL:
        raise ValueError


def _plain_ranges(ranges: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for symbol, ends in ranges.items():
        try:
            _check_symbol(symbol)
        except ValueError:
            raise UnsafeProgram(f"the symbol {symbol[:80]!r} is none of torch.export") from None
        least, most = (ends.get(end) for end in ("min_val", "max_val"))
        if not all(end is None or type(end) is int for end in (least, most)):
            raise UnsafeProgram(f"the range of the symbol {symbol} is no range")
        plain[symbol] = {"min_val": least, "max_val": most}
    return plain


def _flat_signature(inputs: int, outputs: int) -> dict[str, Any]:
    """A call that takes all inputs by position and returns a tuple."""
    from torch.utils import _pytree as pytree

    trees: tuple[Any, Any] = (tuple(range(inputs)), {}), tuple(range(outputs))
    specs = [pytree.treespec_dumps(pytree.tree_structure(tree)) for tree in trees]
    return {"inputs": [], "outputs": [], "in_spec": specs[0], "out_spec": specs[1], "forward_arg_names": []}


def _read_tensors(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], part: str, program: str
) -> dict[str, torch.Tensor]:
    """The weights or constants of a program by name."""
    folder = f"data/{part}/"
    if f"{folder}{program}.pt" in members:  # PyTorch 2.8
        return _unpickle_tensors(archive.read(members[f"{folder}{program}.pt"]), part)
    config = _read_json(archive, members[f"{folder}{program}_{part}_config.json"])["config"]
    payloads: dict[str, torch.Tensor] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, entry in config.items():
        _check_strings(name, "")
        path, meta = str(entry["path_name"]), entry["tensor_meta"]
        if entry["use_pickle"] or meta is None:
            raise UnsafeProgram(f"its {part} hold a pickled object, {name[:80]!r}")
        dtype = _dtype_of(meta["dtype"])
        size, stride, (offset,) = (
            [_whole(number) for number in numbers]
            for numbers in (meta["sizes"], meta["strides"], [meta["storage_offset"]])
        )
        if path not in payloads:
            payloads[path] = _read_bytes(archive, members[folder + path])
        if len(payloads[path]):
            value = payloads[path].view(dtype).as_strided(size, stride, offset)
        else:
            value = torch.zeros(size, dtype=dtype, device="meta" if meta["device"]["type"] == "meta" else "cpu")
        trains = bool(meta["requires_grad"])
        tensors[name] = torch.nn.Parameter(value, requires_grad=trains) if entry["is_param"] else value
    return tensors


def _unpickle_tensors(data: bytes, part: str) -> dict[str, torch.Tensor]:
    """A table of plain tensors; PyTorch's restricted unpickler makes nothing else."""
    try:
        tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise UnsafeProgram(f"its {part} hold more than tensors ({type(error).__name__})") from None
    kinds = (torch.Tensor, torch.nn.Parameter)
    if not isinstance(tensors, dict) or not all(type(value) in kinds for value in tensors.values()):
        raise UnsafeProgram(f"its {part} hold more than tensors")
    for name in tensors:
        _check_strings(name, "")
    return tensors


def _read_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> torch.Tensor:
    """A member as a tensor of bytes; tensors are stored uncompressed, so none is larger than the archive."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise UnsafeProgram(f"the archive's file {info.filename[:80]!r} is compressed")
    data = torch.empty(info.file_size, dtype=torch.uint8)
    view = memoryview(data.numpy())  # type: ignore[arg-type]
    with archive.open(info) as file:
        read = 0
        while read < len(view):
            count = file.readinto(view[read : read + (1 << 24)])  # type: ignore[attr-defined]
            if not count:
                raise UnsafeProgram(f"the archive's file {info.filename[:80]!r} is cut off")
            read += count
    return data


def _read_json(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    if info.file_size > MAX_DESCRIPTION:
        raise UnsafeProgram(f"the archive's file {info.filename[:80]!r} is too large")
    try:
        return json.loads(archive.read(info))
    except (ValueError, RecursionError):
        raise UnsafeProgram(f"the archive's file {info.filename[:80]!r} is not JSON") from None


def _dtype_of(number: Any) -> torch.dtype:
    from torch._export.serde import serialize

    dtype: torch.dtype = serialize._SERIALIZE_TO_TORCH_DTYPE[number]  # noqa: SLF001
    return dtype


def _whole(number: Mapping[str, Any]) -> int:
    if type(number.get("as_int")) is not int:
        raise UnsafeProgram("the shape of a weight is open")
    return int(number["as_int"])
