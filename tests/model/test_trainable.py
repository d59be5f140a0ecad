"""Which weights train: as the model says, kept through folding and files, and heeded by the backward pass."""

from __future__ import annotations

import numpy as np
import pytest

from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.files.graph_file import load_graph, save_graph
from placewise.model.graph import Graph

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    """A frozen layer, one that trains, and a buffer that is added in between."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.low.requires_grad_(False)
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, x):
        return self.high(torch.relu(self.low(x) + self.shift))


def opened(graph: str | None = None) -> Graph:
    """The net as a graph."""
    return open_model(Net(), ProblemOptions(graph=graph), inputs=(torch.ones(2, 8),)).graph


def named(graph: Graph, what: np.ndarray) -> set[str]:
    """The names of the weights of a mask."""
    return {graph.weights.name[weight] for weight in np.flatnonzero(what).tolist()}


def test_parameters_train_unless_they_are_frozen_and_buffers_never():
    """What PyTorch says of a parameter is what the graph says."""
    graph = opened()
    assert named(graph, graph.weights.trainable) == {"high.weight", "high.bias"}


def test_an_archive_says_the_same(tmp_path):
    """A program that was saved is read without PyTorch, and says which of its weights train."""
    torch.export.save(torch.export.export(Net(), (torch.ones(2, 8),)), tmp_path / "net.pt2")
    graph = open_model(str(tmp_path / "net.pt2")).graph
    assert named(graph, graph.weights.trainable) == {"high.weight", "high.bias"}


def test_frozen_weights_get_no_gradient():
    """Only the layer that trains is updated, and nothing flows into the one below it."""
    graph = opened("training")
    updated = {graph.weights.name[graph.weights_of(op)[0]] for op in np.flatnonzero(graph.ops.state_bytes > 0)}
    assert updated == {"high.weight", "high.bias"}


def test_files_keep_it(tmp_path):
    """A graph file holds the column, and one without it means that all train."""
    graph = opened()
    save_graph(graph, tmp_path / "graph.npz")
    assert np.array_equal(load_graph(tmp_path / "graph.npz").weights.trainable, graph.weights.trainable)
