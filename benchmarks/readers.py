"""Reading, folding and costing: model files of every format, and an ONNX file of 5,000 ops made here.

    python benchmarks/readers.py [--repeat 5]

Files are taken in turn, `--repeat` times over, in one process after a warm-up; medians are told. `cost` is the work
of every op and its time on 8 devices of two kinds. Target: 3 s for the 5,000 ops, all steps together.

`fresh`: whole commands in fresh processes, with the ONNX file read in the process with limits, as users have it, and in
the process of the command, in turn. Target: at most 10 % more for 10,000 ops.

Writes results/readers.json and results/readers.md; exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from placewise.catalog import read_cluster
from placewise.costing.roofline import cost_table
from placewise.costing.work import work_of
from placewise.model.builder import GraphBuilder
from placewise.model.graph import Graph
from placewise.readers.formats import ReadOptions, read_model
from placewise.transform.fold import fold

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results"
TARGET = ("transformer of 5,000 ops", 3.0)
MOST_MORE = 0.1
"""What reading in a process with limits may add to a command on 10,000 ops."""
COMMANDS = {
    "inspect ResNet-50": f"inspect {ROOT}/examples/models/resnet50.onnx --dim batch=1",
    "place BERT-base": f"place {ROOT}/examples/models/bert_base.onnx -d 2xL4,cpu --dim batch=8 --dim seq=128 "
    "--objective throughput",
}
UNLIMITED = """
import sys
from placewise.readers import formats
from placewise.readers.onnx import read_onnx
formats.read_onnx_apart = read_onnx
from placewise.cli.app import app
app(sys.argv[1:])
"""
DEVICES = "4xA100-80GB,4xV100-16GB"
FILES: dict[str, tuple[str, dict[str, int]]] = {
    "ResNet-50 (ONNX)": ("examples/models/resnet50.onnx", {"batch": 1}),
    "Inception-V3 (ONNX)": ("examples/models/inception_v3.onnx", {"batch": 1}),
    "BERT-base (ONNX)": ("examples/models/bert_base.onnx", {"batch": 1, "seq": 128}),
    "GPT-2 (ONNX)": ("examples/models/gpt2.onnx", {"batch": 1, "seq": 128}),
    "BERT-base (OpenVINO)": ("tests/data/openvino/bert_base.xml.gz", {}),
    "small program (torch.export)": ("tests/data/measured/small.pt2", {}),
    "LSTM, 20 rounds (TensorFlow)": ("tests/data/tensorflow/lstm.pb", {"batch": 1}),
    "TF1 loop and gradients (TensorFlow)": ("tests/data/tensorflow/loop_training.pb", {}),
}


def transformer(layers: int, *, width: int = 256, heads: int = 4) -> onnx.ModelProto:
    """A decoder as exporters of the tracing kind write it: 48 ops a layer, almost half of them arithmetic on shapes."""
    nodes: list[onnx.NodeProto] = []
    weights = [
        onnx.numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in (("zero", 0), ("one", 1), ("first", [0]), ("heads", [heads]), ("rest", [-1]), ("last", [-1]))
    ]
    weights.append(onnx.numpy_helper.from_array(np.array(0.125, np.float32), "scale"))

    def parameter(name: str, *shape: int) -> str:
        weights.append(TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape))
        return name

    for layer in range(layers):
        at = f"/layers.{layer}"
        data = "x" if not layer else f"/layers.{layer - 1}/out"

        def op(kind: str, *inputs: str, name: str, at: str = at, **attributes: object) -> str:
            path = f"{at}/{name}"
            nodes.append(make_node(kind, list(inputs), [path], name=path, **attributes))
            return path

        def sizes(value: str, name: str, *ends: str, op: Callable[..., str] = op) -> str:
            shape = op("Shape", value, name=f"{name}/Shape")
            parts = []
            for axis in ("zero", "one"):
                size = op("Gather", shape, axis, name=f"{name}/Gather_{axis}", axis=0)
                parts.append(op("Unsqueeze", size, "first", name=f"{name}/Unsqueeze_{axis}"))
            return op("Concat", *parts, *ends, name=f"{name}/Concat", axis=0)

        scale, shift = parameter(f"{at}/norm.scale", width), parameter(f"{at}/norm.shift", width)
        normed = op("LayerNormalization", data, scale, shift, name="norm", axis=-1)
        split = sizes(normed, "attention/split", "heads", "rest")
        headed = []
        for word in ("query", "key", "value"):
            made = op("MatMul", normed, parameter(f"{at}/{word}.weight", width, width), name=f"{word}/MatMul")
            made = op("Add", made, parameter(f"{at}/{word}.bias", width), name=f"{word}/Add")
            made = op("Reshape", made, split, name=f"{word}/Reshape")
            order = [0, 2, 3, 1] if word == "key" else [0, 2, 1, 3]
            headed.append(op("Transpose", made, name=f"{word}/Transpose", perm=order))
        scores = op("MatMul", headed[0], headed[1], name="attention/MatMul")
        scores = op("Softmax", op("Mul", scores, "scale", name="attention/Mul"), name="attention/Softmax", axis=-1)
        mixed = op("MatMul", scores, headed[2], name="attention/MatMul_1")
        mixed = op("Transpose", mixed, name="attention/Transpose", perm=[0, 2, 1, 3])
        mixed = op("Reshape", mixed, sizes(mixed, "attention/join", "rest"), name="attention/Reshape")
        mixed = op("MatMul", mixed, parameter(f"{at}/output.weight", width, width), name="output/MatMul")
        data = op("Add", data, mixed, name="Add")
        up = op("MatMul", data, parameter(f"{at}/up.weight", width, 4 * width), name="up/MatMul")
        up = op("Add", up, parameter(f"{at}/up.bias", 4 * width), name="up/Add")
        gate = op("Erf", op("Mul", up, "scale", name="gelu/Mul"), name="gelu/Erf")
        up = op("Mul", up, op("Add", gate, "scale", name="gelu/Add"), name="gelu/Mul_1")
        down = op("MatMul", up, parameter(f"{at}/down.weight", 4 * width, width), name="down/MatMul")
        flat = op("Reshape", down, sizes(down, "flat", "last"), name="flat/Reshape")
        nodes.append(make_node("Add", [data, flat], [f"{at}/out"], name=f"{at}/out"))
    graph = make_graph(
        nodes,
        "transformer",
        [make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", width])],
        [onnx.ValueInfoProto(name=f"/layers.{layers - 1}/out")],
        weights,
    )
    return make_model(graph, opset_imports=[make_opsetid("", 18)])


def wide(n_ops: int) -> Graph:
    """A graph of many alike and some unlike ops, for the cost table alone."""
    builder = GraphBuilder()
    tensor = builder.add_tensor(-1, shape=(8, 128, 512), dtype="float32")
    for number in range(n_ops):
        width = 512 + 16 * (number % 40)
        weight = builder.add_weight(f"w{number}", shape=(512, width), dtype="float32")
        op = builder.add_op(f"op{number}", "MatMul" if number % 3 == 0 else "Relu", dtype="float32")
        builder.add_edge(tensor, op, 0)
        if number % 3 == 0:
            builder.use_weight(weight, op, 1)
        out = (8, 128, width) if number % 3 == 0 else (8, 128, 512)
        made = builder.add_tensor(op, shape=out, dtype="float32")
        tensor = made if number % 3 else tensor
    return builder.build()


def timed(path: Path, dims: dict[str, int]) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds by step, and how many ops there were."""
    cluster = read_cluster(DEVICES)
    clock = [time.perf_counter()]
    graph = read_model(path, ReadOptions(dims=dims)).graph
    clock.append(time.perf_counter())
    folded = fold(graph)
    clock.append(time.perf_counter())
    cost_table(folded, cluster, work=work_of(folded))
    clock.append(time.perf_counter())
    steps = dict(zip(("read", "fold", "cost"), np.diff(clock).tolist(), strict=True))
    return steps, {"ops": graph.n_ops, "folded_ops": folded.n_ops}


def timed_costs(graph: Graph, devices: str) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds to cost a graph that is at hand."""
    cluster = read_cluster(devices)
    started = time.perf_counter()
    work = work_of(graph)
    middle = time.perf_counter()
    cost_table(graph, cluster, work=work)
    steps = {"work": middle - started, "table": time.perf_counter() - middle}
    return steps, {"ops": graph.n_ops, "folded_ops": graph.n_ops}


Run = Callable[[], tuple[dict[str, float], dict[str, int]]]


def cases(folder: Path) -> Iterator[tuple[str, Run]]:
    """What is measured, by name."""
    made = folder / "transformer.onnx"
    made.write_bytes(transformer(105).SerializeToString())
    yield TARGET[0], partial(timed, made, {"batch": 8, "length": 128})
    for name, (file, dims) in FILES.items():
        yield name, partial(timed, unpacked(ROOT / file, folder), dims)
    graph = wide(50_000)
    yield "50,000 ops on 8 devices, costs alone", partial(timed_costs, graph, DEVICES)
    yield "50,000 ops on 16 devices, costs alone", partial(timed_costs, graph, "8xA100-80GB,8xV100-16GB")


def timed_commands(folder: Path, repeat: int) -> list[dict[str, Any]]:
    """Seconds of whole commands, with the file read in the process with limits and without one, in turn."""
    made = folder / "larger.onnx"
    made.write_bytes(transformer(209).SerializeToString())
    commands = {**COMMANDS, "inspect 10,000 ops": f"inspect {made} --dim batch=8 --dim length=128"}
    starts = {"limited": ["-m", "placewise"], "unlimited": ["-c", UNLIMITED]}
    seconds: dict[str, dict[str, list[float]]] = {name: {how: [] for how in starts} for name in commands}
    for _ in range(repeat + 1):
        for name, command in commands.items():
            for how, start in starts.items():
                begin = time.perf_counter()
                subprocess.run([sys.executable, *start, *command.split()], check=True, capture_output=True, cwd=ROOT)
                seconds[name][how].append(time.perf_counter() - begin)
    return [
        {"command": name, **{how: statistics.median(runs[1:]) for how, runs in by_how.items()}, "runs": by_how}
        for name, by_how in seconds.items()
    ]


def fresh_table(rows: list[dict[str, Any]]) -> str:
    """The rows of `timed_commands` as Markdown."""
    lines = ["| command, in a fresh process | seconds | without a process with limits | more |", "|---|--:|--:|--:|"]
    for row in rows:
        more = row["limited"] / row["unlimited"] - 1
        lines.append(f"| {row['command']} | {row['limited']:.2f} | {row['unlimited']:.2f} | {more:+.0%} |")
    return "\n".join(lines)


def unpacked(path: Path, folder: Path) -> Path:
    """The file itself, or what is in a ``.gz``."""
    if path.suffix != ".gz":
        return path
    plain = folder / path.stem
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    return plain


def machine() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "python": platform.python_version(),
        "onnx": onnx.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def main() -> int:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    before, rows = machine(), []
    with tempfile.TemporaryDirectory() as folder:
        running = list(cases(Path(folder)))
        runs: dict[str, list[dict[str, float]]] = {name: [] for name, _ in running}
        counts = {name: run()[1] for name, run in running}
        for _ in range(repeat):
            for name, run in running:
                runs[name].append(run()[0])
        fresh = timed_commands(Path(folder), repeat)
    for name, measured in runs.items():
        total = statistics.median(sum(run.values()) for run in measured)
        steps = {step: statistics.median(run[step] for run in measured) for step in measured[0]}
        rows.append({"model": name, **counts[name], "median_seconds": total, "steps": steps, "runs": measured})
    text = f"{table(rows)}\n\n{fresh_table(fresh)}"
    print(text)
    command = f"python benchmarks/readers.py --repeat {repeat}"
    document = {
        "command": command,
        "machine": {**before, "load_after": machine()["load"]},
        "target": TARGET,
        "rows": rows,
        "fresh": fresh,
    }
    (RESULTS / "readers.json").write_text(json.dumps(document, indent=1) + "\n")
    (RESULTS / "readers.md").write_text(f"# Reading and costing\n\n`{command}`; medians in seconds.\n\n{text}\n")
    slow = next(row["median_seconds"] for row in rows if row["model"] == TARGET[0]) > TARGET[1]
    return int(slow or fresh[-1]["limited"] > (1 + MOST_MORE) * fresh[-1]["unlimited"])


def table(rows: list[dict[str, object]]) -> str:
    """The rows as Markdown."""
    lines = ["| model | ops | folded | steps | total |", "|---|---|---|---|---|"]
    for row in rows:
        steps = ", ".join(f"{step} {seconds:.3f}" for step, seconds in row["steps"].items())  # type: ignore[attr-defined]
        lines.append(
            f"| {row['model']} | {row['ops']:,} | {row['folded_ops']:,} | {steps} | {row['median_seconds']:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
