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
if not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

import split_modules  # noqa: E402  # needs torch

DEGREE = 2
CASES = (("llama", False), ("llama", True), ("bert", False))
"""Model, and whether tokens are split (sequence parallelism)."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Per case: the training graph, its sharding, and what each worker saw of the model that was split like it."""
    folder = tmp_path_factory.mktemp("split")
    graphs, cases = [], []
    for name, tokens in CASES:
        model = split_modules.make_model(name)
        graph = to_training(open_model(model, inputs=model.sample()).graph, loss=False)
        sharding = shard_graph(graph, DEGREE, sequence_parallel=tokens)
        modules = module_splits(graph, sharding).items()
        styles = {path: {"style": split.style, "gathers": split.gathers} for path, split in modules if path}
        graphs.append((graph, sharding))
        cases.append({"model": name, "tokens": tokens, "modules": styles})
    job = folder / "job.json"
    job.write_text(json.dumps({"degree": DEGREE, "folder": str(folder), "cases": cases}))
    command = [sys.executable, split_modules.__file__, str(job)]
    workers = [
        subprocess.Popen([*command, str(rank)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for rank in range(DEGREE)
    ]
    try:
        errors = [worker.communicate(timeout=240)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all(worker.returncode == 0 for worker in workers), "\n".join(errors)
    seen = [json.loads(Path(folder, f"seen{rank}.json").read_text()) for rank in range(DEGREE)]
    return {case: (*pair, [one[k] for one in seen]) for k, (case, pair) in enumerate(zip(CASES, graphs, strict=True))}


def count(sharding, *, backward: bool) -> dict[str, int]:
    """How many collectives of each kind a pass has."""
    return dict(Counter(c.kind for c in sharding.collectives if c.backward == backward))


@pytest.mark.parametrize("case", CASES)
def test_same_results(runs, case):
    """A model split by our styles computes the same results and gradients as one process."""
    for seen in runs[case][2]:
        assert seen["error"] < 1e-9
        # The gradient of a norm that saw some of the tokens is one of the summands that optimizers add up.
        errors = {name: error for name, error in seen["gradients"].items() if not (case[1] and "norm" in name)}
        assert len(errors) >= 10
        assert max(errors.values()) < 1e-9


@pytest.mark.parametrize("case", CASES)
def test_same_collectives(runs, case):
    """Both passes exchange as often, and in the same ways, as the split modules do."""
    _, sharding, both = runs[case]
    for seen in both:
        assert seen["forward"] == count(sharding, backward=False)
        assert seen["backward"] == count(sharding, backward=True)


@pytest.mark.parametrize("case", CASES)
def test_same_sizes(runs, case):
    """Each process has the parts of weights and results that we count."""
    graph, sharding, both = runs[case]
    for seen in both:
        for weight, name in enumerate(graph.weights.name):
            shape = list(graph.weights.shape[weight])
            if sharding.weight_split[weight] >= 0:
                shape[sharding.weight_split[weight]] //= DEGREE
            assert seen["shards"][name] == shape
    splits = module_splits(graph, sharding)
    made = {graph.ops.scope[op]: op for op in range(graph.n_ops) if not graph.ops.backward[op]}
    columns = [path for path in both[0]["sizes"] if splits[path].style == "colwise" and not splits[path].gathers]
    assert len(columns) >= 4
    for path in columns:
        tensor = graph.outputs_of(made[path])[0]
        local = list(graph.tensors.shape[tensor])
        local[sharding.split[tensor]] //= DEGREE
        assert both[0]["sizes"][path] == local
