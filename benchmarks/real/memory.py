"""Peak memory on one CPU: what the judge predicts, and what ONNX Runtime's arena came to.

    python benchmarks/real/memory.py [--only unet] [--batches 1 4 16]

Six models, several batches; U-Net and MobileNetV2 are exported here, with random weights. Each session runs in a
process of its own, with one thread, without prepacking, and with an arena that grows by what is requested; the figures
are the arena's own, from ONNX Runtime's profile (1.31 and later write them), weights included, the caller's inputs not.

- *arena*: the most bytes in use at once in the first run, for which every buffer is requested when it is needed.
- *held*: all that the arena has taken from the system by then: what fragments of it waste comes on top.
- *without reuse*: as *arena*, with the planner that keeps a buffer for later tensors of the same shape switched off
  (`enable_mem_reuse`), so that a tensor is given back when its last reader is done.
- *one block*: the most in use in the second run, for which the memory pattern packs all tensors into one block.

Then the same for two cores that share a model as a pipeline of two pieces: each core's peak by the judge, and the arena
of its sub-model with the inputs that it is handed.

Writes results/real_memory.json and .md. Exits with 1 if a prediction is more than 15 % above the arena or more than 5 %
below it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import EXAMPLES, SCRATCH, command, even_split, report

from placewise.building import build
from placewise.cutting import cut, sub_models
from placewise.model.placement import Placement
from placewise.readers.onnx import read_onnx
from placewise.readers.onnx.whole import load_whole
from placewise.runtimes.inputs import fresh_inputs, input_tensors
from placewise.simulate import device_memory, memory_peaks
from placewise.units import format_bytes
from placewise.wishes import Wishes

MODELS: Mapping[str, dict[str, int]] = {
    "resnet50": {}, "inception_v3": {}, "mobilenet_v2": {}, "unet": {}, "bert_base": {"seq": 128}, "gpt2": {"seq": 128},
}  # fmt: skip
ABOVE, BELOW = 1.15, 0.95


def model_file(name: str) -> Path:
    """The file of a model: an example, or one that is exported once."""
    path = EXAMPLES / f"{name}.onnx"
    if path.exists():
        return path
    from exported import export

    SCRATCH.mkdir(exist_ok=True)
    return export(name, SCRATCH)


def predicted(path: Path, dims: Mapping[str, int]) -> dict[str, Any]:
    """What the judge says of all ops on one CPU."""
    problem = build(str(path), "cpu", Wishes(dims=dict(dims)))
    placement = Placement.on(0, problem.n_ops)
    resident, peak = device_memory(problem, placement)
    (when,) = memory_peaks(problem, placement)
    return {"resident": float(resident[0]), "peak": float(peak[0]), "op": when.op}


def arena(path: str, dims: Mapping[str, int], *, reuse: bool) -> list[dict[str, int]]:
    """Of two runs in one session: the most bytes in use, and the bytes that the arena has taken from the system."""
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    same_as_requested = 1
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"arena_extend_strategy": same_as_requested}))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_reuse = reuse
    options.enable_profiling = True
    options.log_severity_level = 4
    for key in ("session.disable_prepacking", "session.use_env_allocators"):
        options.add_session_config_entry(key, "1")
    model, _ = load_whole(Path(path), dims)
    graph = read_onnx(Path(path), dims=dict(dims)).graph
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for seed in range(2):
            session.run(None, fresh_inputs(graph, seed))
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes = [event["args"] for event in events if event["cat"] == "Node"]
    if "mem_in_use_peak" not in nodes[0]:
        sys.exit(f"onnxruntime {ort.__version__} writes no memory into its profile: 1.31 and later do")
    half = len(nodes) // 2
    return [
        {
            "in_use": max(int(node["mem_in_use_peak"]) for node in run),
            "held": max(int(node["mem_arena_held"]) for node in run),
        }
        for run in (nodes[:half], nodes[half:])
    ]


def measured(path: Path, dims: Mapping[str, int], *, reuse: bool) -> list[dict[str, int]]:
    """`arena` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(arena, str(path), dims, reuse=reuse).result()


def row(name: str, batch: int) -> dict[str, Any]:
    """One model at one batch."""
    path, dims = model_file(name), {"batch": batch, **MODELS[name]}
    found = predicted(path, dims)
    (first, second), (freed, _) = (measured(path, dims, reuse=reuse) for reuse in (True, False))
    return {
        "model": name,
        "dims": dims,
        "predicted": found,
        "arena": first["in_use"],
        "held": first["held"],
        "without_reuse": freed["in_use"],
        "one_block": second["in_use"],
        "ratio": found["peak"] / first["in_use"],
        "ratio_without_reuse": found["peak"] / freed["in_use"],
    }


def pieces(name: str, batch: int) -> list[dict[str, Any]]:
    """Two cores that share one model, as a pipeline: a row per core that has one piece."""
    path, dims = model_file(name), {"batch": batch, **MODELS[name]}
    wishes = Wishes(dims=dims, objective="throughput", communication="blocking")
    problem = build(str(path), "2xcore", wishes)
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
        first, freed = (measured(file, {}, reuse=reuse)[0]["in_use"] + handed for reuse in (True, False))
        where = {"model": name, "dims": dims, "device": problem.cluster.names[device], "predicted": float(peak[device])}
        ratios = {"ratio": float(peak[device]) / first, "ratio_without_reuse": float(peak[device]) / freed}
        rows.append(where | {"arena": first, "without_reuse": freed} | ratios)
    return rows


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """Predictions outside the limits."""
    return [
        f"{one['model']}, batch {one['dims']['batch']}: {_off(one['ratio'])} against the arena"
        for one in rows
        if not _within(one["ratio"])
    ]


def text(rows: list[dict[str, Any]], split: list[dict[str, Any]], made_by: str) -> str:
    """The tables."""
    lines = [
        "# Peak memory: predicted, and in ONNX Runtime's arena",
        "",
        f"`{made_by}`; one CPU, one thread, prepacking off, growth as requested. Arena: most bytes in use in a run, "
        "weights included. Live: what of it is not weights. Held: what the arena took from the system. Without reuse: "
        "with the planner off that keeps buffers for later tensors of the same shape. One block: with the memory "
        "pattern. Raw figures in real_memory.json.",
        "",
        "| model | batch | predicted | live | arena | live | off | without reuse | off | held | one block |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in rows:
        resident, peak = one["predicted"]["resident"], one["predicted"]["peak"]
        sizes = (peak, peak - resident, one["arena"], one["arena"] - resident)
        lines.append(
            f"| {one['model']} | {one['dims']['batch']} | {' | '.join(format_bytes(size) for size in sizes)} | "
            f"**{_off(one['ratio'])}** | {format_bytes(one['without_reuse'])} | {_off(one['ratio_without_reuse'])} | "
            f"{format_bytes(one['held'])} | {format_bytes(one['one_block'])} |"
        )
    kept, freed = (sum(_within(one[key]) for one in rows) for key in ("ratio", "ratio_without_reuse"))
    lines += ["", f"At most 15 % above and 5 % below: {kept} of {len(rows)} rows; without reuse {freed}."]
    lines += ["", "Pieces of a pipeline on two cores; the arena and the inputs that a piece is handed.", ""]
    lines += ["| model | batch | core | predicted | arena | off | without reuse | off |"]
    lines += ["|---|--:|---|--:|--:|--:|--:|--:|"]
    lines += [
        f"| {one['model']} | {one['dims']['batch']} | {one['device']} | {format_bytes(one['predicted'])} | "
        f"{format_bytes(one['arena'])} | {_off(one['ratio'])} | {format_bytes(one['without_reuse'])} | "
        f"**{_off(one['ratio_without_reuse'])}** |"
        for one in split
    ]
    return "\n".join(lines)


def _within(ratio: float) -> bool:
    return BELOW <= ratio <= ABOVE


def _off(ratio: float) -> str:
    return f"{ratio - 1:+.1%}".replace("-", "−")


def main() -> int:
    """Every model and batch; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    rows = [row(name, batch) for name in MODELS if options.only in name for batch in options.batches]
    split = [one for name in MODELS if options.only in name for one in pieces(name, options.batches[-1])]
    return report("memory", [*rows, *split], faults(rows), text(rows, split, command()))


if __name__ == "__main__":
    sys.exit(main())
