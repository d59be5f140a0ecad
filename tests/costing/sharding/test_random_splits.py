"""Random graphs compute the same on one device and on several, wherever their splits start."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from soak import enough, seeds
from split_execution import SplitRun, random_values, run_whole
from split_graphs import Draft

from placewise.costing.sharding import shard_graph
from placewise.costing.sharding.propagate import Propagation
from placewise.model.sharding import Indivisible

LARGEST = 128
"""The longest dimension that a product reads."""


def add_product(draft, rng, pool, x):
    if draft.shapes[x][-1] <= LARGEST:
        columns = rng.choice((7, 8, 12, 16, 32, 48))
        pool.append(draft.linear(x, columns, scope=f"s{len(draft.shapes)}", bias=rng.random() < 0.5))


def add_elementwise(draft, rng, pool, x):
    shape = draft.shapes[x]
    alike = [other for other in pool if draft.shapes[other] == shape]
    tail = shape[rng.randrange(len(shape)) :]
    weight = draft.weight(*(length if rng.random() < 0.6 else 1 for length in tail))
    other = rng.choice([*alike, weight])
    if rng.random() < 0.5:
        pool.append(draft.same(rng.choice(("Relu", "Tanh", "Neg", "Gelu")), x))
    else:
        pool.append(draft.op(rng.choice(("Add", "Sub", "Mul")), x, other, shape=shape))


def add_normalization(draft, rng, pool, x):
    shape = draft.shapes[x]
    if rng.random() < 0.5:
        pool.append(draft.op("Softmax", x, shape=shape, axis=rng.randrange(len(shape))))
    else:
        pool.append(draft.norm(x, scope=f"n{len(draft.shapes)}", kind="LayerNormalization"))


def add_transpose(draft, rng, pool, x):
    shape = draft.shapes[x]
    perm = rng.sample(range(len(shape)), len(shape))
    pool.append(draft.op("Transpose", x, shape=tuple(shape[k] for k in perm), perm=tuple(perm)))


def add_reshape(draft, rng, pool, x):
    """Divide one dimension, or merge two."""
    shape = list(draft.shapes[x])
    place = rng.randrange(len(shape) - 1)
    factors = [f for f in (2, 3, 4, 8) if shape[place + 1] % f == 0 and shape[place + 1] > f]
    if factors and len(shape) < 5 and rng.random() < 0.6:
        factor = rng.choice(factors)
        parted = [factor, shape[place + 1] // factor]
        shape[place + 1 : place + 2] = rng.sample(parted, 2)
    elif len(shape) > 2:
        shape[place : place + 2] = [shape[place] * shape[place + 1]]
    pool.append(draft.op("Reshape", x, shape=tuple(shape)))


def add_parts(draft, rng, pool, x):
    """Parts of equal length, or a slice of any."""
    shape = draft.shapes[x]
    axis, count = rng.randrange(len(shape)), rng.choice((2, 3, 4))
    if shape[axis] % count == 0 and shape[axis] > count:
        part = tuple(n // count if k == axis else n for k, n in enumerate(shape))
        pool += draft.op("Split", x, shape=[part] * count, axis=axis)
        return
    start = rng.randrange(shape[axis])
    end = rng.randint(start + 1, shape[axis])
    part = tuple(end - start if k == axis else n for k, n in enumerate(shape))
    pool.append(draft.op("Slice", x, shape=part, dim=axis, start=start, end=end))


def add_concat(draft, rng, pool, x):
    shape = draft.shapes[x]
    axis = rng.randrange(len(shape))
    rest = (*shape[:axis], *shape[axis + 1 :])
    fits = [
        t for t in pool
        if len(s := draft.shapes[t]) == len(shape) and (*s[:axis], *s[axis + 1 :]) == rest and s[axis] <= LARGEST
    ]  # fmt: skip
    parts = [x, *rng.choices(fits or [x], k=rng.randint(1, 2))]
    length = sum(draft.shapes[t][axis] for t in parts)
    pool.append(draft.op("Concat", *parts, shape=(*shape[:axis], length, *shape[axis + 1 :]), axis=axis))


def add_reduction(draft, rng, pool, x):
    shape = draft.shapes[x]
    if len(shape) > 2:
        axis, kept = rng.randrange(len(shape)), rng.random() < 0.5
        reduced = (*shape[:axis], *((1,) if kept else ()), *shape[axis + 1 :])
        kind = rng.choice(("ReduceSum", "ReduceMean"))
        pool.append(draft.op(kind, x, shape=reduced, axes=(axis,), keepdims=int(kept)))


def add_contraction(draft, rng, pool, x):
    """A product of two activations, or one with heads as dimensions of the weights."""
    shape = draft.shapes[x]
    if len(shape) == 3 and rng.random() < 0.5 and shape[-1] <= LARGEST:
        made = (*shape[:2], 4, 6)
        pool.append(draft.op("Einsum", x, draft.weight(shape[-1], 4, 6), shape=made, equation="bsw,whd->bshd"))
        return
    fits = [t for t in pool if draft.shapes[t][:-2] == shape[:-2] and draft.shapes[t][-1] == shape[-1]]
    other = rng.choice(fits)
    perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    source = draft.shapes[other]
    turned = draft.op("Transpose", other, shape=tuple(source[k] for k in perm), perm=perm)
    pool.append(draft.op("MatMul", x, turned, shape=(*shape[:-1], source[-2])))


STEPS = (
    add_product, add_product, add_product, add_elementwise, add_elementwise, add_normalization, add_transpose,
    add_reshape, add_parts, add_concat, add_reduction, add_contraction,
)  # fmt: skip


def make_graph(seed):
    """A random graph of small ops, mostly one after the other."""
    rng, draft = random.Random(seed), Draft()
    pool = [draft.input(2, 4, 16)]
    for _ in range(rng.randint(4, 16)):
        recent = [t for t in pool[-4:] if math.prod(draft.shapes[t]) < 4096] or pool[:1]
        rng.choice(STEPS)(draft, rng, pool, rng.choice(recent))
    return draft.build(draft.linear(pool[-1], 8, scope="last"), *pool[1:][-2:-1])


def compare(graph, degree, unit=None, *, tokens=False):
    """Run a graph whole and split; return whether anything was split."""
    given, held = random_values(graph)
    expected = run_whole(graph, given, held)
    run = SplitRun(graph, degree, unit, tokens)
    for tensor, value in run.run(given, held).items():
        np.testing.assert_allclose(value, expected[tensor], rtol=1e-8, atol=1e-9)
    return min(run.spread.share) < 1


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("degree", [2, 4])
def test_random_graphs(monkeypatch, degree, eager):
    """Where splits pay, and (eager) wherever a rule allows one: also with units between which tensors are whole."""
    if eager:
        monkeypatch.setattr(Propagation, "_pays", lambda *_: True)
    count = 0
    for seed in seeds(80):
        graph = make_graph(seed)
        halves = np.arange(graph.n_ops) * 2 // graph.n_ops
        count += compare(graph, degree, halves if seed % 3 == 0 else None)
    assert count > enough(40)


@pytest.mark.parametrize("eager", [False, True])
def test_random_graphs_by_tokens(monkeypatch, eager):
    """The same with sequence parallelism: sums are scattered where they have tokens, and results stay the same."""
    if eager:
        monkeypatch.setattr(Propagation, "_pays", lambda *_: True)
    count, scattered = 0, 0
    for seed in seeds(120):
        graph = make_graph(seed)
        halves = np.arange(graph.n_ops) * 2 // graph.n_ops
        count += compare(graph, 2, halves if seed % 3 == 0 else None, tokens=True)
        scattered += any(c.kind == "reduce-scatter" for c in shard_graph(graph, 2, sequence_parallel=True).collectives)
    assert count > enough(60) and scattered > enough(10)


def test_indivisible_columns():
    """Only the scores of a vocabulary are padded: a product that is read by another stays whole, and we say why."""
    draft = Draft()
    h = draft.same("Gelu", draft.linear(draft.input(2, 4, 16), 50, scope="up"))
    graph = draft.build(draft.linear(h, 16, scope="down"))
    sharding = shard_graph(graph, 4)
    assert (sharding.share == 1).all()
    assert not sharding.collectives
    assert sharding.refusals == (Indivisible(50, "columns"),)
    assert (shard_graph(graph, 2).share == 0.5).all()


def test_shares_of_random_graphs():
    """A device computes at least 1/t of every op, and all of it where nothing is split."""
    for seed in seeds(60):
        graph = make_graph(seed)
        for degree in (2, 3, 4):
            sharding = shard_graph(graph, degree)
            assert (sharding.share * degree >= 1 - 1e-12).all()
            assert (sharding.share <= 1).all()
            assert ((sharding.share < 1) <= (sharding.style > 0)).all()
