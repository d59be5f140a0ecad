"""Write docs/operators.md, the table of ONNX ops: `python scripts/write_operators.py`."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import onnx

from placewise.costing.flops import CONTROL
from placewise.costing.flops import RULES as COSTS
from placewise.costing.rules.gradients import PREFIX
from placewise.costing.rules.gradients import RULES as GRADIENT_COSTS
from placewise.costing.work import BY_DATA
from placewise.readers.onnx.contrib import RULES as SHAPES
from placewise.readers.onnx.contrib import STANDARD
from placewise.readers.onnx.nodes import KEEP_SHAPE
from placewise.readers.onnx.sequences import SEQUENCE_OPS
from placewise.transform.training.rules.table import NONE
from placewise.transform.training.rules.table import RULES as GRADIENTS

PAGE = Path(__file__).parent.parent / "docs" / "operators.md"
UNKNOWN = """BifurcationDetector DequantizeBFP DynamicTimeWarping EPContext NGramHashMapping
    PackedSparseAttentionIndexer QuantizeBFP Snpe SparseAttentionIndexer Tokenizer Unique VarlenNGramHashMapping"""
"""Ops of com.microsoft without a shape rule: their results depend on data, or on what another compiler made."""

HEAD = """# ONNX ops

Written by `python scripts/write_operators.py` for onnx {version}, which defines opset {opset}.

Every op of any opset can be read, even unknown ones. Ops that are treated alike share a row. The columns:

- **shapes**: *onnx*: inferred by the onnx package, asked op by op and with constants evaluated if its own pass leaves
  something open; *here*: by a rule of Placewise; *as X*: like those of another op; *contents*: from the elements of a
  sequence or the result of a body; *data*: they depend on inputs that are not constant, so give the size (`--dim
  found:1=40`, the value's name and the dimension) or add `value_info`. An op without a rule has the shapes in the file.
- **FLOPs** of one op. *bytes only*: it moves data, and its time is that of the bytes; *nothing*: a view, a constant,
  or arithmetic on shapes. A multiply-add counts two, every other operation one.
- **gradient** (`--graph training`): *yes*, with its cost; *assumed*: one op with twice the forward op's FLOPs, and a
  note; *none*: no gradient flows.

Bodies (If, Loop, Scan, SequenceMap) count once per iteration if the trip count is known before the run; otherwise they
count once, with a note. Of an If, the more expensive branch counts. A sequence that is an input counts as one element.

`python benchmarks/operators.py` reads the test cases of the onnx package for all ops, and the models that ONNX Runtime
makes of BERT-base and ResNet-50: [the results](../benchmarks/results/operators.md).

"""
IN_SHORT = {
    "free": "nothing", "reshape": "nothing", "copy": "bytes only", "gather": "bytes only: results and indices",
    "cost_unless_view": "bytes only", "update_in_place": "bytes only: the update", "pointwise": "N per element",
    "variadic": "1 per element and argument after the first", "per_input_element": "N per element of the input",
    "over_input": "N per element of the input", "normalization": "N per element",
    "pool": "N per element under every window", "matmul": "2·M·N·K", "packed_matmul": "2·M·N·K",
    "stored_matmul": "2·M·N·K", "packed_matmuls": "2·M·N·K for each of its matrices",
    "conv": "2 · results · window · channels / groups", "nhwc_conv": "2 · results · window · channels / groups",
    "conv_transpose": "2 · inputs · window · channels / groups",
    "depthwise_conv": "2 · results · window", "causal_conv": "2 · results · window",
    "recurrent": "2 · steps · weights, and N per hidden unit and step",
    "attention": "2 · scores · (width + value width), and 5 per score",
    "multi_head": "2 · scores · (width + value width), and 5 per score",
    "grouped_query": "2 · scores · (width + value width), and 5 per score",
    "packed_multi_head": "2 · scores · (width + value width), and 5 per score",
    "projected_attention": "2 · rows · weights, then as MultiHeadAttention",
    "packed_projected": "2 · rows · weights, then as MultiHeadAttention",
    "quantized_attention": "2 · rows · weights, then as MultiHeadAttention, in int8",
    "experts": "2 · tokens · k · weights of an expert",
}  # fmt: skip
TABLE = "| ops | shapes | FLOPs | gradient |\n|---|---|---|---|\n"


def main() -> None:
    PAGE.write_text(page(), "utf-8")


def page() -> str:
    """The whole page."""
    standard = sorted({schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain})
    added = sorted(kind for kind in {*SHAPES, *STANDARD} if kind.startswith("com.microsoft"))
    return (
        HEAD.format(version=onnx.__version__, opset=onnx.defs.onnx_opset_version())
        + section("The standard (`ai.onnx`)", standard, "")
        + "ONNX Runtime's optimizer writes `SimplifiedLayerNormalization` and, before opset 17, `LayerNormalization`"
        "\ninto the standard's domain; both are known.\n\n"
        + section("ONNX Runtime's (`com.microsoft`)", [k for k in added if "nchwc" not in k], "com.microsoft::")
        + f"Read without shapes of their own: {', '.join(f'`{name}`' for name in UNKNOWN.split())}.\n\n"
        + section(
            "ONNX Runtime's blocks of channels (`com.microsoft.nchwc`)",
            [kind for kind in added if "nchwc" in kind],
            "com.microsoft.nchwc::",
        )
    ).rstrip() + "\n"


def section(title: str, kinds: list[str], domain: str) -> str:
    """A table with a row for all ops that are treated alike."""
    ops: dict[str, list[str]] = {}
    for kind in kinds:
        cells = f"{shapes(kind)} | {flops(kind)} | {gradient(kind)}"
        ops.setdefault(cells, []).append(kind.removeprefix(domain))
    rows = [f"| {', '.join(names)} | {cells} |" for cells, names in ops.items()]
    return f"## {title}\n\n{TABLE}" + "\n".join(rows) + "\n\n"


def shapes(kind: str) -> str:
    """What tells the shapes of a kind's results."""
    if kind in STANDARD:
        return f"as {STANDARD[kind]}"
    if (kind in CONTROL and kind not in SHAPES) or kind in SEQUENCE_OPS:
        return "contents"
    if kind in KEEP_SHAPE or ("::" in kind and kind in SHAPES):
        return "here"
    return "onnx, or data" if kind in BY_DATA else "onnx"


def flops(kind: str) -> str:
    """How they are counted: in short where many kinds share a rule, else in the rule's own words."""
    if kind in CONTROL:
        return "bytes only: as often as data say" if "::" in kind else "those of its body"
    if kind not in COSTS:
        return "bytes only, assumed"
    rule = COSTS[kind]
    inner, given = (rule.func, rule.keywords) if isinstance(rule, partial) else (rule, {})
    words = IN_SHORT.get(inner.__name__)
    if words is None:
        words = re.split(r"\.(?: |$)", " ".join((inner.__doc__ or "").split()))[0].replace("|", "\\|")
    per = given.get("per", 1) + given.get("summed", 0)
    after = f", {given['after']} more per element" if given.get("after") else ""
    dtype = f", in {given['dtype']}" if given.get("dtype") else ""
    return words.replace("N per", f"{per} per") + after + dtype


def gradient(kind: str) -> str:
    """Whether there is a rule, and how its cost is counted."""
    if GRADIENTS.get(kind) == NONE:
        return "none"
    if kind in GRADIENTS and (PREFIX + kind in GRADIENT_COSTS or kind not in COSTS or _is_composed(kind)):
        return "yes"
    return "assumed" if kind in COSTS else "assumed, by its bytes"


def _is_composed(kind: str) -> bool:
    return getattr(GRADIENTS[kind].rule, "__module__", "").rpartition(".")[2] in ("linear", "movement", "pointwise")


if __name__ == "__main__":
    main()
