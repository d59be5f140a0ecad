"""Shards and collectives against modules that are really split: torch.distributed.tensor over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from placewise.core.open_model import open_model
from placewise.costing.sharding import shard_graph
from placewise.model.sharding import module_splits
from placewise.transform.training import to_training

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torch.distributed.tensor", reason="this torch has no distributed tensors")

ROOT = Path(__file__).parents[3]


def graph_of(name: str):
    """The training graph of a model, whose gradients start at its outputs."""
    from tests.helpers.split_modules import make_model

    model = make_model(name)
    return to_training(open_model(model, inputs=model.sample()).graph, loss=False)


def run_split(folder: Path, name: str, graph, sharding) -> list[dict]:
    """What both workers saw of the split model."""
    modules = {
        path: {"style": split.style, "gathers": split.gathers} for path, split in module_splits(graph, sharding).items()
    }
    job = {
        "model": name, "degree": sharding.degree, "tokens": sharding.sequence_parallel, "folder": str(folder),
        "modules": {path: module for path, module in modules.items() if path},
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "tests.helpers.split_modules", str(folder / "job.json")]
    workers = [
        subprocess.Popen([*command, str(rank)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(sharding.degree)
    ]
    try:
        errors = [worker.communicate(timeout=120)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all(worker.returncode == 0 for worker in workers), "\n".join(errors)
    return [json.loads((folder / f"seen{rank}.json").read_text()) for rank in range(sharding.degree)]


def count(sharding, *, backward: bool) -> dict[str, int]:
    """How many collectives of each kind a pass has."""
    return dict(Counter(c.kind for c in sharding.collectives if c.backward == backward))


@pytest.mark.parametrize(("name", "tokens"), [("llama", False), ("llama", True), ("bert", False)])
def test_split_modules(tmp_path, name, tokens):
    """A model split by our styles computes the same, has the shards that we count, and exchanges as often."""
    graph = graph_of(name)
    sharding = shard_graph(graph, 2, sequence_parallel=tokens)
    seen = run_split(tmp_path, name, graph, sharding)
    for one in seen:
        assert one["error"] < 1e-9
        assert one["gradients"] < 1e-9 or tokens  # a replica's share of a norm's gradient is summed by the optimizer
        assert one["forward"] == count(sharding, backward=False)
        assert one["backward"] == count(sharding, backward=True)
        for weight, weight_name in enumerate(graph.weights.name):
            shape = list(graph.weights.shape[weight])
            if sharding.weight_split[weight] >= 0:
                shape[sharding.weight_split[weight]] //= 2
            assert one["shards"][weight_name] == shape
    splits = module_splits(graph, sharding)
    made = {graph.ops.scope[op]: op for op in range(graph.n_ops) if not graph.ops.backward[op]}
    checked = 0
    for path, shape in seen[0]["sizes"].items():
        if splits[path].style == "colwise" and not splits[path].gathers:
            tensor = graph.outputs_of(made[path])[0]
            local = list(graph.tensors.shape[tensor])
            local[sharding.split[tensor]] //= 2
            assert shape == local
            checked += 1
    assert checked >= 4
