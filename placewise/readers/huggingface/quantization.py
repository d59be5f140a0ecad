"""The ``quantization_config`` of a configuration: which weights are packed, and how many bytes they take.

Formats: GPTQ and AWQ as AutoGPTQ and AutoAWQ store them, bitsandbytes (NF4, FP4, LLM.int8), compressed-tensors, FP8 by
block, row or tensor (DeepSeek-V3, FBGEMM), and MXFP4 (gpt-oss). Each stores a matrix [outputs, inputs] as packed
entries with scales, and some with zero points and an index of groups.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from placewise._util.regex import compiled, in_time
from placewise._util.text import shortened
from placewise.errors import ModelFileError

KEYS = ("quantization_config", "compression_config")
LINEAR = "Linear"
"""What compressed-tensors calls all linear layers."""
_BITS = (1, 2, 3, 4, 5, 6, 7, 8)
_ANY_NUMBER = re.compile(r"(\[0-9\]|\\d)[+*]")
"""What stands for any number in an expression."""
_NUMBERED, _NUMBERED_EXPERT = re.compile(r"^re:.*(\d|\\d)"), re.compile(r"expert.*\d")
"""Expressions and other names that may choose experts by their numbers."""
_SMALL_SCALES = ("uint8", "float8_e8m0fnu", "float8_e4m3fn")
"""Types of scales that take a byte."""
_NESTED = 256
"""bitsandbytes: how many scales of 8 bits share one of 32 bits."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How a matrix is stored: `bits` per entry, and a scale for each `block` of (outputs, inputs; 0: all of them).

    A scale takes `scale_bytes`, its zero point `zero_bits`; every input takes `index_bytes`, a matrix `constant` bytes
    more. `dtype` is the element type of the graph.
    """

    bits: int
    dtype: str
    block: tuple[int, int]
    scale_bytes: float
    zero_bits: int = 0
    index_bytes: int = 0
    constant: int = 0

    def count_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of a matrix, scales included.

        >>> Packing(4, "int4", (1, 128), 2, zero_bits=4, index_bytes=4).count_bytes(4096, 4096)  # GPTQ
        8732672
        """
        rows, columns = (
            math.ceil(size / each) if each else 1 for size, each in zip((outputs, inputs), self.block, strict=True)
        )
        beside = rows * columns * (self.scale_bytes + self.zero_bits / 8)
        return math.ceil(outputs * inputs * self.bits / 8 + beside + self.index_bytes * inputs + self.constant)


@dataclass(frozen=True)
class Quantization:
    """The packing of the modules that a name of `targets` matches, but for those that one of `ignored` matches.

    `experts` says that only experts are packed, `head` that the head of a language model may be; `sparsity` is the name
    of one that makes the weights smaller still, which is not counted.
    """

    method: str
    targets: tuple[tuple[str, Packing | None], ...]
    ignored: tuple[str, ...] = ()
    experts: bool = False
    head: bool = False
    sparsity: str = ""

    @cached_property
    def _plain(self) -> frozenset[str]:
        """The ignored names without expressions and wildcards, of which there may be thousands."""
        return frozenset(".".join(_split_name(name)) for name in self.ignored if not _is_expression(name)) - {""}

    @cached_property
    def _expressions(self) -> tuple[str, ...]:
        return tuple(filter(_is_expression, self.ignored))

    @property
    def numbers_experts(self) -> bool:
        """Whether a rule may be for some of the experts of a layer."""
        names = (*self.ignored, *(name for name, _ in self.targets))
        known = (_ANY_NUMBER.sub("", name) for name in names)
        return any(_NUMBERED.search(name) or _NUMBERED_EXPERT.search(name) for name in known)

    def find_packing(self, path: str) -> Packing | None:
        """The packing of the linear layer at a path; None if it is left as it is."""
        if self._plain & _list_parts(path) or any(match_name(name, path) for name in self._expressions):
            return None
        return next((packing for name, packing in self.targets if name == LINEAR or match_name(name, path)), None)


def read_quantization(values: Mapping[str, Any], float_bytes: int) -> tuple[Quantization | None, str]:
    """The quantization of a configuration, and the name of its method, "" for none; None for an unknown one.

    `float_bytes` are those of a float of the model. Raises ModelFileError for values that make no sense.
    """
    parts = (values, values.get("text_config"))
    given = next((part[key] for part in parts if isinstance(part, dict) for key in KEYS if part.get(key)), None)
    if given is None:
        return None, ""
    if not isinstance(given, dict):
        raise ModelFileError("its quantization_config is no object", remedy="give the config.json of a model")
    method = str(given.get("quant_method") or _guess_method(given))
    reader = _READERS.get(method)
    found = reader(given, float_bytes) if reader else None
    return (None if found is None else replace(found, method=method)), shortened(method, 30)


def match_name(name: str, path: str) -> bool:
    """Whether a name of a configuration means a module: an expression after ``re:``, or some parts of its path.

    A ``*`` is any part. The parts of a model that reads pictures, too, are called by the paths of its text model.

    >>> match_name("lm_head", "lm_head"), match_name("layers.*.mlp", "model.layers.3.mlp.up_proj")
    (True, True)
    """
    if name.startswith("re:"):
        pattern = compiled(name.removeprefix("re:"))
        with in_time(pattern.pattern, 1):
            return pattern.match(path) is not None
    wanted, parts = _split_name(name), _split_name(path)
    places = range(len(parts) - len(wanted) + 1)
    return any(
        all(one in ("*", part) for one, part in zip(wanted, parts[place:], strict=False)) for place in places
    ) and bool(name)


def _split_name(name: str) -> list[str]:
    """The parts of a name but that which only models have that read pictures, too."""
    return [part for part in name.rstrip(".").split(".") if part != "language_model"]


def _is_expression(name: str) -> bool:
    """Whether a name may mean modules that do not have its parts in their paths: the language model is all of them."""
    return name.startswith("re:") or "*" in name or not _split_name(name)


def _list_parts(path: str) -> set[str]:
    """All runs of parts of a path.

    >>> sorted(_list_parts("a.b"))
    ['a', 'a.b', 'b']
    """
    parts = _split_name(path)
    return {".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1)}


def _guess_method(given: Mapping[str, Any]) -> str:
    return "bitsandbytes" if given.get("load_in_4bit") or given.get("load_in_8bit") else ""


def _read_gptq(given: Mapping[str, Any], _float_bytes: int) -> Quantization:
    """Packed entries, zero points, scales of float16, and the group of every input (AutoGPTQ, `QuantLinear`)."""

    def pack(part: Mapping[str, Any]) -> Packing:
        bits, group = _number(part, "bits", 4, _BITS), _group(part, 128)
        return Packing(bits, _integers(bits), (1, group), 2, zero_bits=bits, index_bytes=4)

    rules = [*_mapping(given, "dynamic").items()]
    ignored = [f"re:{name.removeprefix('-:')}" for name, _ in rules if name.startswith("-:")]
    own = [
        (f"re:{name.removeprefix('+:')}", pack({**given, **part}))
        for name, part in rules
        if not name.startswith("-:") and isinstance(part, dict)
    ]
    listed = given.get("modules_in_block_to_quantize")
    names = [str(name) for part in listed for name in (part if isinstance(part, list) else [part])] if isinstance(
        listed, list) else [LINEAR]  # fmt: skip
    targets = (*own, *((name, pack(given)) for name in names))
    return Quantization("", targets, tuple(ignored), head=given.get("lm_head") is True)


def _read_awq(given: Mapping[str, Any], _float_bytes: int) -> Quantization:
    """Packed entries, zero points and scales of float16 (AutoAWQ, `WQLinear_GEMM`)."""
    bits = _number(given, "bits" if "bits" in given else "w_bit", 4, (4, 8))
    group = _group(given, 128, "group_size" if "group_size" in given else "q_group_size")
    packing = Packing(bits, _integers(bits), (1, group), 2, zero_bits=bits)
    return Quantization("", ((LINEAR, packing),), _names(given, "modules_to_not_convert"))


def _read_bitsandbytes(given: Mapping[str, Any], _float_bytes: int) -> Quantization:
    """Blocks of 64 entries of 4 bits, whose scales may be quantized as well; or rows of 8 bits."""
    ignored = _names(given, "llm_int8_skip_modules")
    if given.get("load_in_8bit") or given.get("quant_method") == "bitsandbytes_8bit":
        return Quantization("", ((LINEAR, Packing(8, "int8", (1, 0), 4)),), ignored)
    if given.get("load_in_4bit") is False:
        return Quantization("", ())
    nested = given.get("bnb_4bit_use_double_quant") is True
    scale, table = (1 + 4 / _NESTED, 4 * (16 + _NESTED)) if nested else (4, 4 * 16)
    return Quantization("", ((LINEAR, Packing(4, "int4", (1, 64), scale, constant=table)),), ignored)


def _read_fp8(given: Mapping[str, Any], _float_bytes: int) -> Quantization:
    """Entries of 8 bits with a scale of float32 per block, or per matrix."""
    block = given.get("weight_block_size")
    if block is not None and not (
        isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)
    ):
        raise _wrong("weight_block_size", block)
    packing = Packing(8, "float8_e4m3", (block[0], block[1]) if block else (0, 0), 4)
    return Quantization("", ((LINEAR, packing),), _names(given, "modules_to_not_convert"))


def _read_fbgemm(given: Mapping[str, Any], _float_bytes: int) -> Quantization:
    packing = Packing(8, "float8_e4m3", (1, 0), 4)
    return Quantization("", ((LINEAR, packing),), _names(given, "modules_to_not_convert"))


def _read_mxfp4(given: Mapping[str, Any], _float_bytes: int) -> Quantization:
    """Of gpt-oss: blocks of 32 entries of 4 bits with a scale of 8 bits, in experts alone."""
    packing = Packing(4, "float4_e2m1", (1, 32), 1)
    return Quantization("", ((LINEAR, packing),), _names(given, "modules_to_not_convert"), experts=True)


def _read_compressed(given: Mapping[str, Any], float_bytes: int) -> Quantization:
    """Groups of modules, each with the format of its weights (compressed-tensors, `QuantizationArgs`)."""
    targets: list[tuple[str, Packing | None]] = []
    for group in _mapping(given, "config_groups").values():
        if isinstance(group, dict):
            packing = _pack_compressed(group, float_bytes, str(group.get("format") or given.get("format") or ""))
            targets += [(name, packing) for name in _names(group, "targets") or (LINEAR,)]
    named = sorted(targets, key=lambda target: target[0] == LINEAR)
    return Quantization("", tuple(named), _names(given, "ignore"), head=True, sparsity=_find_sparsity(given))


def _find_sparsity(given: Mapping[str, Any]) -> str:
    """The name of a format that leaves out entries; "" for none."""
    form, sparse = str(given.get("format") or ""), _mapping(given, "sparsity_config")
    if "24" in form:
        return form
    named = str(sparse.get("format") or "") if sparse.get("sparsity_structure") else ""
    return "" if named == "dense" else shortened(named, 30)


def _pack_compressed(group: Mapping[str, Any], float_bytes: int, form: str) -> Packing | None:
    weights = group.get("weights")
    if weights is None:
        return None
    if not isinstance(weights, dict):
        raise _wrong("weights", weights)
    bits, floats = _number(weights, "num_bits", 8, _BITS), weights.get("type") == "float"
    packed = form == "pack-quantized" or bits < 8
    strategy = str(weights.get("strategy") or ("group" if weights.get("group_size") else "tensor"))
    if strategy == "block":
        structure = weights.get("block_structure")
        block = tuple(structure) if isinstance(structure, list) and len(structure) == 2 else (128, 128)
        if not all(type(size) is int and size > 0 for size in block):
            raise _wrong("block_structure", structure)
    else:
        sizes = {"tensor": (0, 0), "channel": (1, 0)}
        block = sizes.get(strategy) or (1, _group(weights, 128))
    if floats and bits == 4:
        return Packing(4, "float4_e2m1", (block[0], block[1]), 1, constant=8)
    dtype = "float8_e4m3" if floats and group.get("input_activations") else _integers(bits)
    zero = 0 if weights.get("symmetric", True) or floats else bits if packed else 8
    index = 4 if weights.get("actorder") == "group" else 0
    scale = 1 if str(weights.get("scale_dtype")).endswith(_SMALL_SCALES) else float_bytes
    return Packing(bits, dtype, (block[0], block[1]), scale, zero, index, constant=16 if packed else 0)


_READERS: Mapping[str, Callable[[Mapping[str, Any], int], Quantization]] = {
    "gptq": _read_gptq,
    "awq": _read_awq,
    "bitsandbytes": _read_bitsandbytes,
    "bitsandbytes_4bit": _read_bitsandbytes,
    "bitsandbytes_8bit": _read_bitsandbytes,
    "fp8": _read_fp8,
    "fbgemm_fp8": _read_fbgemm,
    "mxfp4": _read_mxfp4,
    "compressed-tensors": _read_compressed,
}


def _integers(bits: int) -> str:
    return "int2" if bits < 3 else "int4" if bits < 5 else "int8"


def _number(part: Mapping[str, Any], key: str, default: int, allowed: Sequence[int]) -> int:
    value = part.get(key, default)
    if type(value) is not int or value not in allowed:
        raise _wrong(key, value)
    return value


def _group(part: Mapping[str, Any], default: int, key: str = "group_size") -> int:
    """Inputs per scale; 0 for all, which is written as -1."""
    value = part.get(key, default)
    value = default if value is None else value
    if type(value) is not int or not (value == -1 or 0 < value < 1 << 31):
        raise _wrong(key, value)
    return max(value, 0)


def _names(part: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = part.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _wrong(key, value)
    return tuple(value)


def _mapping(part: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = part.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(key, value)
    return value


def _wrong(key: str, value: Any) -> ModelFileError:
    return ModelFileError(
        f"its quantization_config has the {key} {shortened(repr(value), 40)}", remedy="check the configuration"
    )
