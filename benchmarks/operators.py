"""ONNX ops on real files: the onnx package's own test cases, and what ONNX Runtime makes of BERT-base and ResNet-50.

    python benchmarks/operators.py          (needs onnxruntime and torch; five minutes)

Every test case of the onnx package for single ops is read as a graph and priced; symbolic dimensions get 2. BERT-base
(128 words) is traced by torch's older exporter and fused by ONNX Runtime's transformer optimizer; ResNet-50 is
quantized by ONNX Runtime in both forms and optimized by its session, with random weights. FLOPs are compared with
those of the model before. Writes results/operators.json and results/operators.md; exits with 1 if a case is not read,
or if products differ by 1 %.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as quantization
import torch
from onnxruntime.transformers.optimizer import optimize_model

from placewise.costing.work import work_of
from placewise.errors import InputError
from placewise.model.graph import Graph
from placewise.readers.onnx import read_onnx
from placewise.readers.onnx.model import load_with_weights
from placewise.transform.fold import fold

HERE = Path(__file__).parent
ROOT, RESULTS = HERE.parent, HERE / "results"
PRODUCTS = ("matmul", "conv", "attention")
SYMBOLIC = re.compile(r"--dim (\S+)=1")


def cases(folder: Path) -> dict[str, Any]:
    """How many of onnx's test cases are read, have all shapes, and have a cost; and why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        models = [case for case in collect_testcases(None) if case.model is not None]
    count, refused, open_shapes, assumed = Counter[str](), {}, defaultdict(list), Counter[str]()
    for case in models:
        path = folder / "case.onnx"
        path.write_bytes(case.model.SerializeToString())
        try:
            graph = read_at_two(path)
        except InputError as error:
            refused[case.name] = str(error)
            continue
        count["read"] += 1
        count["all shapes"] += bool((graph.tensors.bytes >= 0).all())
        if (graph.tensors.bytes < 0).any():
            first = next(row for row in range(graph.n_tensors) if graph.tensors.bytes[row] < 0)
            producer = int(graph.tensors.producer[first])
            open_shapes[graph.ops.kind[producer] if producer >= 0 else "an input"].append(case.name)
        try:
            work = work_of(graph)
        except InputError:
            continue
        count["priced"] += 1
        assumed.update({graph.ops.kind[op] for op in range(graph.n_ops) if not work.known[op]})
    return {
        "cases": len(models), **count, "refused": refused,
        "shapes first unknown after": {kind: len(names) for kind, names in sorted(open_shapes.items())},
        "kinds priced by their bytes": dict(sorted(assumed.items())),
    }  # fmt: skip


def read_at_two(path: Path) -> Graph:
    try:
        return read_onnx(path).graph
    except InputError as error:
        names = SYMBOLIC.findall(str(error))
        if not names:
            raise
        return read_onnx(path, dims=dict.fromkeys(names, 2)).graph


def script(name: str) -> ModuleType:
    """A script of the project as a module."""
    sys.path.insert(0, str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bert(folder: Path) -> Iterator[tuple[str, Path, dict[str, int]]]:
    """BERT-base, traced and fused."""
    examples, dims = script("make_onnx_examples"), {"batch": 1, "seq": 128}
    module = examples.Encoder(width=768, heads=12, layers=12, words=30522, places=512).eval()
    ids = torch.randint(0, 1000, (1, 128))
    names = ["input_ids", "attention_mask", "types"]
    torch.onnx.export(
        module, (ids, torch.ones_like(ids), torch.zeros_like(ids)), folder / "traced.onnx", dynamo=False,
        opset_version=14, input_names=names, dynamic_axes={name: {0: "batch", 1: "seq"} for name in names},
    )  # fmt: skip
    yield "BERT-base", folder / "traced.onnx", dims
    optimized = optimize_model(str(folder / "traced.onnx"), "bert", num_heads=12, hidden_size=768, opt_level=0)
    optimized.save_model_to_file(str(folder / "fused.onnx"))
    yield "fused by the transformer optimizer", folder / "fused.onnx", dims


class Random(quantization.CalibrationDataReader):
    """One batch of noise: ranges do not matter to the shapes."""

    def __init__(self) -> None:
        self.left = [{"images": np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)}]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def resnet(folder: Path) -> Iterator[tuple[str, Path, dict[str, int]]]:
    """ResNet-50, quantized and optimized."""
    model, _ = load_with_weights(ROOT / "examples" / "models" / "resnet50.onnx", {"batch": 1})
    source = folder / "resnet50.onnx"
    onnx.save(model, source)
    yield "ResNet-50", source, {}
    for name, level in (
        ("extended", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED),
        ("all", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL),
    ):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.log_severity_level = level, 4
        options.optimized_model_filepath = str(folder / f"{name}.onnx")
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        yield f"optimized by the session, level {name}", folder / f"{name}.onnx", {}
    for form in (quantization.QuantFormat.QDQ, quantization.QuantFormat.QOperator):
        path = folder / f"{form.name}.onnx"
        quantization.quantize_static(source, path, Random(), quant_format=form)
        yield f"quantized, {form.name}", path, {}


def counted(models: Iterator[tuple[str, Path, dict[str, int]]]) -> list[dict[str, Any]]:
    """FLOPs of a model and of what was made of it: all, and those of products."""
    rows: list[dict[str, Any]] = []
    for name, path, dims in models:
        reading = read_onnx(path, dims=dims)
        graph = fold(reading.graph)
        work = work_of(graph)
        rows.append({
            "model": name, "ops": graph.n_ops, "flops": float(work.flops.sum()),
            "products": sum(float(work.flops[work.op_class.equals(kind)].sum()) for kind in PRODUCTS),
            "unknown": int((graph.tensors.bytes < 0).sum()), "warnings": [*reading.warnings, *work.warnings],
            "kinds": len(set(graph.ops.kind)),
        })  # fmt: skip
    return rows


def main() -> int:
    """Read, count, print, write."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        found = cases(Path(folder))
        tables = [counted(make(Path(folder))) for make in (bert, resnet)]
    versions = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__, "torch": torch.__version__}
    document = {"command": "python benchmarks/operators.py", "versions": versions, "cases": found, "models": tables}
    (RESULTS / "operators.json").write_text(json.dumps(document, indent=1) + "\n")
    text = page(found, tables, versions)
    (RESULTS / "operators.md").write_text(text)
    print(text)
    worst = max(abs(row["products"] / rows[0]["products"] - 1) for rows in tables for row in rows)
    return int(bool(found["refused"]) or worst > 0.01)


def page(found: dict[str, Any], tables: list[list[dict[str, Any]]], versions: dict[str, str]) -> str:
    """The results as Markdown."""
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    known = found["shapes first unknown after"]
    lines = [
        "# ONNX ops on real files", "", f"`python benchmarks/operators.py`, with {said}.", "",
        f"Of {found['cases']:,} test cases of the onnx package for single ops, {found['read']:,} are read, "
        f"{found['all shapes']:,} have all shapes, {found['priced']:,} a cost. Where shapes are missing, inputs that "
        "are not constant decide them: " + ", ".join(f"{kind} ({n})" for kind, n in known.items()) + ".", "",
        "Priced by bytes alone, or by one round: " + ", ".join(found["kinds priced by their bytes"]) + ".", "",
    ]  # fmt: skip
    lines += [
        "Products hold what is fused into them: a softmax, activations, quantizing again. What quantized models do",
        "beside them is to quantize and dequantize.", "",
    ]  # fmt: skip
    for rows in tables:
        base = rows[0]
        lines += ["| model | ops | GFLOP | of products | all, against the first | products | unknown shapes |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for row in rows:
            of_all, of_products = (row[key] / base[key] - 1 for key in ("flops", "products"))
            lines.append(
                f"| {row['model']} | {row['ops']} | {row['flops'] / 1e9:.4f} | {row['products'] / 1e9:.4f} |"
                f" {of_all:+.2%} | {of_products:+.2%} | {row['unknown']} |"
            )
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
