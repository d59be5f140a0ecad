"""Random families: exact sizes, the same graph for a seed everywhere, and the shapes that their names promise."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

from placewise.costing.work import work_of
from placewise.errors import InputError
from placewise.zoo import generate
from placewise.zoo.random import FAMILIES, random_graph

KNOWN = {
    "layered": "3fd9eaffa794de55",
    "series-parallel": "c5442130bb0c249e",
    "branchy": "1ae7ab0e937323f9",
    "erdos-renyi": "fb5574bb81c391e2",
}


def fingerprint(graph):
    """A hash of names, kinds, shapes and edges."""
    shapes = [graph.tensors.shape[tensor] for tensor in range(graph.n_tensors)]
    text = repr(
        (graph.ops.name, list(graph.ops.kind), shapes, graph.edges.value.tolist(), graph.edges.consumer.tolist())
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@examples(60)
@given(family=st.sampled_from(sorted(FAMILIES)), n_ops=st.integers(1, 300), seed=st.integers(0, 10**9))
def test_a_graph_has_as_many_ops_as_asked(family, n_ops, seed):
    """Exactly, with known costs; every tensor is read or an output."""
    graph = random_graph(family, n_ops, seed, batch=2, size=4)
    assert graph.n_ops == n_ops
    assert work_of(graph).known.all()
    read = np.diff(graph.consumer_offsets) > 0
    assert (read != graph.tensors.output)[graph.tensors.producer >= 0].all()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_seed_gives_the_same_graph_everywhere(family):
    """These fingerprints were taken once; other seeds differ."""
    assert fingerprint(random_graph(family, 400, 7)) == KNOWN[family]
    assert fingerprint(random_graph(family, 400, 8)) != KNOWN[family]
    assert fingerprint(generate(f"random-{family}", {"n_ops": 400, "seed": 7})) == KNOWN[family]


def successors(graph):
    """Sets of ops that read what each op makes."""
    after = [set() for _ in range(graph.n_ops)]
    for value, consumer in zip(graph.edges.value.tolist(), graph.edges.consumer.tolist(), strict=True):
        producer = int(graph.tensors.producer[value])
        if producer >= 0:
            after[producer].add(consumer)
    return after


@examples(25)
@given(n_ops=st.integers(1, 200), seed=st.integers(0, 10**6))
def test_series_parallel_graphs_reduce_to_one_edge(n_ops, seed):
    """Without double edges and ops that have one predecessor and one successor, two ends are left (Valdes 1982)."""
    graph = random_graph("series-parallel", n_ops, seed, batch=1, size=2)
    after = {op: set(heads) for op, heads in enumerate(successors(graph))}
    after |= {-1: {op for op in range(n_ops) if -1 in graph.tensors.producer[graph.inputs_of(op)]}, n_ops: set()}
    for op in range(n_ops):
        after[op] = after[op] or {n_ops}
    before = {op: {tail for tail, heads in after.items() if op in heads} for op in after}
    waiting = list(range(n_ops))
    while waiting:
        op = waiting.pop()
        if op in after and len(before[op]) == len(after[op]) == 1:
            (tail,), (head,) = before.pop(op), after.pop(op)
            after[tail] = after[tail] - {op} | {head}
            before[head] = before[head] - {op} | {tail}
            waiting += [end for end in (tail, head) if 0 <= end < n_ops]
    assert after == {-1: {n_ops}, n_ops: set()}


def test_families_differ_in_shape():
    """Series-parallel and branchy graphs have one end; Erdős–Rényi graphs many; rows read the row before."""
    made = {family: random_graph(family, 2000, 3, batch=1, size=2) for family in FAMILIES}
    ends = {family: int(graph.tensors.output.sum()) for family, graph in made.items()}
    assert ends["series-parallel"] == ends["branchy"] == 1
    assert ends["erdos-renyi"] > 50
    rows = [int(scope.split(".")[1]) for scope in made["layered"].ops.scope]
    for op, heads in enumerate(successors(made["layered"])):
        assert all(rows[head] - rows[op] in (0, 1) for head in heads)
    widest = max(map(len, successors(made["branchy"])))
    assert 2 <= widest <= 6


def test_bad_arguments_are_refused():
    """A sentence for each."""
    for arguments, words in (
        (("trees", 10), "there is no family 'trees'; choose layered"),
        (("layered", 0), "n_ops is 0; give a whole number from 1"),
        (("layered", 10, -1), "seed is -1"),
        (("layered", 10**7), "are too many"),
    ):
        with pytest.raises(InputError, match=words):
            random_graph(*arguments)
