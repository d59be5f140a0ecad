"""GDP: any graph and any devices, decisions scored as they were drawn, devices known by what they are."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gdp_policies import SMALL, device_probabilities, some_policy, zoo_problem
from locations import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from hypothesis import assume, given
from hypothesis import strategies as st
from simulate_problems import problems, random_problem, seeded
from soak import examples, later

from placewise.catalog import read_cluster
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.costing.roofline import cost_table
from placewise.errors import PlacerError
from placewise.files.policy_file import save_policy
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.learned.gdp import Gdp, GdpOptions, GdpPlacer, _device_counts
from placewise.placers.learned.gdp_network import SegmentAttention
from placewise.placers.learned.policy import untrained_policy
from placewise.placers.learned.pricing import Pricing, single_device_rows
from placewise.placers.learned.trainer import Trainer
from placewise.placers.registry import create
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import why_infeasible
from placewise.simulate.judge.memory import device_memory
from placewise.training.resume import dump_checkpoint
from placewise.zoo.random import random_graph

gdp = partial(untrained_policy, Gdp)


@examples(8)
@given(problems(max_ops=9, rules=True), st.integers(0, 2**20))
def test_decisions_are_scored_as_they_were_drawn(problem: Problem, seed: int) -> None:
    """Any graph, any rules: log p and entropy are those of the probabilities, rights are kept, all is finite."""
    assume(not why_infeasible(problem))
    policy, pricing = some_policy(problem, seed), Pricing(problem)
    rollout = policy.rollout(5, torch.Generator().manual_seed(seed), pricing)
    device = rollout.choices["device"]
    log_prob, entropy = policy.log_prob(rollout.choices)
    spread = policy.logits().exp()
    assert torch.allclose(spread.sum(dim=1), torch.ones(policy.view.n), atol=1e-5)
    assert torch.allclose(log_prob.exp(), spread[torch.arange(policy.view.n), device], atol=1e-5)
    assert torch.allclose(entropy, torch.special.entr(spread).sum(dim=1).expand(5, -1), atol=1e-4)
    assert np.array_equal(rollout.seconds, pricing(policy.view.placements(device.numpy())), equal_nan=True)
    assert policy.view.allowed[np.arange(policy.view.n), device.numpy()].all()
    chosen = policy.decisions(policy.view.placements(device.numpy()))
    assert torch.equal(chosen["device"], device)
    with torch.autograd.set_detect_anomaly(True):
        log_prob, entropy = policy.log_prob(rollout.choices)
        torch.autograd.backward(log_prob.sum() + entropy.sum())
    grads = {name: value.grad for name, value in policy.named_parameters() if value.grad is not None}
    assert not [name for name, grad in grads.items() if not torch.isfinite(grad).all()]


@examples(10)
@given(problems(max_ops=9, rules=True), st.integers(0, 2**20))
def test_probabilities_are_for_ops(problem: Problem, seed: int) -> None:
    """Rows of ops sum to one, nothing where an op may not run; greedy placements are valid and the same every time."""
    assume(not why_infeasible(problem))
    policy = some_policy(problem, seed)
    share = device_probabilities(policy)
    assert share.shape == (problem.n_ops, problem.n_devices)
    assert np.allclose(share.sum(axis=1), 1.0) and not share[~problem.allowed].any()
    found = policy.greedy(Pricing(problem))
    assert np.array_equal(found, policy.greedy(Pricing(problem)))
    assert 1 <= len(found) <= policy.options.prior_sets * problem.n_devices
    assert problem.allowed[np.arange(problem.n_ops), found].all()


@examples(12)
@given(st.integers(0, 2**20))
def test_devices_are_known_by_what_they_are(seed: int) -> None:
    """The same devices in another order get the same scores, in that order."""
    problem = random_problem(seeded(seed), max_ops=8, max_devices=4)
    policy = some_policy(problem, seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(problem.n_devices))
    inputs = policy.inputs
    shuffled = replace(
        inputs, device=inputs.device[order], pair=inputs.pair[:, order], allowed=inputs.allowed[:, order],
        load=inputs.load[:, order], held=inputs.held[:, order],
    )  # fmt: skip
    with torch.no_grad():
        embedded = policy.embedded()
        expected = policy.scores(inputs, embedded)[:, :, order]
        assert torch.allclose(policy.scores(shuffled, embedded), expected, atol=1e-4)


def test_what_says_nothing_is_not_worked_out_and_changes_nothing() -> None:
    """Scores of an untrained policy are those of the whole network, and each prior set is one of its own."""
    policy = gdp(zoo_problem("layered", 60, 3, "4xK80,cpu"), GdpOptions(prior_sets=3), 0)
    with torch.no_grad():
        assert policy.embedded() is None
        brief = policy.scores(policy.inputs, None, slice(0, 3))
    for way, scores in enumerate(brief):
        whole = policy.scores(policy.inputs, policy.embedded(), slice(way, way + 1)).detach()
        torch.testing.assert_close(whole[0], scores)
    assert not torch.equal(brief[0], brief[1]) and len(policy.greedy(Pricing(policy.view.problem))) > 5
    with torch.no_grad():
        policy.score.weight.fill_(0.1)
        assert policy.embedded() is not None


def test_weights_fit_any_graph_and_any_devices() -> None:
    """The same names and shapes for every problem and whichever parts are switched off, and they can be exchanged."""
    first = some_policy(zoo_problem("branchy", 40, 1, "2xP100,cpu"))
    for problem in (zoo_problem("layered", 70, 2, "4xK80"), zoo_problem("erdos-renyi", 30, 3, "P100,V100-16GB,2xcpu")):
        for described in (True, False):
            other = some_policy(problem, device_features=described)
            assert {k: v.shape for k, v in other.state_dict().items()} == {
                k: v.shape for k, v in first.state_dict().items()
            }
            other.load_state_dict(first.state_dict())
            assert np.isfinite(device_probabilities(other)).all()
            assert other.features.layout == first.features.layout


def test_attention_is_what_it_would_be_one_unit_after_the_other() -> None:
    """Softmax over the own segment and the one before, and no gradient into that; in pieces, the same numbers."""
    torch.manual_seed(0)
    n, hidden, heads, segment = 23, 8, 2, 5
    layer, x = SegmentAttention(hidden, heads, 4), torch.randn(n, hidden, requires_grad=True)
    found = layer._attend(x, segment, 100)
    query, key, value = (part(x).view(n, heads, -1) for part in (layer.query, layer.key, layer.value))
    for unit in range(n):
        first = max(unit // segment - 1, 0) * segment
        seen = slice(first, min((unit // segment + 1) * segment, n))
        weight = torch.softmax(torch.einsum("hd,uhd->hu", query[unit], key[seen]) / (hidden / heads) ** 0.5, dim=1)
        expected = torch.einsum("hu,uhd->hd", weight, value[seen]).flatten()
        assert torch.allclose(found[unit], expected, atol=1e-5)
    torch.autograd.backward(found[12].sum())
    assert x.grad is not None
    reached = x.grad.abs().sum(dim=1) > 0
    assert torch.equal(reached, torch.arange(n) // segment == 12 // segment)
    with torch.no_grad():
        assert torch.allclose(layer._attend(x, segment, 2), found, atol=1e-5)


def test_gates_begin_at_one_and_are_the_graphs() -> None:
    """Untrained, superposition changes nothing; then the same units score otherwise on another graph."""
    problem = zoo_problem("branchy", 30, 1, "2xK80,cpu")
    gated = gdp(problem, GdpOptions(**SMALL), 3)  # type: ignore[arg-type]
    with torch.no_grad():
        gated.score.weight.fill_(0.3)
        embedded = gated.embedded()
        assert embedded is not None
        plain = gated.scores(gated.inputs, embedded)
        assert torch.equal(gated.scores(gated.inputs, (embedded[0], 2 * embedded[1])), plain)
        for name, value in gated.named_parameters():
            value.add_(0.3 if ".gate.weight" in name else 0.0)
        embedded = gated.embedded()
        assert embedded is not None
        other = (embedded[0], 2 * embedded[1])
        assert not torch.allclose(gated.scores(gated.inputs, embedded), gated.scores(gated.inputs, other))


@examples(10)
@given(st.integers(0, 2**20))
def test_regions_that_move_are_scored_as_they_were_drawn(seed: int) -> None:
    """A region goes to one device by the mean of what its units say; before and after, the judge has the word."""
    problem = random_problem(seeded(seed), max_ops=8, max_devices=4)
    policy, pricing = some_policy(problem, seed, moving=1.0, regions=2), Pricing(problem)
    pricing(np.zeros((1, problem.n_ops), np.int32))
    rollout = policy.rollout(4, torch.Generator().manual_seed(seed), pricing)
    assert rollout.path is not None and np.array_equal(rollout.path[:, 1], rollout.seconds, equal_nan=True)
    log_prob, entropy = policy.log_prob(rollout.choices)
    logits, share = policy.logits(), policy.options.explore / 2
    for k, (regions, moves) in enumerate(zip(rollout.choices["region"], rollout.choices["move"], strict=True)):
        for r, (region, device) in enumerate(zip(regions, moves.tolist(), strict=True)):
            if not region.any():
                continue
            useful = policy.inputs.allowed[region].any(dim=0)
            mean = logits[region].clamp_min(-100).mean(dim=0).masked_fill(~useful, -torch.inf)
            spread = (1 - share) * torch.softmax(mean, dim=0) + share * useful / useful.sum()
            assert useful[device]
            assert torch.isclose(log_prob[k, r].exp(), spread[device], atol=1e-5)
            assert torch.isclose(entropy[k, r], torch.special.entr(spread).sum(), atol=1e-4)


@pytest.mark.parametrize(
    ("family", "seed", "devices", "objective"),
    [
        pytest.param("branchy", 1, "2xK80", Objective(), marks=pytest.mark.soak),
        later("layered", 2, "2xK80,i9-12900K", Objective()),
        pytest.param(
            "series-parallel", 3, "i9-12900K,Flex-170", Objective(execution="sequential"), marks=pytest.mark.soak
        ),
        ("erdos-renyi", 4, "2xK80", Objective("throughput")),
    ],
)
def test_near_the_optimum_of_small_graphs(family: str, seed: int, devices: str, objective: Objective) -> None:
    """Trained from nothing, within two per cent of what exhaustive search proves, with 500 prices."""
    problem = zoo_problem(family, 9, seed, devices, objective)
    best = place(problem, "exhaustive").judgement
    options = {**SMALL, "moving": 0.5, "prior": 0.0, "advice": False}
    found = place(problem, "gdp", Budget(evaluations=500, iterations=60), options=options).judgement
    assert best is not None and found is not None and found.valid
    assert found.value <= 1.02 * best.value


def test_the_same_seed_and_a_resumed_training_end_alike() -> None:
    """Chance comes from the seed alone; where a training was when it was stopped, it goes on."""
    problem = zoo_problem("layered", 40, 5, "2xP100,cpu")
    options = GdpOptions(**{**SMALL, "moving": 0.5, "entropy": 0.0})  # type: ignore[arg-type]

    def begun() -> Trainer:
        trainer = Trainer(gdp(problem, options, 1), options, Pricing(problem), 1)
        trainer.begin()
        return trainer

    whole, first = begun(), begun()
    whole.run(Budget(iterations=8))
    first.run(Budget(iterations=4))
    second = begun()
    second.restore(*first.state())
    second.run(Budget(iterations=8))
    assert second.pricing.value == whole.pricing.value
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, second.policy.state_dict()[name]), name


def test_large_graphs_are_grouped_or_taken_whole() -> None:
    """At most so many units for training, about; every block for `all`; the same weights for both."""
    problem = zoo_problem("layered", 900, 1, "4xP100")
    coarse, fine = some_policy(problem, most_units=100), some_policy(problem, units="all")
    assert coarse.view.n <= 150 and fine.view.n == problem.n_blocks == 900
    fine.load_state_dict(coarse.state_dict())
    assert np.isfinite(device_probabilities(fine)).all()


def test_greedy_placements_are_made_to_fit() -> None:
    """Where no device holds all and the likeliest placement does not fit, the answer without training is valid."""
    graph, cluster = random_graph("series-parallel", 60, 3, size=4, batch=1), read_cluster("3xK80")
    problem = Problem(graph, cluster, cost_table(graph, cluster))
    need = device_memory(problem, Placement(np.zeros(problem.n_ops, np.int32)))[1][0]
    devices = tuple(replace(device, memory=0.8 * need) for device in problem.cluster)
    tight = Problem(problem.graph, replace(problem.cluster, devices=devices), problem.costs, problem.objective)
    assert not len(single_device_rows(tight))
    for objective in (Objective(), Objective(execution="sequential"), Objective("throughput")):
        proposal = run_placer(GdpPlacer(GdpOptions(**SMALL, updates=0)), tight.with_(objective=objective), Budget())  # type: ignore[arg-type]
        assert proposal.placement is not None and not find_broken_rule(tight, proposal.placement.device)


def test_a_partitioner_is_heard_with_the_advice() -> None:
    """A METIS cut is among the greedy placements; without advice, the policy alone is worse on this graph."""
    problem = build("zoo:bert-base", "4xP100,cpu", ProblemOptions(graph="training", optimizer="sgd"))
    pytest.importorskip("pymetis")
    parts = place(problem, "metis").value
    advised, plain = (place(problem, "gdp", options={"updates": 0, "advice": advice}).value for advice in (True, False))
    assert advised is not None and parts is not None and plain is not None
    assert advised <= parts < plain


MEMORY = """
import resource
import sys

sys.path[:0] = ["tests", "tests/helpers"]
import torch

torch.set_num_threads(1)
from gdp_policies import device_probabilities, some_policy, zoo_problem

from placewise.model.result import Reason
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.placer import build_proposal
from placewise.placers.learned.pricing import Pricing
from placewise.placers.learned.trainer import Trainer

problem = zoo_problem("layered", 8000, 1, "8xP100")
policy = some_policy(problem, units="all", hidden=64, inner=32, segment=256, rounds=8)
expected = device_probabilities(policy)
policy = some_policy(problem, units="all", hidden=64, inner=32, segment=256, rounds=8)
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, resource.RLIM_INFINITY))
share = device_probabilities(policy)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert abs(share.sum(axis=1) - 1).max() < 1e-6
trainer = Trainer(policy, LearningOptions(), Pricing(problem))
trainer.begin()
print(policy.segment, *build_proposal(problem, trainer, "gdp", Reason.FINISHED).notes)
"""


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits memory as Linux does")
def test_where_memory_is_short_segments_become_shorter() -> None:
    """In a process that may have little more than it has: an answer all the same, and a note that says why."""
    for room in (14, 15, 13, 16, 12):  # what the process has at hand beside that differs from run to run
        code = MEMORY.replace("ROOM", str(room << 20))
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
        segment, _, note = done.stdout.strip().partition(" ")
        if done.returncode == 0 and int(segment) < 256:
            break
    assert done.returncode == 0, done.stderr
    assert int(segment) < 256 and "memory is short" in note and segment in note


@pytest.mark.parametrize("switch", [{"device_features": False},
                                    {"advice": False}, {"prior": 0.0}, {"algorithm": "reinforce"},
                                    {"layers": 0, "attentions": 0, "rounds": 1}])  # fmt: skip
def test_every_switch_trains(switch: dict[str, object]) -> None:
    """Two updates, after which the parameters are others and finite."""
    problem = zoo_problem("branchy", 30, 2, "2xK80,cpu")
    policy = some_policy(problem, moving=0.5, **switch)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    trainer = Trainer(policy, policy.options, Pricing(problem))
    trainer.begin()
    trainer.run(Budget(iterations=2))
    after = policy.state_dict()
    assert not trainer.diverged and any(not torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    "options",
    [{"rounds": 0}, {"hidden": 0}, {"hidden": 30}, {"segment": 0}, {"most_units": 0}, {"layers": -1}, {"regions": 0},
     {"moving": 1.5}, {"moving": math.nan}, {"prior": -1.0}, {"prior": math.inf}],
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, float]) -> None:
    """One sentence with the option's name and what to give."""
    with pytest.raises(PlacerError, match=next(iter(options))) as refused:
        create("gdp", options)
    assert refused.value.remedy


def test_weights_fit_other_graphs_and_devices_but_no_other_shape(tmp_path: Path) -> None:
    """A checkpoint gives its weights to any problem; another shape and another policy are refused by name."""
    problem = zoo_problem("branchy", 20, 2, "2xK80")
    trainer = GdpPlacer(GdpOptions(**SMALL)).trainer(problem, None, 5)  # type: ignore[arg-type]
    trainer.begin()
    trainer.run(Budget(iterations=2))
    kept = str(tmp_path / "kept")
    save_policy(*dump_checkpoint(trainer, "gdp", reward="simulated", budget=Budget(), spent=1.0), kept)
    other = zoo_problem("layered", 25, 3, "3xP100,cpu")
    policy = create("gdp", {"checkpoint": kept}).policy(other, 5)  # type: ignore[attr-defined]
    assert all(torch.equal(value, trainer.policy.state_dict()[name]) for name, value in policy.state_dict().items())
    with pytest.raises(PlacerError, match="of shape"):
        create("gdp", {"checkpoint": kept, "hidden": 16}).policy(other, 5)  # type: ignore[attr-defined]
    with pytest.raises(PlacerError, match="is of the policy 'gdp', not 'hsdag'"):
        create("hsdag", {"checkpoint": kept}).policy(other, 0)  # type: ignore[attr-defined]
    assert run_placer(create("gdp", {"checkpoint": kept, "updates": 0}), other, Budget()).placement is not None


def test_large_graphs_try_fewer_numbers_of_devices() -> None:
    """All of them, and 1, 2, 4, … fewer; never none."""
    assert _device_counts(9, many=True) == [9, 8, 7, 5, 1] and _device_counts(1, many=True) == [1]
    assert _device_counts(3, many=False) == [3, 2, 1]
