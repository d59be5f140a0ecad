"""Models of zeros at the widths of a GGUF model, whose times give the rates of every type of its matrices.

Each has a few layers whose matrices are all of one type, and several times the bytes that caches hold, but for tiny
ones. Times of llama.cpp do not depend on values, but for the choice of experts, and so the embeddings and the routers
are random.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from placewise._util.cores import largest_cache
from placewise.costing.llama_rates import EXPERTS
from placewise.readers.gguf.header import ALIGNMENT, MAGIC, Header
from placewise.readers.gguf.shape import ModelShape, read_shape
from placewise.readers.gguf.types import TYPES, find_type

MOST_BYTES = 256 << 20
"""Bytes of a layer of experts, at most."""
LEAST_BYTES, CACHES, MOST_LEAST = 128 << 20, 4, 256 << 20
"""Bytes of a probe, at least: these, or so many times those of the largest cache, up to a limit."""
BLOCK, HEAD, VOCABULARY = 256, 64, 512
"""Widths are multiples of the largest block of a type, and of the width of a head."""
PROMPTS, LONG = (16, 128), 1024
"""Tokens of prompts that are timed, and of one whose attention counts."""
TINY_LAYERS, LEAST_LAYERS, MAX_LAYERS = 16, 2, 512
"""The last layer of a prompt runs for one token only: a model of one layer would say little of it."""
NO_PRODUCT = ("position_embd.weight", "token_types.weight", "ffn_gate_inp.weight")
"""The ends of the names of matrices that are looked up, and of routers, whose time is that of their experts."""
MXFP4_ZEROS = b"\x70" + bytes(16)
"""A block of zeros whose scale is 2⁻¹⁵: a scale of 0 would be a denormal number, on which processors are slow."""
_VERSION = 3
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9


@dataclass(frozen=True, slots=True)
class Probe:
    """A transformer of llama's architecture. `experts` of 0 is dense; `kind` is the type of its matrices.

    `prompts` are the lengths of the prompts that are timed; tokens are generated after each.
    """

    kind: str
    width: int
    inner: int
    layers: int
    experts: int = 0
    used: int = 0
    prompts: tuple[int, ...] = (16, 128)

    @property
    def fits_caches(self) -> bool:
        """Whether caches may hold a part of its weights."""
        return self.layers * _probe_bytes(replace(self, layers=1)) < count_least_bytes()


def count_least_bytes() -> int:
    """Bytes of weights of which caches hold a small part."""
    return min(max(LEAST_BYTES, CACHES * largest_cache()), MOST_LEAST)


def list_probes(header: Header) -> list[Probe]:
    """For every type of matrices, two dense models of unlike widths, and two of experts where the model has some.

    Before them, tiny models: what a token costs however few its bytes, what each op does, and long attention, with keys
    for every head and for every fourth one.
    """
    shape, sizes = read_shape(header), _count_bytes(header)
    inner = header.number("feed_forward_length", 4 * shape.width) or 4 * shape.width
    dense = {kind.removesuffix(EXPERTS) for kind in sizes}
    tiny = max(dense, key=lambda kind: sizes.get(kind, 0), default="F16")
    probes = [Probe(tiny, BLOCK, BLOCK, 1), Probe(tiny, BLOCK, BLOCK, TINY_LAYERS, prompts=(PROMPTS[0], LONG))]
    probes.append(Probe(tiny, 4 * BLOCK, BLOCK, TINY_LAYERS // 2, prompts=(PROMPTS[0], LONG)))
    for kind in sorted(dense):
        for part in (1, 2):
            probes.append(_size_probe(Probe(kind, _round(shape.width / part), _round(inner / part), 1)))
    for kind in sorted(sizes):
        if kind.endswith(EXPERTS):
            probes += [_size_experts(header, shape, kind.removesuffix(EXPERTS), part) for part in (1, 2)]
    return probes


def write_probe(path: Path, probe: Probe) -> Path:
    """Write the GGUF file of a probe (ggml's docs/gguf.md)."""
    tensors = _list_tensors(probe)
    keys = _list_keys(probe)
    rows, offset = list[bytes](), 0
    for name, shape, kind in tensors:
        code = next(code for code, known in TYPES.items() if known.name == kind)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        rows.append(_text(name) + dims + struct.pack("<IQ", code, offset))
        offset += -(-_tensor_bytes(shape, kind) // ALIGNMENT) * ALIGNMENT
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(keys)) + b"".join(keys) + b"".join(rows))
        file.write(b"\0" * (-file.tell() % ALIGNMENT))
        for name, shape, kind in tensors:
            size, start = _tensor_bytes(shape, kind), file.tell()
            if kind == "F32" and any(part in name for part in ("norm", "embd", "gate_inp")):
                values = 1.0 + 0.02 * rng.standard_normal(shape) if "norm" in name else rng.standard_normal(shape)
                file.write(values.astype("<f4").tobytes())
            elif kind == "MXFP4":
                file.write(MXFP4_ZEROS * (size // len(MXFP4_ZEROS)))
            file.seek(start + -(-size // ALIGNMENT) * ALIGNMENT)
        file.truncate()
    return path


def _count_bytes(header: Header) -> dict[str, int]:
    """Bytes of matrices by type, those of experts apart; the embedding is looked up, and no product."""
    sizes: dict[str, int] = {}
    tied = all(tensor.name != "output.weight" for tensor in header.tensors)
    for tensor in header.tensors:
        looked_up = tensor.name == "token_embd.weight" and not tied
        if len(tensor.shape) < 2 or looked_up or tensor.name.endswith(NO_PRODUCT):
            continue
        kind = f"{tensor.type}{EXPERTS}" if "_exps" in tensor.name else tensor.type
        sizes[kind] = sizes.get(kind, 0) + tensor.nbytes
    return sizes


def _size_experts(header: Header, shape: ModelShape, kind: str, part: int) -> Probe:
    """A model of as many experts that have a `part` of their width, or less where a layer has too many bytes."""
    count = next(t.shape[0] for t in header.tensors if t.name.endswith("ffn_down_exps.weight"))
    inner = next(t.shape[-1] for t in header.tensors if t.name.endswith("ffn_down_exps.weight"))
    probe = Probe(kind, _round(shape.width), _round(inner), 1, count, min(shape.experts_used, count))
    shrunk = max(_probe_bytes(probe) / MOST_BYTES, 1.0) * part
    return _size_probe(replace(probe, inner=_round(inner / shrunk)))


def _size_probe(probe: Probe) -> Probe:
    """The probe with as many layers as caches cannot hold, or as llama.cpp takes (``LLAMA_MAX_LAYERS``)."""
    layers = max(math.ceil(count_least_bytes() / _probe_bytes(probe)), LEAST_LAYERS)
    return replace(probe, layers=min(layers, MAX_LAYERS))


def _probe_bytes(probe: Probe) -> int:
    return sum(_tensor_bytes(shape, kind) for name, shape, kind in _list_tensors(probe) if name.startswith("blk"))


def _round(width: float) -> int:
    return max(round(width / BLOCK), 1) * BLOCK


def _tensor_bytes(shape: Iterable[int], kind: str) -> int:
    known = find_type(kind)
    return math.prod(shape) // known.block * known.block_bytes


def _list_tensors(probe: Probe) -> list[tuple[str, tuple[int, ...], str]]:
    """Names, shapes with the rows first, and types."""
    width, inner, kind = probe.width, probe.inner, probe.kind
    shared = max(width // 4 // BLOCK, 1) * BLOCK
    parts: dict[str, tuple[tuple[int, ...], str]] = {
        "attn_norm": ((width,), "F32"), "attn_q": ((width, width), kind), "attn_k": ((shared, width), kind),
        "attn_v": ((shared, width), kind), "attn_output": ((width, width), kind), "ffn_norm": ((width,), "F32"),
    }  # fmt: skip
    if probe.experts:
        wide, narrow = (probe.experts, inner, width), (probe.experts, width, inner)
        parts |= {"ffn_gate_inp": ((probe.experts, width), "F32"), "ffn_gate_exps": (wide, kind)}
        parts |= {"ffn_up_exps": (wide, kind), "ffn_down_exps": (narrow, kind)}
    else:
        parts |= {"ffn_gate": ((inner, width), kind), "ffn_up": ((inner, width), kind)}
        parts |= {"ffn_down": ((width, inner), kind)}
    ends = {"token_embd": ((VOCABULARY, width), "F32"), "output_norm": ((width,), "F32")}
    ends |= {"output": ((VOCABULARY, width), kind)}
    rows = [(f"{name}.weight", *part) for name, part in ends.items()]
    return rows + [
        (f"blk.{layer}.{name}.weight", *part) for layer in range(probe.layers) for name, part in parts.items()
    ]


def _list_keys(probe: Probe) -> list[bytes]:
    """The metadata: sizes, and the least tokenizer that llama.cpp loads."""
    heads = probe.width // HEAD
    shared = max(probe.width // 4 // BLOCK, 1) * BLOCK // HEAD
    numbers: Mapping[str, int] = {
        "block_count": probe.layers, "context_length": 1 << 15, "embedding_length": probe.width,
        "feed_forward_length": probe.inner, "attention.head_count": heads, "attention.head_count_kv": shared,
        "rope.dimension_count": HEAD, "vocab_size": VOCABULARY,
        **({"expert_count": probe.experts, "expert_used_count": probe.used} if probe.experts else {}),
        **({"expert_feed_forward_length": probe.inner} if probe.experts else {}),
    }  # fmt: skip
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"▁t{number}" for number in range(VOCABULARY - len(tokens))]
    kinds = [2, 3, 3, *([6] * 256), *([1] * (VOCABULARY - 259))]
    prefix = "tokenizer.ggml"
    return [
        _text("general.architecture") + struct.pack("<I", _STRING) + _text("llama"),
        *(_text(f"llama.{name}") + struct.pack("<II", _UINT32, value) for name, value in numbers.items()),
        _text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _FLOAT32, 1e-5),
        _text(f"{prefix}.model") + struct.pack("<I", _STRING) + _text("llama"),
        _text(f"{prefix}.tokens") + struct.pack("<IIQ", _ARRAY, _STRING, len(tokens)) + b"".join(map(_text, tokens)),
        _text(f"{prefix}.scores") + struct.pack("<IIQ", _ARRAY, _FLOAT32, VOCABULARY) + bytes(4 * VOCABULARY),
        _text(f"{prefix}.token_type") + struct.pack(f"<IIQ{VOCABULARY}i", _ARRAY, _INT32, VOCABULARY, *kinds),
    ]  # fmt: skip


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
