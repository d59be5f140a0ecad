"""Hugging Face configurations from file to judged plan."""

from __future__ import annotations

import pytest
from huggingface_configs import write_config

import placewise as pw
from placewise.costing.work import work_of

pytest.importorskip("torch", reason="configurations are built with PyTorch")
pytest.importorskip("transformers", reason="configurations are built with transformers")

pytestmark = pytest.mark.usefixtures("traced_once")
DIMS = {"prompt": 12, "tokens": 8}


def test_memory_is_weights_cache_and_the_larger_phase(tmp_path):
    """On one device: weights once, the cache at its full length, and the activations of the prompt, not their sum."""
    path = write_config(tmp_path, "llama")
    both = pw.place(path, "1xA100-80GB", placer="single", dims=DIMS)
    wide = pw.place(path, "1xA100-80GB", placer="single", dims={**DIMS, "sequences": 10})
    use, other = both.result.judgement.devices[0], wide.result.judgement.devices[0]
    graph = both.problem.graph
    weights = sum(dict(zip(graph.weights.storage.tolist(), graph.weights.bytes.tolist(), strict=True)).values())
    cache = 3 * 2 * 2 * 8 * 20 * 4
    assert use.resident == weights + cache
    assert other.resident == weights + 10 * cache
    assert other.peak - other.resident == use.peak - use.resident
    prompt = sum(graph.tensors.bytes[tensor] for op in range(graph.n_ops) if graph.ops.phase[op] == 0
                 for tensor in graph.outputs_of(op))  # fmt: skip
    assert 0 < use.peak - use.resident < prompt


def test_latency_is_the_prompt_and_every_token(tmp_path):
    """On one device, where only tokens travel: both phases as the roofline has them, decode 8 times."""
    plan = pw.place(write_config(tmp_path, "llama"), "1xA100-80GB", placer="single", dims=DIMS)
    judgement = plan.result.judgement
    assert [(use.phase, use.repeats) for use in judgement.phases] == [("prefill", 1), ("decode", 8)]
    assert plan.value == pytest.approx(sum(use.repeats * use.seconds for use in judgement.phases))
    seconds, phase = plan.problem.costs.op_seconds[:, 0], plan.problem.graph.ops.phase
    assert seconds.sum() < plan.value == pytest.approx(seconds.sum(), rel=0.04)
    assert judgement.phases[1].seconds == pytest.approx(seconds[phase == 1].sum() / 8, rel=0.04)


def test_both_phases_of_a_module_are_on_one_device(tmp_path):
    """Over two devices, a weight is on one of them only, whatever phase uses it."""
    path = write_config(tmp_path, "mixtral")
    for objective in ("latency", "throughput"):
        plan = pw.place(path, "2xA100-80GB,cpu", objective=objective, dims=DIMS, budget="0.3s")
        graph, where = plan.problem.graph, plan.placement.device
        homes: dict[int, set[int]] = {}
        for weight, op in zip(graph.weight_edges.value.tolist(), graph.weight_edges.consumer.tolist(), strict=True):
            if ".layers." in graph.weights.name[weight]:
                homes.setdefault(int(graph.weights.storage[weight]), set()).add(int(where[op]))
        assert homes
        assert all(len(devices) == 1 for devices in homes.values())
        assert plan.result.judgement.valid


def test_a_preset_is_found_by_its_name():
    """The name of a preset may stand where a model file does; its ops all have a known cost."""
    problem = pw.build("hf:gpt2", "1xA100-80GB", pw.ProblemOptions(dims={"prompt": 16, "tokens": 4}))
    assert not work_of(problem.graph).warnings
    assert [phase.repeats for phase in problem.graph.phases] == [1, 4]
