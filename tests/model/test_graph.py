"""Graphs: built in any order, validated once, immutable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewise.errors import GraphError
from placewise.model.builder import GraphBuilder
from placewise.model.columns import Ragged, frozen
from placewise.model.graph import Graph


def diamond(order: tuple[int, ...] = (0, 1, 2, 3)) -> Graph:
    """a → b, c → d, with ops inserted in the given order."""
    builder = GraphBuilder()
    names, edges = "abcd", [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    ops = {names[i]: builder.add_op(names[i], "Add", origin=(i,)) for i in order}
    tensors = {name: builder.add_tensor(op, nbytes=4, name=f"{name}.out") for name, op in ops.items()}
    for tail, head in edges:
        builder.add_edge(tensors[tail], ops[head])
    return builder.build()


@given(st.permutations(range(4)))
def test_any_insertion_order_gives_a_topological_graph(order: list[int]) -> None:
    """Ops come out in a topological order, tensors sorted by producer, and edges still join what they joined."""
    graph = diamond(tuple(order))
    position = {name: op for op, name in enumerate(graph.ops.name)}
    for tail, head in (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")):
        assert position[tail] < position[head]
        tensor = graph.outputs_of(position[tail])[0]
        assert graph.tensors.name[tensor] == f"{tail}.out"
        assert position[head] in graph.consumers_of(tensor).tolist()
    assert [graph.ops.origin[position[name]] for name in "abcd"] == [(0,), (1,), (2,), (3,)]
    assert graph.n_edges == 4


def test_insertion_order_is_kept_where_it_is_topological() -> None:
    """A graph that needs no sorting is not shuffled."""
    assert diamond((0, 2, 1, 3)).ops.name == ("a", "c", "b", "d")


def test_argument_positions_and_repeated_inputs() -> None:
    """An op that reads a tensor twice has two edges, at their positions, and is one consumer."""
    builder = GraphBuilder()
    a, b = builder.add_op("a", "Relu"), builder.add_op("b", "Mul")
    weight = builder.add_weight("w", shape=(2, 3), dtype="float16")
    tensor = builder.add_tensor(a, shape=(2, 3), dtype="float32")
    builder.add_edge(tensor, b)
    builder.use_weight(weight, b)
    builder.add_edge(tensor, b, position=2)
    graph = builder.build()
    assert graph.edges.position[graph.in_offsets[1] :].tolist() == [0, 2]
    assert graph.weight_edges.position.tolist() == [1]
    assert graph.consumers_of(0).tolist() == [1]
    assert graph.weights.bytes.tolist() == [12]
    assert graph.tensors.bytes.tolist() == [24]


def test_cycles_are_named() -> None:
    """A cyclic graph is refused with the ops of a cycle."""
    builder = GraphBuilder()
    ops = [builder.add_op(name, "Add") for name in ("start", "left", "right")]
    tensors = [builder.add_tensor(op) for op in ops]
    for tail, head in ((0, 1), (1, 2), (2, 1)):
        builder.add_edge(tensors[tail], ops[head])
    with pytest.raises(GraphError, match=r"cycle: '(left' → 'right' → 'left|right' → 'left' → 'right)'"):
        builder.build()


def test_impossible_graphs_are_refused() -> None:
    """Edges to nowhere, producers that do not exist, repeated names and filled positions are errors."""
    nowhere = GraphBuilder()
    nowhere.add_op("a", "Add")
    with pytest.raises(GraphError, match="op 7, which does not exist"):
        nowhere.add_edge(0, 7)
    nowhere.add_edge(3, 0)
    with pytest.raises(GraphError, match="reads tensor 3, which does not exist"):
        nowhere.build()
    orphan = GraphBuilder()
    orphan.add_tensor(5)
    with pytest.raises(GraphError, match="made by op 5"):
        orphan.build()
    twins = GraphBuilder()
    twins.add_op("a", "Add")
    twins.add_op("a", "Add")
    with pytest.raises(GraphError, match="both called 'a'"):
        twins.build()
    crowded = GraphBuilder()
    tensor = crowded.add_tensor(-1)
    crowded.add_op("a", "Add")
    crowded.add_edge(tensor, 0, position=0)
    crowded.add_edge(tensor, 0, position=0)
    with pytest.raises(GraphError, match="position is filled twice"):
        crowded.build()
    for group, storage in ((1 << 30, 0), (0, (1 << 31) - 1)):
        sparse = GraphBuilder()
        sparse.add_op("a", "Add", group=group)
        sparse.add_weight("w", shape=(2,), dtype="float32", storage=storage)
        with pytest.raises(GraphError, match="id is 16777216 or more"):
            sparse.build()


def test_columns_cannot_be_written() -> None:
    """Every column is read-only, and a caller's own array stays writable."""
    graph = diamond()
    with pytest.raises(ValueError, match="read-only"):
        graph.tensors.bytes[0] = 1
    mine = np.zeros(3, np.int32)
    assert not frozen(mine, np.int32).flags.writeable
    mine[0] = 1


def test_digest_is_about_structure_and_shapes() -> None:
    """Renaming keeps the digest; another shape, kind or edge changes it."""

    def digest(name: str = "x", kind: str = "Relu", size: int = 4, twice: bool = False) -> str:
        builder = GraphBuilder()
        first, second = builder.add_op(name, "Add"), builder.add_op("y", kind)
        tensor = builder.add_tensor(first, shape=(size,), dtype="float32")
        builder.add_edge(tensor, second)
        if twice:
            builder.add_edge(tensor, second)
        return builder.build().digest()

    assert digest() == digest(name="z")
    assert len({digest(), digest(kind="Tanh"), digest(size=5), digest(twice=True)}) == 4


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6), st.data())
def test_ragged_rows(rows: list[list[int]], data: st.DataObject) -> None:
    """Rows of a ragged column come back as they went in, also when some are taken."""
    ragged = Ragged.of(rows)
    assert [list(row) for row in ragged] == rows
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=5)) if rows else []
    assert [list(row) for row in ragged.take(np.array(chosen, np.int64))] == [rows[i] for i in chosen]


def test_an_empty_graph_is_a_graph() -> None:
    """No ops at all is no error of the model."""
    graph = GraphBuilder().build()
    assert (graph.n_ops, graph.n_tensors, graph.n_edges) == (0, 0, 0)
