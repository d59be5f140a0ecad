"""HSDAG: its units against plain twins, graph parsing by hand, a distribution that adds up, and known optima."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from hypothesis import given
from hypothesis import strategies as st
from ir_files import unpacked
from simulate_problems import random_problem, seeded
from soak import examples, later
from strategies import problems

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import PlacerError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.columns import Ints, firsts_of
from placewise.model.costs import CostTable
from placewise.model.problem import Objective, Problem, Rule
from placewise.placers.base import Budget, run_placer
from placewise.placers.learned.hsdag import HsdagOptions, HsdagPlacer, HsdagPolicy
from placewise.placers.learned.parsing import best_edges, edges_between, join_groups
from placewise.placers.learned.policy import untrained_policy
from placewise.placers.learned.pricing import Pricing
from placewise.placers.learned.view import chain_labels, colocation_labels, model_part
from placewise.placers.registry import create
from placewise.simulate import evaluate

hsdag = partial(untrained_policy, HsdagPolicy)

TWO = Cluster(
    (
        Device("cpu", "cpu", 64e9, peak_flops={"float32": 6e11}, memory_bandwidth=7e10, op_overhead=1e-6),
        Device("gpu", "accelerator", 14e9, peak_flops={"float32": 1.2e12}, memory_bandwidth=14e10, op_overhead=5e-6),
    ),
    (Link("host", "gpu", 12e9, 3e-6), Link("gpu", "host", 12e9, 3e-6)),
)


def zoo(family: str, n: int, seed: int, execution: str) -> Problem:
    """A random graph of the zoo on a processor and a graphics card that is twice as fast."""
    dims = {"n_ops": n, "seed": seed, "batch": 1, "size": 28}
    return build(f"zoo:random-{family}", TWO, ProblemOptions(execution=execution, objective="latency", dims=dims))


def wired(edges: list[tuple[int, int]], scopes: list[str], *, barred: tuple[int, ...] = ()) -> Problem:
    """Ops by their scopes on two devices; `barred` ones may not run on the second."""
    builder = GraphBuilder()
    ops = [builder.add_op(f"op{k}", "A", scope=scope) for k, scope in enumerate(scopes)]
    made = {k: builder.add_tensor(ops[k], nbytes=1) for k in sorted({tail for tail, _ in edges})}
    for tail, head in edges:
        builder.add_edge(made[tail], ops[head])
    seconds = np.ones((len(ops), 2))
    seconds[list(barred), 1] = np.inf
    costs = CostTable.given(seconds, np.zeros((len(made), 1)))
    return Problem(builder.build(), Cluster((Device("a", "cpu"), Device("b", "cpu"))), costs, Objective("latency"))


def partition(label: Ints) -> set[frozenset[int]]:
    """The groups of a label, as sets."""
    return {frozenset(np.flatnonzero(label == value).tolist()) for value in np.unique(label)}


def plain(problem: Problem, wanted: Callable[[set[int], set[int]], bool]) -> set[frozenset[int]]:
    """Blocks, merged along edges for which `wanted` (children of the tail, parents of the head) holds, op by op."""
    graph, block = problem.graph, problem.block.tolist()
    edges = set()
    for tensor in range(graph.n_tensors):
        maker = int(graph.tensors.producer[tensor])
        edges |= {(block[maker], block[k]) for k in graph.consumers_of(tensor).tolist() if maker >= 0}
    edges = {(tail, head) for tail, head in edges if tail != head}
    home = {b: {b} for b in block}
    rights = {b: problem.allowed[problem.block == b].all(axis=0).tolist() for b in block}
    for tail, head in sorted(edges):
        children = {other for one, other in edges if one == tail}
        parents = {one for one, other in edges if other == head}
        if wanted(children, parents) and rights[tail] == rights[head]:
            joined = home[tail] | home[head]
            home |= dict.fromkeys(joined, joined)
    return {frozenset(op for op, b in enumerate(block) if b in group) for group in home.values()}


@examples(10)
@given(problems(max_ops=8))
def test_chains_are_those_of_the_plain_twin(problem: Problem) -> None:
    """A sole child and its sole parent are merged, where they may run on the same devices; nothing else is."""
    twin = plain(problem, lambda children, parents: len(children) == len(parents) == 1)
    assert partition(chain_labels(problem)) == twin


@examples(12)
@given(problems(max_ops=8))
def test_sole_readers_are_those_of_the_plain_twin(problem: Problem) -> None:
    """What one unit alone reads goes with that one, where they may run on the same devices."""
    assert partition(colocation_labels(problem)) == plain(problem, lambda children, _: len(children) == 1)


def test_colocation_keeps_parts_apart_that_scopes_tell() -> None:
    """Two steps of a cell, each whole, and what feeds one of them alone; the sole reader of a step is apart."""
    scopes = ["", "rnn.step.0.gate", "rnn.step.0", "rnn.step.1.gate", "rnn.step.1", ""]
    problem = wired([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], scopes)
    assert partition(colocation_labels(problem)) == {frozenset({0, 1, 2}), frozenset({3, 4}), frozenset({5})}


def test_units_lose_no_device() -> None:
    """An op that may not run on a device joins none that may, be it in a chain or in one part of the model."""
    problem = wired([(0, 1), (1, 2), (2, 3)], ["x.0"] * 4, barred=(1,))
    assert partition(chain_labels(problem)) == {frozenset({0}), frozenset({1}), frozenset({2, 3})}
    assert partition(colocation_labels(problem)) == {frozenset({0, 2, 3}), frozenset({1})}


@pytest.mark.parametrize(
    ("scope", "part"),
    [
        ("decoder.layer.1.step.7.attention", "decoder.layer.1.step.7"),
        ("mixed_5b.Branch_0.conv", "mixed_5b.Branch_0"),
        ("a.0.3x3.tall", "a.0.3x3"),
        ("layer.3", "layer.3"),
        ("softmax", ""),
        ("", ""),
    ],
)
def test_parts_of_scopes(scope: str, part: str) -> None:
    """A step, a branch, a part of a numbered layer; where there is no number, nothing."""
    assert model_part(scope) == part


def test_parsing_by_hand() -> None:
    """A path of five nodes: every node keeps its best edge, the first of equal ones; two groups are left."""
    tail, head = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 4])
    kept = best_edges(tail, head, np.array([0.9, 0.2, 0.4, 0.4]), 5)
    assert kept.tolist() == [0, 0, 2, 2, 3]
    group = join_groups(tail, head, kept, 5)
    assert group.tolist() == [0, 0, 1, 1, 1] and firsts_of(group).tolist() == [0, 2]
    assert edges_between(group, tail, head).tolist() == [1]
    assert best_edges(tail[:1], head[:1], np.array([0.5]), 3).tolist() == [0, 0, -1]


@examples(60)
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 3)), max_size=20))
def test_parsing_as_a_plain_walk(n: int, rows: list[tuple[int, int, int]]) -> None:
    """Kept edges and components are those found node by node."""
    edges = [(a % n, b % n, s / 4) for a, b, s in rows]
    tail, head = np.array([a for a, *_ in edges], np.int64), np.array([b for _, b, _ in edges], np.int64)
    kept = best_edges(tail, head, np.array([s for *_, s in edges]), n)
    group = join_groups(tail, head, kept, n)
    home = list(range(n))
    for node in range(n):
        mine = [k for k, (a, b, _) in enumerate(edges) if node in (a, b)]
        assert kept[node] == max(mine, key=lambda k: (edges[k][2], -k), default=-1)
        if mine:
            one, other = edges[int(kept[node])][:2]
            home = [home[one] if h == home[other] else h for h in home]
    assert partition(group) == partition(np.array(home))


PLAIN = {"alone": "never", "jitter": 0.0, "explore": 0.0, "chains": "never"}


def enumerated(policy: HsdagPolicy) -> tuple[float, int]:
    """Σ of the probabilities of all that groups may decide in the first state, and how many decisions there are."""
    choices = policy.rollout(1, torch.Generator().manual_seed(5), lambda rows: np.zeros(len(rows))).choices
    groups = partition(policy_groups(policy, choices))
    homes = [np.flatnonzero(policy.view.allowed[sorted(group)].all(axis=0)).tolist() for group in groups]
    rows = []
    for devices in itertools.product(*homes):
        row = np.zeros(policy.view.n, np.int64)
        for group, device in zip(groups, devices, strict=True):
            row[sorted(group)] = device
        rows.append(torch.from_numpy(row))
    many = {name: value.expand(len(rows), *value.shape[1:]) for name, value in choices.items()}
    log_prob, entropy = policy.log_prob({**many, "device": torch.stack(rows)})
    assert log_prob.shape == entropy.shape == (len(rows), len(groups))
    return float(log_prob.detach().sum(dim=1).exp().sum()), len(groups)


def policy_groups(policy: HsdagPolicy, choices: dict[str, torch.Tensor]) -> Ints:
    """The groups of a rollout's first row, from the edges that it kept, walked plainly."""
    home = np.arange(policy.view.n)
    for row in choices["kept"][0].tolist():
        for edge in row:
            if edge >= 0:
                home[home == home[policy.head[edge]]] = home[policy.tail[edge]]
    return home


@pytest.mark.parametrize(
    "options",
    [
        PLAIN,
        {"rounds": 2, "chains": "never"},
        {"alone": "always", "chains": "never"},
        {"chains": "always"},
    ],
)
def test_probabilities_add_up(options: dict[str, object]) -> None:
    """All decisions of the parsed groups have probability one in sum, also after the parameters have changed."""
    for seed in (2, 4, 9):
        problem = random_problem(seeded(seed), max_ops=8, max_devices=3, rules=True)
        if not all(problem.allowed[problem.block == b].all(axis=0).any() for b in range(problem.n_blocks)):
            continue
        policy = hsdag(problem, HsdagOptions(hidden=16, steps=2, **options), seed)
        total, before = enumerated(policy)
        assert total == pytest.approx(1.0, abs=1e-5) and before >= 1


def test_rows_of_a_rollout_are_scored_in_their_states() -> None:
    """Later parameters score the groups that were drawn; groups are whole, and scores of edges get gradients."""
    problem = zoo("branchy", 60, 3, "operator")
    policy = hsdag(problem, HsdagOptions(hidden=32, steps=3, alone="always"), 1)
    rollout = policy.rollout(8, torch.Generator().manual_seed(2), lambda rows: evaluate(problem, rows))
    assert rollout.choices["step"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert rollout.weight is not None and rollout.weight.tolist() == [1.0] * 8
    first, entropy = policy.log_prob(rollout.choices)
    for group in partition(policy_groups(policy, dict(rollout.choices))):
        assert len(np.unique(rollout.choices["device"][:3, sorted(group)].numpy(), axis=1).T) >= 1
        assert all(len(set(row)) == 1 for row in rollout.choices["device"][:3, sorted(group)].tolist())
    assert (first <= 0).all() and (entropy >= 0).all() and (first < 0).sum(dim=1).min() > 1
    first.sum().backward()
    assert all(value.grad is not None and float(value.grad.abs().sum()) > 0 for value in policy.affinity.parameters())
    with torch.no_grad():
        for value in policy.parameters():
            value.add_(0.05)
    again, _ = policy.log_prob(rollout.choices)
    assert again.shape == first.shape and not torch.allclose(again, first)


def test_moves_add_up() -> None:
    """All moves of groups have probability one in sum; where the whole of a group is already, it cannot move."""
    problem = zoo("branchy", 20, 3, "operator")
    price = Pricing(problem)
    price(np.zeros((1, 20), np.int32))
    policy = hsdag(
        problem, HsdagOptions(**PLAIN | {"alone": "always"}, hidden=16, steps=1, rounds=1, moves=1, varied=False), 1
    )
    choices = policy.rollout(1, torch.Generator().manual_seed(5), price).choices
    n_moves = 2 * len(partition(policy_groups(policy, choices)))
    found = [policy.log_prob({**choices, "move": torch.tensor([[move]])})[0] for move in range(n_moves)]
    odds = torch.stack(found).detach().exp().flatten()
    assert float(odds.sum()) == pytest.approx(1.0, abs=1e-5)
    assert not odds[0::2].any() and (odds[1::2] > 0).all()


def test_samples_are_moves_from_the_best_so_far() -> None:
    """Each differs from the best of its moment by one or two groups; the path tells the seconds of both."""
    problem = zoo("branchy", 60, 3, "operator")
    policy = hsdag(problem, HsdagOptions(hidden=16, steps=3, rounds=2), 1)
    price = Pricing(problem)
    price(np.zeros((1, 60), np.int32))
    rollout = policy.rollout(12, torch.Generator().manual_seed(2), price)
    held, path = rollout.choices["start"].numpy(), rollout.path
    assert path is not None and path.shape == (12, 2) and np.array_equal(path[:, 1], rollout.seconds)
    assert path[:, 0] == pytest.approx(evaluate(problem, policy.view.placements(held)))
    assert (np.diff(path[:, 0]) <= 0).all() and path[-1, 0] < path[0, 0]
    assert price.value == min(path[:, 0].min(), np.nanmin(path))
    moves = (rollout.choices["move"] >= 0).sum(dim=1)
    assert moves.min() == 1 and moves.max() == 2
    log_prob, entropy = policy.log_prob(rollout.choices)
    assert log_prob.shape == entropy.shape == (12, 2)
    assert ((log_prob < 0) == (rollout.choices["move"] >= 0)).all()


@pytest.mark.parametrize("moves", [0, 2])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_state_may_lose_all_its_samples(moves: int, lost: int) -> None:
    """Every episode that is left is scored in its own state: those before the loss as they were."""
    problem = zoo("branchy", 30, 3, "operator")
    policy, price = hsdag(problem, HsdagOptions(hidden=16, steps=3, moves=moves), 1), Pricing(problem)
    price(np.zeros((1, 30), np.int32))
    choices = policy.rollout(3, torch.Generator().manual_seed(1), price).choices
    rows = torch.tensor([row for row in range(3) if row != lost])
    whole, left = (
        policy.log_prob(some)[0] for some in (choices, {name: value[rows] for name, value in choices.items()})
    )
    assert len(left) == 2 and torch.isfinite(left).all()
    assert torch.allclose(left[:lost].sum(dim=1), whole[:lost].sum(dim=1))
    assert moves == 0 or (left < 0).any(dim=1).all()


def test_states_are_parsed_ever_more_often() -> None:
    """Where rounds are varied, the first two states are units alone and whole chains; later groups are larger."""
    policy = hsdag(zoo("series-parallel", 60, 3, "operator"), HsdagOptions(hidden=16, chains="alternate"), 1)
    with torch.no_grad():
        counts = [len(step.logits) for step in policy._walk(6, seed=4)]
    assert counts[0] == len(np.unique(policy.chain)) < counts[1] == policy.view.n
    assert counts[0] > counts[2] > counts[4] and counts[1] > counts[3] > counts[5]


def test_the_paper_places_every_group_anew() -> None:
    """By the paper's letter no sample depends on the best so far, and there are as many decisions as groups."""
    problem = zoo("branchy", 60, 3, "operator")
    price = Pricing(problem)
    rollouts = []
    for row in (np.zeros((1, 60), np.int32), np.ones((1, 60), np.int32)):
        price(row)
        policy = hsdag(problem, HsdagOptions(preset="paper", steps=3), 1)
        rollouts.append(policy.rollout(6, torch.Generator().manual_seed(2), price))
    assert rollouts[0].path is None and "start" not in rollouts[0].choices
    assert torch.equal(rollouts[0].choices["device"], rollouts[1].choices["device"])


def test_groups_lose_no_device() -> None:
    """Ops that may run on one device only are in no group with others, and every placement drawn keeps the rules."""
    problem = zoo("branchy", 60, 3, "operator")
    pinned = problem.with_(constraints=problem.constraints.__class__(pins=(Rule(problem.graph.ops.name[20], "cpu"),)))
    policy = hsdag(pinned, HsdagOptions(hidden=16, steps=4, rounds=3), 1)
    seen = []
    policy.rollout(16, torch.Generator().manual_seed(2), lambda rows: seen.append(rows) or np.zeros(len(rows)))
    trainer = HsdagPlacer().trainer(pinned, None, 0)
    trainer.begin()
    trainer.run(Budget(iterations=3))
    assert not trainer.diverged and pinned.allowed[np.arange(pinned.n_ops), trainer.pricing.best].all()
    assert pinned.allowed[np.arange(pinned.n_ops), seen[0]].all()
    assert len(np.unique(seen[0][:, 19])) == 2 or len(np.unique(seen[0][:, 21])) == 2


def test_the_paper_has_no_features_of_cost() -> None:
    """By default there are two sections more than the paper has: seconds on devices, and of transfers."""
    problem = wired([(0, 1), (0, 2), (1, 3), (2, 3)], [""] * 4)
    every = {name for name, _ in hsdag(problem, HsdagOptions(), 0).features.layout}
    fewer = {name for name, _ in hsdag(problem, HsdagOptions(preset="paper"), 0).features.layout}
    assert every - fewer == {"seconds", "sent"} and fewer < every


def optimum(problem: Problem) -> float:
    """The least value of all placements of a problem without limits."""
    rows = np.array(list(itertools.product(range(problem.n_devices), repeat=problem.n_ops)), np.int32)
    return float(evaluate(problem, rows).min())


@pytest.mark.parametrize(
    ("family", "execution"),
    [
        later("layered", "operator"),
        later("branchy", "operator"),
        ("series-parallel", "sequential"),
    ],
)
def test_known_optima_are_found(family: str, execution: str) -> None:
    """Within 2 % of the best of all placements of twelve ops, and never behind the best device alone."""
    problem = zoo(family, 12, 7, execution)
    proposal = run_placer(HsdagPlacer(), problem, Budget(iterations=80, seed=1))
    assert proposal.placement is not None
    found = float(evaluate(problem, proposal.placement.device[None])[0])
    alone = evaluate(problem, np.array([[0] * 12, [1] * 12], np.int32)).min()
    assert found <= min(1.02 * optimum(problem), alone)


def test_training_goes_on_where_it_was() -> None:
    """The same seed gives the same end, with dropout, and so does a training that is stopped and taken up again."""
    problem = zoo("branchy", 60, 3, "operator")
    ends = []
    for parts in ([6], [2, 4], [6]):
        trainer = HsdagPlacer().trainer(problem, None, 3)
        trainer.begin()
        for done in itertools.accumulate(parts):
            state = trainer.state()
            trainer = HsdagPlacer().trainer(problem, None, 3)
            trainer.restore(*state)
            trainer.run(Budget(iterations=done))
        ends.append((trainer.pricing.value, trainer.pricing.evaluations, trainer.learner.baseline))
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.parametrize("view", ["raw", "folded"])
def test_openvino_graphs_by_the_paper(tmp_path: object, view: str) -> None:
    """ResNet-50's IR, raw and folded, two updates of twenty steps each: never behind the best device alone."""
    problem = build(str(unpacked(tmp_path, "resnet50")), TWO, ProblemOptions(view=view, execution="sequential"))
    placer = create("hsdag", {"preset": "paper", "updates": 2})
    proposal = run_placer(placer, problem, Budget(seed=1))
    assert proposal.placement is not None
    rows = np.stack([np.full(problem.n_ops, d) for d in range(2)] + [proposal.placement.device]).astype(np.int32)
    values = evaluate(problem, rows)
    assert values[2] <= values[:2].min()


@pytest.mark.parametrize(
    "options",
    [{"rounds": 0}, {"steps": 0}, {"hidden": 0}, {"dropout": 1.0}, {"alone": "often"}, {"moves": -1}, {"elite": 0.0}],
)
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    """Bad options are refused by name."""
    with pytest.raises(PlacerError, match=next(iter(options))):
        create("hsdag", options)
