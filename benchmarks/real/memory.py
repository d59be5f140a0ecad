"""Peak memory on one CPU: what the judge counts, what ONNX Runtime's rules say, and what its arena came to.

    python benchmarks/real/memory.py [--only unet] [--batches 1 4 16]

Each session runs in a process of its own, with one thread and without prepacking. The figures are the arena's own, from
ONNX Runtime's profile (1.31 and later write them), weights included, the caller's inputs not; the arena grows by what
is requested, and the run is the first one.

- *judge*: how far the judge's peak is above the most bytes in use at once; *rules*: the same for what
  `runtimes/onnxruntime/memory` says before the session is opened.
- *held*: what the arena took from the system, and how far the rules are above it.

Then pipelines of two pieces, with the inputs that a piece is handed; then by how much a process grows in two runs, with
memory patterns (as ONNX Runtime comes) and without (as Placewise opens sessions), both with an arena that doubles.

Writes results/real_memory.json and .md. Exits with 1 if the rules are more than 15 % above or 5 % below the bytes in
use.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import EXAMPLES, SCRATCH, command, even_split, report

from placewise._util.units import format_bytes
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.split_model import cut, sub_models
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.readers.onnx import read_onnx
from placewise.readers.onnx.model import load_with_weights
from placewise.runtimes.inputs import fresh_inputs, input_tensors
from placewise.runtimes.onnxruntime.memory.needs import predict_needs
from placewise.simulate import device_memory

FIRST: Mapping[str, dict[str, int]] = {
    "resnet50": {}, "inception_v3": {}, "mobilenet_v2": {}, "unet": {}, "bert_base": {"seq": 128}, "gpt2": {"seq": 128},
}  # fmt: skip
"""Beside whose profiles the rules were written."""
SEEN: Mapping[str, dict[str, int]] = {
    "efficientnet": {}, "vit": {}, "convnext": {}, "swin": {}, "segformer": {}, "regnet": {},
    "distilbert": {"seq": 128}, "t5_encoder": {"seq": 128},
}  # fmt: skip
"""That were compared while the rules were written; the profiles of the first, second and fourth led to some."""
UNSEEN: Mapping[str, dict[str, int]] = {"mobilevit": {}, "poolformer": {}, "resnet_basic": {}, "electra": {"seq": 128}}
"""That were compared for the first time when the rules were done."""
MODELS = {**FIRST, **SEEN, **UNSEEN}
ABOVE, BELOW = 1.15, 0.95


def model_file(name: str) -> Path:
    """The file of a model: an example, or one that is exported once."""
    path = EXAMPLES / f"{name}.onnx"
    if path.exists():
        return path
    from exported import export

    SCRATCH.mkdir(exist_ok=True)
    return export(name, SCRATCH)


def arena(path: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Of a first run: the most bytes in use, and the bytes that the arena has taken from the system."""
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    same_as_requested = 1
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"arena_extend_strategy": same_as_requested}))
    options = _options(ort)
    options.enable_profiling = True
    for key in ("session.disable_prepacking", "session.use_env_allocators"):
        options.add_session_config_entry(key, "1")
    model, _ = load_with_weights(Path(path), dims)
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, fresh_inputs(read_onnx(Path(path), dims=dict(dims)).graph, 0))
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes = [event["args"] for event in events if event["cat"] == "Node"]
    if "mem_in_use_peak" not in nodes[0]:
        sys.exit(f"onnxruntime {ort.__version__} writes no memory into its profile: 1.31 and later do")
    keys = {"in_use": "mem_in_use_peak", "held": "mem_arena_held"}
    return {name: max(int(node[key]) for node in nodes) for name, key in keys.items()}


def growth(path: str, dims: Mapping[str, int], pattern: bool) -> int:
    """Bytes by which a process grows in two runs of a session."""
    import onnxruntime as ort

    options = _options(ort)
    options.enable_mem_pattern = pattern
    graph = read_onnx(Path(path), dims=dict(dims)).graph
    samples = [fresh_inputs(graph, seed) for seed in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(load_with_weights(Path(path), dims)[0], file)
        session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    before = _resident()
    for sample in samples:
        session.run(None, sample)
    return _resident() - before


def _options(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return options


def _resident() -> int:
    """Bytes of this process in memory, without what its C library could give back."""
    from placewise.runtimes.onnxruntime.sessions import trim_heap

    trim_heap()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def alone(function: Callable[..., Any], path: Path, *arguments: Any) -> Any:
    """What a function of a model's file gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, str(path), *arguments).result()


def row(name: str, batch: int) -> dict[str, Any]:
    """One model at one batch."""
    path, dims = model_file(name), {"batch": batch, **MODELS[name]}
    problem = build(str(path), "cpu", ProblemOptions(dims=dims))
    _, peak = device_memory(problem, Placement.on(0, problem.n_ops))
    return {"model": name, "dims": dims} | _compared(problem.graph, range(problem.n_ops), float(peak[0]), path, dims, 0)


def _compared(
    graph: Graph, ops: Any, judged: float, path: Path, dims: Mapping[str, int], handed: float
) -> dict[str, Any]:
    """What was counted, what the rules say and what was measured, with what a piece is handed."""
    needs, found = predict_needs(graph, ops, doubling=False, bound=False), alone(arena, path, dims)
    in_use, held = (size + handed for size in (found["in_use"], found["held"]))
    ruled = (needs.weights + handed + size for size in (needs.arena.in_use, needs.arena.held))
    return {
        "judge": judged, "rules": dict(zip(("in_use", "held"), ruled, strict=True)), "in_use": in_use, "held": held,
        "judge_off": judged / in_use - 1, "rules_off": (needs.weights + handed + needs.arena.in_use) / in_use - 1,
        "held_off": (needs.weights + handed + needs.arena.held) / held - 1,
    }  # fmt: skip


def pieces(name: str, batch: int) -> list[dict[str, Any]]:
    """Two cores that share one model, as a pipeline: a row per core that has one piece."""
    path, dims = model_file(name), {"batch": batch, **MODELS[name]}
    problem_options = ProblemOptions(dims=dims, objective="throughput", communication="blocking")
    problem = build(str(path), "2xcore", problem_options)
    placement = even_split(problem)
    cuts = cut(problem, placement, "few")
    parts, _ = sub_models(problem.graph, cuts)
    _, peak = device_memory(problem, placement)
    rows = []
    for number, part in enumerate(parts):
        device = int(placement.device[cuts.piece == number][0])
        if len(np.unique(cuts.piece[placement.device == device])) > 1:
            continue
        file = SCRATCH / "piece.onnx"
        SCRATCH.mkdir(exist_ok=True)
        onnx.save(part.model, file)
        graph = read_onnx(file).graph
        handed = float(graph.tensors.bytes[list(input_tensors(graph))].sum())
        ops = np.flatnonzero(cuts.piece == number).tolist()
        where = {"model": name, "dims": dims, "device": problem.cluster.names[device]}
        rows.append(where | _compared(problem.graph, ops, float(peak[device]), file, {}, handed))
    return rows


def grown(name: str, batch: int) -> dict[str, Any]:
    """By how much a process grows in two runs, with patterns and without, and what the rules say of that."""
    path, dims = model_file(name), {"batch": batch, **MODELS[name]}
    graph = build(str(path), "cpu", ProblemOptions(dims=dims)).graph
    found = {key: alone(growth, path, dims, key == "pattern") for key in ("pattern", "plain")}
    return {
        "model": name,
        "dims": dims,
        "rules": predict_needs(graph, range(graph.n_ops), bound=False).arena.touched,
    } | found


def text(rows: list[dict[str, Any]], split: list[dict[str, Any]], grew: list[dict[str, Any]], made_by: str) -> str:
    """The tables."""
    lines = [
        "# Peak memory: by the judge, by ONNX Runtime's rules, and in its arena",
        "",
        f"`{made_by}`; one CPU, one thread, prepacking off, growth as requested. In use: most bytes at once in a first "
        "run, weights included. Judge, rules: how far the judge's peak and what ONNX Runtime's rules say are above it. "
        "Held: what the arena took from the system, and how far the rules are above that. The rules were written "
        f"beside the first {len(FIRST)} models; the last {len(UNSEEN)} were measured when they were done. Raw figures "
        "in real_memory.json.",
        "",
        "| model | batch | in use | judge | rules | held | rules |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(f"| {one['model']} | {one['dims']['batch']} | {_cells(one)} |" for one in rows),
        "",
        f"At most 15 % above and 5 % below: the judge in {_count(rows, 'judge_off')} of {len(rows)} rows, the rules in "
        f"{_count(rows, 'rules_off')}.",
        "",
        "Pieces of a pipeline on two cores, with the inputs that a piece is handed.",
        "",
        "| model | batch | core | in use | judge | rules | held | rules |",
        "|---|--:|---|--:|--:|--:|--:|--:|",
        *(f"| {one['model']} | {one['dims']['batch']} | {one['device']} | {_cells(one)} |" for one in split),
        "",
        "By how much a process grows in two runs of a session; an arena that doubles, prepacking on.",
        "",
        "| model | batch | with memory patterns | without | rules |",
        "|---|--:|--:|--:|--:|",
        *(
            f"| {one['model']} | {one['dims']['batch']} | {format_bytes(one['pattern'])} | "
            f"{format_bytes(one['plain'])} | {format_bytes(one['rules'])} |"
            for one in grew
        ),
    ]
    return "\n".join(lines)


def _cells(one: dict[str, Any]) -> str:
    return (
        f"{format_bytes(one['in_use'])} | {_off(one['judge_off'])} | **{_off(one['rules_off'])}** | "
        f"{format_bytes(one['held'])} | {_off(one['held_off'])}"
    )


def _within(off: float) -> bool:
    return BELOW <= 1 + off <= ABOVE


def _count(rows: list[dict[str, Any]], key: str) -> int:
    return sum(_within(one[key]) for one in rows)


def _off(off: float) -> str:
    return f"{off:+.1%}".replace("-", "−")


def main() -> int:
    """Every model and batch; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    names = [name for name in MODELS if options.only in name]
    rows = [row(name, batch) for name in names for batch in options.batches]
    split = [one for name in names if name in FIRST for one in pieces(name, options.batches[-1])]
    grew = [grown(name, 4) for name in names if name in FIRST]
    wrong = [
        f"{one['model']}, batch {one['dims']['batch']}{', ' + one['device'] if 'device' in one else ''}: "
        f"{_off(one['rules_off'])} by the rules"
        for one in (*rows, *split)
        if not _within(one["rules_off"])
    ]
    return report("memory", [*rows, *split, *grew], wrong, text(rows, split, grew, command()))


if __name__ == "__main__":
    sys.exit(main())
