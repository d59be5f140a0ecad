"""Repeated parts of a graph: found in a stack of layers, absent from a random one, and sets moved along them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from soak import examples
from strategies import problems

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Ints
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.problem import Constraints, Objective, Problem
from placewise.placers.set_cover.column_generation import DeviceSets
from placewise.placers.set_cover.decision_diagram import order_blocks
from placewise.placers.set_cover.repeated_parts import shifts
from placewise.placers.shared.stages.stage_costs import price_stages

LAYERS, SECONDS = 6, (3.0, 1.0, 1.0, 2.0)


def stack(seed: int | None = None) -> Problem:
    """Layers of four ops: one that feeds two alike, which feed one; with `seed`, of random times."""
    builder = GraphBuilder()
    before = None
    for layer in range(LAYERS):
        names = [f"{layer}.{part}" for part in "abcd"]
        ops = [builder.add_op(name, "Op") for name in names]
        tensors = [builder.add_tensor(op, nbytes=1) for op in ops]
        edges = [(tensors[0], ops[1]), (tensors[0], ops[2]), (tensors[1], ops[3]), (tensors[2], ops[3])]
        for tensor, op in [*edges, *([(before, ops[0])] if before is not None else [])]:
            builder.add_edge(tensor, op)
        before = tensors[3]
    graph = builder.build()
    cluster = Cluster(
        tuple(Device(f"acc{d}") for d in range(2)),
        tuple(Link(*pair, 1.0) for d in range(2) for pair in ((f"acc{d}", HOST), (HOST, f"acc{d}"))),
    )
    times = np.tile(SECONDS, LAYERS) if seed is None else np.random.default_rng(seed).random(4 * LAYERS)
    costs = CostTable.given(np.repeat(times[:, None], 2, axis=1), transfer_seconds_of(graph, cluster))
    return Problem(graph, cluster, costs, Objective("throughput"), Constraints())


def maps_of(problem: Problem) -> tuple[Ints, ...]:
    """The maps between repeated parts of a problem's blocks."""
    return shifts(price_stages(problem, problem.block, problem.n_blocks, problem.capacity).costs)


def test_layers_are_mapped_to_the_next() -> None:
    """The first map takes every op one layer on: `a` to `a`, `d` to `d`, and the two alike to the two alike."""
    forward, back = maps_of(stack())[:2]
    layer, part = np.divmod(np.arange(4 * LAYERS), 4)
    mapped = forward >= 0
    assert mapped.sum() >= 4 * (LAYERS - 2)
    assert (np.abs(layer[forward[mapped]] - layer[mapped]) == 1).all()
    assert (np.minimum(part[forward[mapped]], 3 - part[forward[mapped]]) == np.minimum(part, 3 - part)[mapped]).all()
    assert (back[forward[mapped]] == np.flatnonzero(mapped)).all()


def test_layers_moved_far_enough_leave_the_graph() -> None:
    """The last map still takes something, further maps would not: no map goes round in circles."""
    maps = maps_of(stack())
    assert 2 <= len(maps) <= 2 * LAYERS
    assert all((one >= 0).any() for one in maps)


def test_nothing_repeats_among_different_ops() -> None:
    """Ops of different times: no map."""
    assert maps_of(stack(seed=1)) == ()


def test_a_layer_costs_the_same_wherever_it_is() -> None:
    """The load of an inner layer is that of its images in other inner layers."""
    problem = stack()
    sets = DeviceSets.of(price_stages(problem, problem.block, problem.n_blocks, problem.capacity).costs)
    assert sets is not None
    blocks = np.zeros(problem.n_blocks, np.bool_)
    blocks[4:8] = True
    own, moved = sets.load_of(0, blocks), 0
    for images in sets.shifts:
        there = images[blocks]
        if (there >= 4).all() and (there < 4 * (LAYERS - 1)).all():
            image = np.zeros_like(blocks)
            image[there] = True
            assert sets.load_of(0, image) == own
            moved += 1
    assert moved >= 2


@examples(25)
@given(problems(kind="throughput", max_ops=9))
def test_maps_take_different_blocks_to_different_blocks(problem: Problem) -> None:
    """On any graph, every map is injective and moves what it maps."""
    for images in maps_of(problem):
        mapped = np.flatnonzero(images >= 0)
        assert len(set(images[mapped].tolist())) == len(mapped)
        assert (images[mapped] != mapped).all()


def test_preparation_ends_when_told_to() -> None:
    """Whenever time ends: an order of all blocks, and no half diagram; with enough time, the sets."""
    problem = stack()
    costs = price_stages(problem, problem.block, problem.n_blocks, problem.capacity).costs
    prepared = []
    for calls in range(60):
        left = iter(range(calls))
        sets = DeviceSets.of(costs, go_on=lambda left=left: next(left, None) is not None)  # type: ignore[misc]
        prepared.append(sets is not None)
        left = iter(range(calls))
        order = order_blocks(costs, lambda left=left: next(left, None) is not None)  # type: ignore[misc]
        assert sorted(order.tolist()) == list(range(problem.n_blocks))
    assert not prepared[0] and prepared[-1] and prepared == sorted(prepared)
