"""Repeated layers: found where a graph repeats itself, of whole blocks, without cycles; nothing where it does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import WORKLOADS, needs_workloads
from simulate_problems import problems, random_problem, seeded
from soak import examples

from placewise.coarsen.hierarchy import hierarchy
from placewise.coarsen.quotient import build_quotient
from placewise.coarsen.repeats import repeated_layers
from placewise.coarsen.scopes import scope_labels
from placewise.core.build import build
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.problem import Objective, Problem
from placewise.simulate.contiguity import strong_components

SMALL, LARGE = (2, 1, 3, 1), (5, 4, 2, 6, 1)
"""Kinds of the ops of a layer: a line, of whose first op the last one is fed as well."""


def stack(parts: list[tuple[tuple[int, ...], int]], *, noise: bool = False, backward: bool = False) -> Problem:
    """Layers of given kinds, so many of each sort, between two ops of their own; the seconds of ops are their kinds.

    `noise`: all seconds differ; `backward`: every op has one that goes back, in its colocation group.
    """
    builder = GraphBuilder()
    kinds = [9, *(kind for layer, times in parts for _ in range(times) for kind in layer), 8]
    group = list(range(len(kinds))) if backward else [-1] * len(kinds)
    ops = [builder.add_op(f"f{number}", f"K{kind}", group=group[number]) for number, kind in enumerate(kinds)]
    tensors = [builder.add_tensor(op, nbytes=kinds[op]) for op in ops]
    links = [(number - 1, number) for number in range(1, len(ops))]
    at = 1
    for layer, times in parts:
        for _ in range(times):
            if len(layer) > 2:
                links.append((at, at + len(layer) - 1))
            at += len(layer)
    for source, target in links:
        builder.add_edge(tensors[source], ops[target])
    if backward:
        last = len(ops) - 1
        back = [builder.add_op(f"b{n}", f"B{kinds[n]}", group=group[n], backward=True) for n in range(last, -1, -1)]
        gradients = [builder.add_tensor(op, nbytes=1) for op in back]
        builder.add_edge(tensors[last], back[0])
        for source, target in links:
            builder.add_edge(gradients[last - target], back[last - source])
        kinds = kinds + kinds[::-1]
    seconds = np.array(kinds, np.float64)
    if noise:
        seconds += np.random.default_rng(5).random(len(seconds))
    cluster = Cluster((Device("a", "cpu"), Device("b", "cpu")))
    graph = builder.build()
    costs = CostTable.given(np.repeat(seconds[:, None], 2, axis=1), np.zeros((graph.n_tensors, 1)))
    return Problem(graph, cluster, costs, Objective("throughput"))


def ordered(problem: Problem, label: np.ndarray) -> bool:
    """Whether the groups of a label can be put in an order, and keep blocks whole."""
    component, quotient = build_quotient(problem)
    of = np.zeros(quotient.n, np.int64)
    of[component] = label
    n = int(label.max(initial=-1)) + 1
    whole = (of[component] == label).all()
    return bool(whole) and strong_components(of[quotient.tail], of[quotient.head], n)[1] == n


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_layers_with_a_branch_are_found(noise: bool, backward: bool) -> None:
    """A stack of ten layers: groups of a layer's size but for the ends, also at costs that are never equal."""
    problem = stack([(SMALL, 10)], noise=noise, backward=backward)
    label = repeated_layers(problem)
    sizes = np.bincount(label)
    assert ordered(problem, label)
    assert 10 <= len(sizes) <= 12 and (sizes == len(SMALL) * (1 + backward)).sum() >= 9
    if backward:
        count = len(label) // 2
        assert (label[:count] == label[count:][::-1]).all()


def test_stacks_of_two_sorts_are_both_found() -> None:
    """An encoder of eight layers and a decoder of six others: layers of both sizes."""
    problem = stack([(SMALL, 8), (LARGE, 6)])
    label = repeated_layers(problem)
    sizes = np.bincount(label)
    assert ordered(problem, label)
    assert (sizes == len(SMALL)).sum() >= 6 and (sizes == len(LARGE)).sum() >= 4 and len(sizes) <= 18


def test_what_does_not_repeat_stays_apart() -> None:
    """All kinds differ, or there are few ops, or none: every op has a label of its own."""
    for problem in (stack([(tuple(range(10, 60)), 1)]), stack([((2, 3), 1)])):
        assert repeated_layers(problem).tolist() == list(range(problem.n_ops))
    assert len(repeated_layers(stack([((7,), 30)]))) == 32


@given(problems(max_ops=24, rules=True))
@examples(20)
def test_layers_are_whole_ordered_and_always_the_same(problem: Problem) -> None:
    """On any graph, training or not."""
    label = repeated_layers(problem)
    assert ordered(problem, label) and (label == repeated_layers(problem)).all()
    assert len(np.unique(label)) == label.max(initial=-1) + 1


@pytest.mark.parametrize("seed", range(4))
def test_larger_random_graphs_are_cut_without_cycles(seed: int) -> None:
    """Hundreds of ops of few kinds, where signatures are equal by chance."""
    problem = random_problem(seeded(seed), max_ops=400, objective=Objective("throughput"))
    assert ordered(problem, repeated_layers(problem))


@given(st.integers(2, 40), st.booleans())
@examples(20)
def test_a_hierarchy_without_scopes_goes_by_layers(wanted: int, backward: bool) -> None:
    """Levels are nested and ordered; groups of the first one part no layer that may be whole, and mix none."""
    problem = stack([(SMALL, 30)], backward=backward)
    levels = hierarchy(problem, wanted=wanted, start=scope_labels(problem))
    layer, finer = repeated_layers(problem), np.arange(problem.n_ops)
    assert levels
    for label in levels:
        assert ordered(problem, label)
        assert len(np.unique(np.stack((finer, label)), axis=1).T) == finer.max() + 1
        finer = label
    assert len(np.unique(np.stack((levels[0], layer)), axis=1).T) == levels[0].max() + 1 or wanted < 30


@needs_workloads
@pytest.mark.parametrize(("name", "most"), [("bert_l-12_inference", 14), ("bert_L-12_training", 14)])
def test_the_layers_of_bert_are_found(name: str, most: int) -> None:
    """A published graph of twelve equal layers without scopes, for inference and for training."""
    problem = build(WORKLOADS / "throughput" / "OperatorGraphs" / f"{name}.json")
    label = repeated_layers(problem)
    sizes = np.bincount(label)
    assert ordered(problem, label) and 12 <= len(sizes) <= most
    assert (sizes == np.median(sizes)).sum() >= 11


@needs_workloads
def test_the_blocks_of_resnet_are_found() -> None:
    """Sixteen blocks of four widths, four of which have a shortcut of their own."""
    sizes = np.bincount(repeated_layers(build(WORKLOADS / "throughput" / "LayerGraphs" / "resnet50_inference.json")))
    assert 15 <= len(sizes) <= 18 and (sizes == 10).sum() >= 11
