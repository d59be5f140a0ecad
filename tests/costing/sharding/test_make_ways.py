"""Ways from graphs: seconds, collectives, bytes and boundaries, worked by hand and as properties of random graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from costing_helpers import one_op  # noqa: F401  # puts the helpers' folder on the path
from soak import seeds
from split_graphs import Draft, bert_layer, llama_layer

from placewise.coarsen.units import group_units
from placewise.costing.roofline import cost_table
from placewise.costing.sharding import SplitOptions, make_ways, shard_graph
from placewise.costing.sharding.collectives import GroupLink, collective_seconds
from placewise.costing.sharding.memory import MemoryTable
from placewise.costing.work import work_of
from placewise.errors import InputError
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.sharding import Sharding
from placewise.model.ways import Ways
from placewise.transform.training import to_training
from placewise.zoo.registry import generate

PARTS = ("weights", "gradients", "optimizer", "state", "workspace")


def cluster_of(*counts, transfers="direct", overhead=0.0):
    """Devices of a kind per count, all joined by equal links."""
    made = [
        Device(f"d{kind}.{k}", "gpu", 1e12, peak_flops={"float32": 1e12 / (1 + kind)}, memory_bandwidth=1e11,
               op_overhead=overhead)
        for kind, count in enumerate(counts) for k in range(count)
    ]  # fmt: skip
    names = [device.name for device in made]
    links = [Link(a, b, 1e10, 1e-6) for a in (*names, "host") for b in (*names, "host") if a != b]
    return Cluster(tuple(made), tuple(links), transfers)


@dataclass
class Made:
    """Ways, notes on what stays whole, and the layouts behind the ways by degree."""

    ways: Ways
    notes: tuple[str, ...]
    shardings: dict[int, Sharding]


def ways_of(graph, cluster, **options):
    units = group_units(graph)
    costs = cost_table(graph, cluster)
    capacity = np.array([device.memory for device in cluster])
    ways, notes = make_ways(
        graph, cluster, costs, capacity, units.unit, SplitOptions(**options), unit_names=units.names
    )
    tokens = options.get("sequence_parallel", False)
    shardings = {t: shard_graph(graph, t, unit=units.unit, sequence_parallel=tokens) for t in ways.degrees.tolist()}
    return Made(ways, notes, shardings), costs, units


def transformer(layer=llama_layer, layers=3, words=128):
    draft = Draft()
    ids = draft.input(2, 4, dtype="int64")
    x = draft.op("Gather", draft.weight(words, 32, name="embed.weight"), ids, shape=(2, 4, 32), scope="embed", axis=0)
    for number in range(layers):
        x = layer(draft, x, scope=f"layers.{number}", heads=8)
    return draft.build(draft.linear(draft.norm(x, scope="norm"), words, scope="head"))


def column(ways, name, degree, recompute=False):
    """A column of the ways of one degree, by unit."""
    rows = (ways.degree == degree) & (ways.recompute == recompute)
    return getattr(ways, name)[rows]


@pytest.mark.parametrize("name", ["random-layered", "random-branchy", "bert-base", "resnet-50", "transformer-xl-2"])
@pytest.mark.parametrize("training", [False, True])
def test_degree_one_is_the_cost_table(name, training):
    """One device takes what the table says, unit by unit, holds all weights once, and exchanges nothing."""
    if training and name.startswith("random"):
        pytest.skip("random graphs have no training step")
    graph = generate(name, {}, "float32", training=training)
    graph = to_training(graph) if training and not graph.ops.backward.any() else graph
    made, costs, units = ways_of(graph, cluster_of(2, 1, overhead=1e-6))
    for kind, device in enumerate((0, 2)):
        expected = np.bincount(units.unit, costs.op_seconds[:, device], len(units))
        np.testing.assert_allclose(column(made.ways, "seconds", 1)[:, kind], expected, rtol=1e-12)
    assert not column(made.ways, "collective_seconds", 1).any()
    _, first = np.unique(graph.weights.storage, return_index=True)
    total = graph.weights.bytes[first].sum()
    assert column(made.ways, "held_bytes", 1)[:, 0].sum() >= total


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("kind", ["layered", "branchy", "series-parallel", "erdos-renyi"])
def test_random_graphs(kind, seed):
    """Devices together do at least all the work; more of them hold no more each; nothing is negative or missing."""
    graph = generate(f"random-{kind}", {"seed": seed}, "float32", training=False)
    made, _, units = ways_of(graph, cluster_of(4))
    for degree, sharding in made.shardings.items():
        assert (sharding.share * degree >= 1 - 1e-12).all()
        assert (sharding.traffic * degree >= 1 - 1e-12).all()
        assert (sharding.share <= 1).all()
        more, less = column(made.ways, "held_bytes", degree), column(made.ways, "held_bytes", 1)
        assert (more[:, 0] <= less[:, 0] + 1e-6).all()
        assert (more[:, 0] * degree >= less[:, 0] - 1e-6).all()
        seconds = column(made.ways, "seconds", degree) - column(made.ways, "collective_seconds", degree)
        assert (seconds <= column(made.ways, "seconds", 1) * (1 + 1e-9)).all()
    assert made.ways.n_units == len(units)


def test_split_layer_by_hand():
    """A layer on two devices: half of the seconds of its products, and two all-reduces over the slowest link."""
    graph = transformer()
    cluster = cluster_of(2)
    made, costs, units = ways_of(graph, cluster)
    sharding = made.shardings[2]
    inside = units.unit == 1
    split = inside & (sharding.share == 0.5)
    whole = inside & (sharding.share == 1)
    assert {graph.ops.kind[op] for op in np.flatnonzero(whole)} == {"RMSNormalization", "Add"}
    link = GroupLink(1e-6, 1e-10, meshed=True)
    exchanged = 2 * collective_seconds("all-reduce", 2 * 4 * 32 * 4, 2, link)
    row = column(made.ways, "collective_seconds", 2)[1, 0]
    assert row == pytest.approx(exchanged, rel=1e-12)
    compute = column(made.ways, "seconds", 2)[1, 0] - row
    least = costs.op_seconds[whole, 0].sum() + costs.op_seconds[split, 0].sum() / 2
    assert least <= compute * (1 + 1e-12) <= costs.op_seconds[inside, 0].sum()
    weights = sum(graph.weights.bytes[w] for op in np.flatnonzero(inside) for w in graph.weights_of(op))
    norms = 2 * 32 * 4
    assert column(made.ways, "held_bytes", 2)[1, 0] == norms + (weights - norms) / 2


def test_training_bytes_by_hand():
    """A feed-forward network: what is kept for the backward pass, what recomputing keeps, gradients and moments."""
    draft = Draft()
    x = draft.input(8, 16)
    for number in range(3):
        h = draft.same("Relu", draft.linear(x, 64, scope=f"layers.{number}.up"), scope=f"layers.{number}")
        x = draft.linear(h, 16, scope=f"layers.{number}.down")
    graph = to_training(draft.build(x), optimizer="adam")
    made, _, _ = ways_of(graph, cluster_of(2), degrees=(1, 2), microbatches=4)
    ways = made.ways
    weight = 2 * 16 * 64 * 4
    narrow, wide = 8 * 16 * 4, 8 * 64 * 4
    for degree in (1, 2):
        held = dict(zip(PARTS, column(ways, "held_bytes", degree)[1], strict=True))
        assert held["weights"] == held["gradients"] == weight / degree
        assert held["optimizer"] == 2 * weight / degree
        assert column(ways, "gradient_bytes", degree)[1] == weight / degree
        # the products need their arguments, the activation its result, which is the second product's argument
        assert column(ways, "bytes_in_flight", degree)[1] == narrow + wide / degree
        assert column(ways, "bytes_in_flight", degree, recompute=True)[1] == narrow
    assert (ways.microbatches, ways.passes, ways.gradient_factor, ways.in_flight) == (4, 2, 2.0, "1f1b")


def test_recomputation_by_hand():
    """Recomputing adds the forward seconds and collectives of the unit; updates are paid once per step."""
    graph = to_training(transformer(bert_layer))
    cluster = cluster_of(2)
    made, costs, units = ways_of(graph, cluster, degrees=(1, 2), microbatches=8)
    forward = ~graph.ops.backward
    update = np.array([kind.startswith("optimizer::") for kind in graph.ops.kind])
    for unit in range(1, 4):
        inside = units.unit == unit
        seconds = costs.op_seconds[:, 0]
        once = seconds[inside & ~update].sum() + seconds[inside & update].sum() / 8
        assert column(made.ways, "seconds", 1)[unit, 0] == pytest.approx(once, rel=1e-12)
        names = made.ways.name
        again = next(
            k for k in range(made.ways.n_ways) if made.ways.way_unit[k] == unit and names[k] == "t=1, recompute"
        )
        assert made.ways.seconds[again, 0] == pytest.approx(once + seconds[inside & forward].sum(), rel=1e-12)
        rows = made.ways.ways_of(unit, 2)
        plain, repeated = made.ways.collective_seconds[rows, 0]
        assert repeated == pytest.approx(1.5 * plain, rel=1e-12)  # four all-reduces, and two more


@pytest.mark.parametrize("layer", [llama_layer, bert_layer])
def test_sequence_parallel_bytes(layer):
    """Of a layer's activations each device keeps 1/t (Korthikanti et al. 2022, equation 4), and its weights as without.

    Without sequence parallelism, norms and what comes before products are kept in full.
    """
    graph = to_training(transformer(layer))
    tokens, plain = (ways_of(graph, cluster_of(4), sequence_parallel=each)[0].ways for each in (True, False))
    for degree in (2, 4):
        for repeats in (False, True):
            kept, before = (column(ways, "bytes_in_flight", degree, repeats) for ways in (tokens, plain))
            whole = column(plain, "bytes_in_flight", 1, repeats)
            np.testing.assert_allclose(kept[1:4], whole[1:4] / degree, rtol=1e-12)
            assert (before[1:4] > whole[1:4] / degree).all()
        for part in ("gradient_bytes", "held_bytes"):
            held, other = (column(ways, part, degree).reshape(tokens.n_units, -1) for ways in (tokens, plain))
            np.testing.assert_array_equal(held[:, :4], other[:, :4])  # all but workspace
    assert {name for name in tokens.name if name.startswith("t=4")} == {
        "t=4, sequence parallel", "t=4, sequence parallel, recompute",
    }  # fmt: skip
    np.testing.assert_array_equal(column(tokens, "seconds", 1), column(plain, "seconds", 1))


def test_sequence_parallel_seconds_by_hand():
    """Per layer two all-gathers and two reduce-scatters in each pass; norms and sums take the time of their tokens."""
    graph = to_training(transformer())
    made, _, units = ways_of(graph, cluster_of(2), degrees=(1, 2), sequence_parallel=True)
    link, nbytes = GroupLink(1e-6, 1e-10, meshed=True), 2 * 4 * 32 * 4
    exchanged = 4 * sum(collective_seconds(kind, nbytes, 2, link) for kind in ("all-gather", "reduce-scatter"))
    row = column(made.ways, "collective_seconds", 2)[2, 0]
    assert row == pytest.approx(exchanged, rel=1e-12)
    assert column(made.ways, "collective_seconds", 2, recompute=True)[2, 0] == pytest.approx(1.5 * exchanged, rel=1e-12)
    inside = (units.unit == 2) & ~np.array([kind.startswith("optimizer::") for kind in graph.ops.kind])
    assert (made.shardings[2].share[inside] == 0.5).all()


def test_gathered_tensors_need_workspace():
    """Beside what is live, a device holds the part of a gathered tensor that it did not have."""
    graph = to_training(transformer())
    units, cluster = group_units(graph), cluster_of(2)
    table = MemoryTable(graph, units.unit.astype(np.int64), work_of(graph).op_class.equals("free"))
    sharding = ways_of(graph, cluster, sequence_parallel=True)[0].shardings[2]
    silent = replace(sharding, collectives=())
    more = table.measure(sharding).transient - table.measure(silent).transient
    assert (more[1:4] == 2 * 4 * 32 * 4 / 2).all() and (more >= 0).all()


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("kind", ["branchy", "series-parallel"])
def test_random_graphs_by_tokens(kind, seed):
    """Devices together do and hold all, none more than one alone; sums that have tokens are scattered."""
    graph = generate(f"random-{kind}", {"seed": seed}, "float32", training=False)
    made, _, _ = ways_of(graph, cluster_of(4), sequence_parallel=True)
    scattered = 0
    for degree, sharding in made.shardings.items():
        assert (sharding.share * degree >= 1 - 1e-12).all() and (sharding.share <= 1).all()
        held, whole = (column(made.ways, "held_bytes", each)[:, 0] for each in (degree, 1))
        assert (held <= whole + 1e-6).all() and (held * degree >= whole - 1e-6).all()
        seconds = column(made.ways, "seconds", degree) - column(made.ways, "collective_seconds", degree)
        assert (seconds <= column(made.ways, "seconds", 1) * (1 + 1e-9)).all()
        shapes = [graph.tensors.shape[c.tensor] for c in sharding.collectives if c.kind == "all-reduce"]
        assert all(len(shape) not in (2, 3) or shape[-2] == 1 for shape in shapes)
        scattered += sum(c.kind == "reduce-scatter" for c in sharding.collectives)
    assert scattered


def test_workspace():
    """A stage's reserve and what its units need beyond it cover the unit that needs most."""
    graph = to_training(transformer(words=4096))
    made, _, units = ways_of(graph, cluster_of(2))
    for degree in made.ways.degrees.tolist():
        reserve = made.ways.workspace_of(degree)
        beyond = column(made.ways, "held_bytes", degree)[:, 4]
        assert reserve > 0
        assert beyond[len(units) - 1] > 0  # scores of a vocabulary
        assert not beyond[1:4].any()


def test_recompute_option():
    """Never and always leave one way per unit and degree; auto has both where recomputing frees memory."""
    graph = to_training(transformer())
    cluster = cluster_of(2)
    never = ways_of(graph, cluster, recompute="never")[0].ways
    always = ways_of(graph, cluster, recompute="always")[0].ways
    both = ways_of(graph, cluster)[0].ways
    assert not never.recompute.any()
    assert never.n_ways == always.n_ways == 2 * never.n_units
    assert both.n_ways == 2 * never.n_units + int(both.recompute.sum())
    assert (always.recompute == np.isin(always.way_unit, both.way_unit[both.recompute])).all()
    assert both.recompute.any()


def test_classes_of_devices():
    """A degree that only one kind of device has room for is impossible on the other."""
    made, _, _ = ways_of(transformer(), cluster_of(4, 2))
    ways = made.ways
    assert ways.degrees.tolist() == [1, 2, 4]
    assert np.isfinite(column(ways, "seconds", 2)).all()
    assert np.isfinite(column(ways, "seconds", 4)[:, 0]).all()
    assert np.isinf(column(ways, "seconds", 4)[:, 1]).all()
    assert np.isfinite(ways.collective_seconds).all()


def test_boundaries():
    """What units hand on: the residual stream from each to the next, in full, and twice in training."""
    graph = transformer()
    made, _, units = ways_of(graph, cluster_of(2))
    ways = made.ways
    assert ways.tensor_unit.tolist() == list(range(len(units) - 1))
    assert ways.reader.tolist() == list(range(1, len(units)))
    assert set(ways.tensor_bytes) == {2 * 4 * 32 * 4.0}
    assert (ways.passes, ways.in_flight, ways.gradient_factor) == (1, "one", 0.0)
    assert ways_of(to_training(graph), cluster_of(2))[0].ways.passes == 2


def test_measured_costs_are_scaled():
    """Measured seconds of whole ops are scaled by what splitting does to the roofline."""
    graph = transformer()
    cluster = cluster_of(2)
    units, costs = group_units(graph), cost_table(graph, cluster)
    capacity = np.full(2, 1e12)
    tripled = type(costs)(3 * costs.op_seconds, costs.transfer_seconds, costs.op_source, costs.sources)
    once, _ = make_ways(graph, cluster, costs, capacity, units.unit)
    thrice, _ = make_ways(graph, cluster, tripled, capacity, units.unit)
    compute = once.seconds - once.collective_seconds
    np.testing.assert_allclose(thrice.seconds - thrice.collective_seconds, 3 * compute, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"degrees": (8,)}, "does not divide the 4 key-value heads"),
        ({"degrees": (3,)}, "does not divide the"),
        ({"degrees": (16,)}, "needs as many equal devices in one node"),
        ({"degrees": ()}, "no tensor-parallel degree"),
        ({"degrees": (0,)}, "a tensor-parallel degree is 0"),
        ({"recompute": "maybe"}, "recompute is 'maybe'"),
        ({"degrees": (1,), "sequence_parallel": True}, "needs ops that are split"),
    ],
)
def test_refusals(options, said):
    """A degree that the user asks for and that heads or nodes do not allow is one sentence."""
    with pytest.raises(InputError, match=said) as error:
        ways_of(transformer(), cluster_of(8), **options)
    assert error.value.remedy


def test_default_degrees_leave_whole():
    """Without a wish, what a degree does not divide stays whole, and a note says so."""
    made, _, _ = ways_of(transformer(), cluster_of(8))
    assert made.ways.degrees.tolist() == [1, 2, 4, 8]
    assert made.notes == ("8 devices do not divide 4 key-value heads evenly, so ops that have them stay whole",)
