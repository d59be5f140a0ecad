"""What llama-quantize calls the weights of a plan, and a note where no GGUF file has them."""

from __future__ import annotations

from placewise._util.text import shortened
from placewise._util.units import format_bytes
from placewise.model.problem import Problem

GGUF_TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
"""What llama-quantize calls each precision."""
_PACKED = {"mxfp4": "MXFP4_MOE"}
"""What it calls the weights of quantized configurations that it keeps."""


def name_packed(problem: Problem) -> str | None:
    """What llama-quantize calls the weights of a quantized configuration: "" where it has none like them, None where
    they are not quantized.
    """
    packed = _find_packing(problem)
    return _PACKED.get(packed, "") if packed else None


def describe_packing(problem: Problem) -> tuple[str, ...]:
    """A note where no GGUF file has the weights of a quantized configuration."""
    packed = _find_packing(problem)
    if not packed or packed in _PACKED:
        return ()
    size = format_bytes(float(problem.graph.weights.bytes.sum()))
    said = f"no GGUF file has weights of {shortened(packed, 40)}, of which the plan counts {size}"
    return (f"{said}: place the file that you convert, or the configuration without them and --precision int4",)


def _find_packing(problem: Problem) -> str:
    """How the configuration of a model says that its weights are quantized; "" where it does not."""
    source = problem.graph.source
    return "" if source is None else str(source.options.get("quantization", ""))
