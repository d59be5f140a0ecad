"""ColocRL, and the sequence network that it shares with HDP: what is drawn is what is scored, masks, known optima."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest
from toy_problems import zoo

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from learned_policies import assert_goes_on
from simulate_problems import random_problem, seeded
from soak import examples
from strategies import problems

from placewise.errors import PlacerError
from placewise.model.problem import Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.learned import sequence
from placewise.placers.learned.colocrl import ColocRLOptions, ColocRLPlacer, ColocRLPolicy
from placewise.placers.learned.policy import untrained_policy
from placewise.placers.learned.sequence import SequenceOptions, Sequencer
from placewise.placers.learned.view import colocation_labels
from placewise.placers.registry import create
from placewise.simulate import evaluate

colocrl = partial(untrained_policy, ColocRLPolicy)

N, WIDTH, DEVICES = 5, 7, 3
SWITCHES = (
    SequenceOptions(),
    SequenceOptions(aligned=False),
    SequenceOptions(both_ways=True, temperature=0.3, tanh_constant=2.0),
    SequenceOptions(aligned=False, tanh_constant=0.0, hidden=9, device_width=4),
)


def small(options: SequenceOptions, seed: int = 0) -> Sequencer:
    """A sequence network whose logits are far from even."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Sequencer(WIDTH, DEVICES, options)
        for parameter in made.parameters():
            parameter.data *= 2.0
    return made


def groups(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random groups [count, N, WIDTH], and where they may go: everywhere but for a few."""
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.ones(count, N, DEVICES, dtype=torch.bool)
    allowed[:, 1, 0] = allowed[:, 3, 1] = allowed[:, 3, 2] = False
    return torch.randn(count, N, WIDTH, generator=generator), allowed


def optimum(problem: Problem) -> float:
    """The best of all placements of blocks."""
    every = itertools.product(range(problem.n_devices), repeat=problem.n_blocks)
    return float(np.nanmin(evaluate(problem, np.array(list(every), np.int32)[:, problem.block])))


@pytest.mark.parametrize("options", SWITCHES)
@pytest.mark.parametrize("sequences", [1, 400])
def test_what_is_drawn_is_what_is_scored(options: SequenceOptions, sequences: int) -> None:
    """With the same generator, the logits that score all decisions at once lead to the decisions drawn one by one."""
    network = small(options)
    told, allowed = groups(sequences)
    memory = network.encode(told, 0.1)
    device = network.decide(memory, allowed, 400, torch.Generator().manual_seed(3))
    logits = network.logits(memory, device, allowed)
    noise = torch.rand((N, 400, DEVICES), generator=torch.Generator().manual_seed(3))
    gains = logits - torch.log(-torch.log(noise)).transpose(0, 1)
    best = gains.topk(2, dim=2)
    # A tie within the tolerance of floats may fall either way.
    clear = best.values[:, :, 0] - best.values[:, :, 1] > 1e-4
    assert clear.float().mean() > 0.99
    assert torch.equal(best.indices[:, :, 0][clear], device[clear])
    assert len({tuple(row) for row in device.tolist()}) > 3


@pytest.mark.parametrize("options", SWITCHES)
def test_draws_follow_their_probabilities(options: SequenceOptions) -> None:
    """The probabilities of all sequences add up to 1, and 20,000 draws are as frequent as these say."""
    network, count = small(options), 20_000
    told, allowed = groups(1)
    memory = network.encode(told, 0.1)
    every = torch.tensor(list(itertools.product(range(DEVICES), repeat=N)))
    rows = network.logits(memory, every, allowed).log_softmax(dim=2)
    p = rows.gather(2, every[:, :, None])[:, :, 0].sum(dim=1).exp().detach().numpy()
    assert p.sum() == pytest.approx(1.0, abs=1e-5)
    drawn = network.decide(memory, allowed, count, torch.Generator().manual_seed(1))
    seen = Counter(map(tuple, drawn.tolist()))
    for sequence_, chance in zip(every.tolist(), p.tolist(), strict=True):
        error = 5 * np.sqrt(chance * (1 - chance) / count) + 1e-4
        assert seen[tuple(sequence_)] / count == pytest.approx(chance, abs=error)


@pytest.mark.parametrize("sequences", [1, 4])
def test_attention_by_parts_is_the_same(sequences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its weights would fill memory, attention and its gradients are as they are at once."""
    network = small(SequenceOptions())
    told, allowed = groups(sequences)
    device = torch.zeros((4, N), dtype=torch.int64)
    device[:, 3] = 0
    device[:, 1] = 1
    found = []
    for most in (1 << 24, 2 * N):
        monkeypatch.setattr(sequence, "MAX_WEIGHTS", most)
        network.zero_grad()
        logits = network.logits(network.encode(told, 0.1), device, allowed)
        torch.autograd.backward(logits[torch.isfinite(logits)].square().sum())
        found.append((logits.detach(), [p.grad.clone() for p in network.parameters() if p.grad is not None]))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    assert len(found[0][1]) == len(found[1][1]) > 8
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(found[0][1], found[1][1], strict=True))


def test_the_tanh_constant_bounds_and_the_temperature_flattens() -> None:
    """No logit is beyond the constant; a hot policy is closer to even than a cold one."""
    told, allowed = groups(1)
    device = torch.tensor([[0, 1, 0, 0, 0]])
    spread = {}
    for temperature in (0.1, 10.0):
        network = small(SequenceOptions(temperature=temperature, tanh_constant=1.5, explore=0.0))
        logits = network.logits(network.encode(told, 0.0), device, allowed)
        free = logits[torch.isfinite(logits)]
        assert float(free.detach().abs().max()) <= 1.5
        spread[temperature] = float(free.detach().abs().mean())
    assert spread[10.0] < 0.2 * spread[0.1]


@examples(8)
@given(problems(max_ops=6), st.integers(0, 2**20))
def test_units_go_only_where_they_may(problem: Problem, seed: int) -> None:
    """On any problem: allowed devices, whole groups, log p below 0 and finite, also of the gradient."""
    if (
        not np.logical_and.reduceat(
            problem.allowed[np.argsort(problem.block, kind="stable")],
            np.flatnonzero(np.diff(np.sort(problem.block), prepend=-1)),
        )
        .any(axis=1)
        .all()
    ):
        return
    policy = colocrl(problem, ColocRLOptions(hidden=8, colocate_over=seed % 2), seed)
    price = lambda rows: evaluate(problem, rows)  # noqa: E731
    rollout = policy.rollout(5, torch.Generator().manual_seed(seed), price)
    rows = policy.view.placements(rollout.choices["device"].numpy())
    for row in (*rows, *policy.greedy(price)):
        assert problem.allowed[np.arange(problem.n_ops), row].all()
        assert all(len(set(row[problem.block == b].tolist())) == 1 for b in set(problem.block.tolist()))
    log_prob, entropy = policy.log_prob(rollout.choices)
    assert log_prob.shape == entropy.shape == (5, policy.view.n)
    assert torch.isfinite(log_prob).all() and (log_prob <= 1e-6).all() and (entropy >= -1e-6).all()
    torch.autograd.backward(log_prob.sum() + entropy.sum())
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)


def test_groups_are_told_their_neighbours() -> None:
    """One column per group while there are few, shared by groups that are near in the order where there are more."""
    problem = zoo("layered", 30, 50)
    whole = colocrl(problem, ColocRLOptions(), 0)
    name, width = whole.features.layout[-1]
    near = whole.features.matrix[:, -width:]
    assert (name, width) == ("adjacency", whole.view.n)
    assert np.array_equal(near, near.T) and near.sum() == 2 * len(whole.view.tail)
    capped = colocrl(problem, ColocRLOptions(neighbours=10), 0)
    shared = capped.features.matrix[:, -10:]
    assert np.array_equal(shared, near.reshape(30, 10, 3).max(axis=2))


def test_long_graphs_are_co_located_and_short_ones_are_not() -> None:
    """The rules of the paper join ops only where there are more than `colocate_over`."""
    problem = zoo("branchy", 40, 50)
    joined = len(set(colocation_labels(problem).tolist()))
    assert joined < 40
    assert colocrl(problem, ColocRLOptions(), 0).view.n == 40
    assert colocrl(problem, ColocRLOptions(colocate_over=39), 0).view.n == joined


@pytest.mark.parametrize(
    ("family", "seed"),
    [("layered", 0), *(pytest.param(*more, marks=pytest.mark.soak) for more in (("branchy", 1), ("erdos-renyi", 2)))],
)
def test_near_the_optimum_of_small_graphs(family: str, seed: int) -> None:
    """Twelve ops on two devices: within 2 % of the best of all placements, which one device is not."""
    problem = zoo(family, 12, 60)
    best = optimum(problem)
    alone = float(evaluate(problem, np.zeros((1, 12), np.int32))[0])
    proposal = run_placer(ColocRLPlacer(), problem, Budget(iterations=80, seed=seed))
    assert proposal.placement is not None
    assert float(evaluate(problem, proposal.placement.device[None])[0]) <= 1.02 * best < alone


def test_the_policy_itself_learns() -> None:
    """After training on whole placements, what it likes best is better than untrained, and than the best one device."""
    problem = zoo("erdos-renyi", 24, 61)
    placer = ColocRLPlacer(ColocRLOptions(moving=0.0))
    trainer = placer.trainer(problem, None, 0)
    price = trainer.pricing
    before = float(price(trainer.policy.greedy(price))[0])
    trainer.begin()
    trainer.run(Budget(iterations=120))
    after = float(price(trainer.policy.greedy(price))[0])
    assert after < before and after < 0.9 * trainer.learner.scale


def test_the_same_seed_gives_the_same_placement() -> None:
    """Whatever torch's own generator is at; another seed begins with other parameters."""
    problem = zoo("layered", 20, 62)
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        proposal = run_placer(create("colocrl"), problem, Budget(iterations=8, seed=4))
        found.append((proposal.placement.device.tolist(), [step.value for step in proposal.history]))
    assert found[0] == found[1]
    first, other = (colocrl(problem, ColocRLOptions(), seed).sequencer.out.weight for seed in (4, 5))
    assert not torch.equal(first, other)


def test_training_goes_on_where_its_state_was_taken() -> None:
    """Three updates by one trainer, three more by it or by another from its state: the same to the last bit."""
    assert_goes_on(ColocRLPlacer(), zoo("layered", 20, 62))


def test_one_op_and_one_device() -> None:
    """The smallest problems have an answer."""
    for seed in range(6):
        problem = random_problem(seeded(seed), max_ops=1, max_devices=1)
        proposal = run_placer(ColocRLPlacer(), problem, Budget(iterations=2))
        assert proposal.placement is not None or proposal.infeasible or proposal.notes


@pytest.mark.parametrize(
    "options",
    [{"hidden": 0}, {"temperature": 0.0}, {"tanh_constant": -1.0}, {"neighbours": 0}, {"kind_width": 0},
     {"colocate_over": -1}, {"hidden": 7, "both_ways": True}, {"rate": -1.0}],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    """With a sentence that names them."""
    with pytest.raises(PlacerError, match=next(iter(options))):
        create("colocrl", options)
