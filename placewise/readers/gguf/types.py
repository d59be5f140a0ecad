"""The types of tensors in GGUF files: how many entries a block has, and how many bytes (ggml.h, gguf-py/gguf)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class TensorType(NamedTuple):
    """A type by its name in ggml; a block of so many entries takes so many bytes."""

    name: str
    block: int
    block_bytes: int

    @property
    def bits(self) -> float:
        """Bits per entry, scales included."""
        return 8 * self.block_bytes / self.block


TYPES: Mapping[int, TensorType] = MappingProxyType(
    {
        0: TensorType("F32", 1, 4),
        1: TensorType("F16", 1, 2),
        2: TensorType("Q4_0", 32, 18),
        3: TensorType("Q4_1", 32, 20),
        6: TensorType("Q5_0", 32, 22),
        7: TensorType("Q5_1", 32, 24),
        8: TensorType("Q8_0", 32, 34),
        9: TensorType("Q8_1", 32, 40),
        10: TensorType("Q2_K", 256, 84),
        11: TensorType("Q3_K", 256, 110),
        12: TensorType("Q4_K", 256, 144),
        13: TensorType("Q5_K", 256, 176),
        14: TensorType("Q6_K", 256, 210),
        15: TensorType("Q8_K", 256, 292),
        16: TensorType("IQ2_XXS", 256, 66),
        17: TensorType("IQ2_XS", 256, 74),
        18: TensorType("IQ3_XXS", 256, 98),
        19: TensorType("IQ1_S", 256, 50),
        20: TensorType("IQ4_NL", 32, 18),
        21: TensorType("IQ3_S", 256, 110),
        22: TensorType("IQ2_S", 256, 82),
        23: TensorType("IQ4_XS", 256, 136),
        24: TensorType("I8", 1, 1),
        25: TensorType("I16", 1, 2),
        26: TensorType("I32", 1, 4),
        27: TensorType("I64", 1, 8),
        28: TensorType("F64", 1, 8),
        29: TensorType("IQ1_M", 256, 56),
        30: TensorType("BF16", 1, 2),
        34: TensorType("TQ1_0", 256, 54),
        35: TensorType("TQ2_0", 256, 66),
        39: TensorType("MXFP4", 32, 17),
        40: TensorType("NVFP4", 64, 36),
        41: TensorType("Q1_0", 128, 18),
        42: TensorType("Q2_0", 64, 18),
    }
)
"""By number in the file."""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Types of the KV cache, as llama.cpp's -ctk and -ctv name them."""
REPACKED = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
"""Types of weights that llama.cpp stores in another order in host memory, on an x86 processor with AVX2."""
_PLAIN = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8", "I16": "int16",
          "I32": "int32", "I64": "int64"}  # fmt: skip


def find_type(name: str) -> TensorType:
    """The type of a name, in upper or lower case; it must exist."""
    return next(known for known in TYPES.values() if known.name == name.upper())


def element_type(name: str) -> str:
    """The element type of the graph that stands for a type, in upper or lower case: its own, or the integers of that
    many bits.
    """
    if name.upper() in _PLAIN:
        return _PLAIN[name.upper()]
    bits = find_type(name).bits
    return "int2" if bits < 3 else "int4" if bits < 5 else "int8"
