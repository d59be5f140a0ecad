"""Pipelines of split, repeated and recomputed stages for real models: `python benchmarks/split_models.py`.

Every model on every cluster: the plan of `auto` beside the best uniform plan (one degree, one number of stages and of
replicas, all or nothing recomputed; all of them are enumerated) and Megatron-LM's rule of thumb. Figures are the
roofline's. `--only TEXT` keeps rows whose name holds it; `--time-limit` (seconds, default 60) holds for each row.
Writes `results/split_models.json` and `.md`; exits with 1 if a plan is worse than a uniform one, or breaks a rule.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from split import finite_or_none, format_ms, format_ratio

from placewise.core.build import build
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.model.verdict import BEST_UNIFORM, MEGATRON
from placewise.placers.base import Budget
from placewise.readers.base import ImportedModel

RESULTS = Path(__file__).parent / "results" / "split_models.json"
TOLERANCE = 1e-9

GPT3 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 12288, "n_layer": 96, "n_head": 96,
    "n_positions": 2048, "vocab_size": 50304, "torch_dtype": "bfloat16",
}  # fmt: skip
"""Brown et al. 2020, table 2.1: 175 billion parameters."""
VIT22B = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 6144, "num_hidden_layers": 48,
    "num_attention_heads": 48, "intermediate_size": 24576, "image_size": 224, "patch_size": 14,
    "torch_dtype": "bfloat16",
}  # fmt: skip
"""Dehghani et al. 2023, table 1: 22 billion parameters."""


class Case(NamedTuple):
    """A model, how it is read, and the options of the problem."""

    name: str
    model: str | dict[str, Any]
    options: ProblemOptions


def _training(batch: int, *, tokens: bool = False, **dims: int) -> ProblemOptions:
    return ProblemOptions(
        objective="throughput", graph="training", dims={"batch": batch, **dims}, tensor_parallel=0, microbatches=64,
        precision="bf16", sequence_parallel=tokens or None,
    )  # fmt: skip


def _inference(**dims: int) -> ProblemOptions:
    return ProblemOptions(objective="throughput", dims=dims, tensor_parallel=0)


CASES = (
    Case("BERT-large, training", "hf:bert-large", _training(8, length=512)),
    Case("GPT-3 175B, training", GPT3, _training(1, length=2048)),
    Case("ViT-22B, training", VIT22B, _training(8)),
    Case("Llama-3-70B, training", "hf:llama-3-70b", _training(1, length=4096)),
    Case("Llama-3-70B, inference", "hf:llama-3-70b", _inference(prompt=512, tokens=128)),
    Case("Mixtral-8x7B, inference", "hf:mixtral-8x7b", _inference(prompt=512, tokens=128)),
    Case("DeepSeek-V3, inference", "hf:deepseek-v3", _inference(prompt=512, tokens=128)),
    Case("GPT-3 175B, training, sequence parallel", GPT3, _training(1, tokens=True, length=2048)),
    Case("Llama-3-70B, training, sequence parallel", "hf:llama-3-70b", _training(1, tokens=True, length=4096)),
)


def clusters() -> dict[str, str]:
    """Cluster files by name."""
    found = {}
    for device, link in (("H100", "400Gb/s"), ("A100-40GB", "200Gb/s")):
        for nodes in (1, 2, 4, 8):
            found[f"{nodes} × 8 {device}"] = _nodes(nodes, ((device, 8),), link)
    found["2 A100 + 4 L4"] = _nodes(1, (("A100-40GB", 2), ("L4", 4)), "100Gb/s")
    return found


def _nodes(count: int, devices: tuple[tuple[str, int], ...], link: str) -> str:
    rows = "".join(f'[[nodes.devices]]\nmodel = "{model}"\ncount = {number}\n' for model, number in devices)
    return f'[[nodes]]\ncount = {count}\n{rows}\n[node_link]\nbandwidth = "{link}"\nlatency = "5us"\n'


def main() -> int:
    """Run everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--only", default="", help="only rows whose name holds this text")
    options = parser.parse_args()
    committed = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    rows = {row["name"]: row for row in committed["rows"]}
    faults = []
    print(_HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for row in run(Path(folder), options.only, options.time_limit):
            rows[row["name"]] = row
            faults += _faults(row)
            print(_line(row), flush=True)
    command = f"python benchmarks/split_models.py --time-limit {options.time_limit:g}"
    parts = committed.get("parts", {}) if options.only else {}
    if options.only:
        parts |= {options.only: f"{command} --only '{options.only}'"}
        command = committed.get("command", command)
    document = {
        "command": command,
        "parts": parts,
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}",
        "rows": list(rows.values()),
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(_page(document))
    print("\n".join(faults))
    return 1 if faults else 0


def run(folder: Path, only: str, limit: float) -> Iterator[dict[str, Any]]:
    """A row per model and cluster."""
    for case in CASES:
        names = [name for name in clusters() if only in f"{case.name} on {name}"]
        if not names:
            continue
        opened = _open(case, folder)
        for name in names:
            yield run_case(case, opened, name, folder, limit)


def _open(case: Case, folder: Path) -> ImportedModel:
    model = case.model
    if isinstance(model, dict):
        path = folder / f"{model['model_type']}.json"
        path.write_text(json.dumps(model))
        model = str(path)
    return open_model(model, case.options)


def run_case(case: Case, model: ImportedModel, cluster: str, folder: Path, limit: float) -> dict[str, Any]:
    """The plan of one model on one cluster, beside uniform plans."""
    path = folder / "cluster.toml"
    path.write_text(clusters()[cluster])
    started = time.perf_counter()
    options = ProblemOptions(
        objective="throughput", tensor_parallel=0, microbatches=case.options.microbatches,
        sequence_parallel=case.options.sequence_parallel,
    )  # fmt: skip
    problem = build(model, str(path), options)
    built = time.perf_counter() - started
    result = place(problem, "auto", Budget(limit))
    uniform = {name: baseline.value for name, baseline in result.compared.items()}
    row: dict[str, Any] = {
        "name": f"{case.name} on {cluster}",
        "units": problem.ways.n_units if problem.ways else 0,
        "value": finite_or_none(result.value),
        "lower_bound": finite_or_none(result.lower_bound),
        "status": str(result.status),
        "build_seconds": round(built, 1),
        "seconds": round(result.seconds, 2),
        "uniform": finite_or_none(uniform[BEST_UNIFORM]),
        "megatron": finite_or_none(uniform[MEGATRON]),
        "notes": list(result.notes),
    }
    if result.placement is not None and problem.ways is not None:
        ways, placement = problem.ways, result.placement
        row["stages"] = [
            [len(set(ways.unit[placement.stage == s].tolist())), group.tensor_parallel, group.data_parallel]
            for s, group in enumerate(placement.stages)
        ]
        row["recomputed"] = int(ways.recompute[placement.way].sum())
    return row


def _faults(row: dict[str, Any]) -> Iterator[str]:
    ours, uniform = row["value"], row["uniform"]
    if uniform is not None and (ours is None or ours > uniform * (1 + TOLERANCE)):
        yield f"{row['name']}: {ours} s, the best uniform plan {uniform} s"


_COLUMNS = (
    "model on cluster", "units", "plan, ms", "lower bound, ms", "status", "seconds", "best uniform plan / plan",
    "Megatron's rule / plan", "stages: units × split × replicas", "recomputed units",
)  # fmt: skip
_HEAD = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"


def _line(row: dict[str, Any]) -> str:
    stages = row.get("stages", [])
    shown = ", ".join(f"{units}×{t}×{d}" for units, t, d in stages[:6]) + (" …" if len(stages) > 6 else "")
    cells = [
        row["name"], str(row["units"]), format_ms(row["value"]), format_ms(row["lower_bound"]), row["status"],
        f"{row['seconds']:g}",
        format_ratio(row["uniform"], row["value"]), format_ratio(row["megatron"], row["value"]), shown,
        str(row.get("recomputed", "–")),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _page(document: dict[str, Any]) -> str:
    table = "\n".join([_HEAD, *map(_line, document["rows"])])
    parts = "".join(f" Rows with '{part}' in their name: `{command}`." for part, command in document["parts"].items())
    about = (
        f"Made by `{document['command']}` on {document['machine']}.{parts}\n\nSeconds of the roofline, not measured: "
        "milliseconds per micro-batch in training (64 per step), per sample (512 tokens of prompt, 128 generated) for "
        "inference. Nodes are joined by 400 Gbit/s (H100) or 200 (A100). –: no such plan fits."
    )
    return f"{about}\n\n{table}\n"


if __name__ == "__main__":
    sys.exit(main())
