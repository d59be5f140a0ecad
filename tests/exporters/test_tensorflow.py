"""The target tensorflow: device fields in the graph that was read, and nothing else changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorflow_files import DATA, F, constant, function, graph, node, placeholder, saved, weight

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import ExportError
from placewise.exporters.base import Exported
from placewise.exporters.registry import create_exporter
from placewise.exporters.tensorflow import device_names
from placewise.exporters.writing import Export, export_placement
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.tensorflow.protos import MESSAGES


def written(made: Export, kind: str = "GraphDef") -> dict[str, str]:
    """Node → device."""
    message = MESSAGES[kind].FromString(made.exported.files["graph.pb"])
    return {node.name: node.device for node in message.node}


def halves(problem: Problem) -> Placement:
    return Placement(np.arange(problem.n_ops, dtype=np.int32) * 2 // problem.n_ops)


def test_constants_and_inputs_are_with_who_reads_them(tmp_path: Path) -> None:
    """MatMul on the first GPU with its weight and the input, Relu on the CPU; the weight's Identity counts with it."""
    proto = graph(
        placeholder("x", (2, 3)), weight("w", 3, 4), node("w/read", "Identity", "w", T=F),
        node("y", "MatMul", "x", "w/read", T=F), node("z", "Relu", "y", T=F), node("after", "NoOp", "^z"),
    )  # fmt: skip
    problem = build(str(saved(tmp_path, proto)), "L4,cpu")
    assert problem.graph.ops.name == ("y", "z")
    made = export_placement(problem, Placement(np.array([0, 1])), "tensorflow")
    gpu, cpu = "/device:GPU:0", "/device:CPU:0"
    assert written(made) == {"x": gpu, "w": gpu, "w/read": gpu, "y": gpu, "z": cpu, "after": cpu}
    assert not made.projected
    plain = MESSAGES["GraphDef"].FromString(made.exported.files["graph.pb"])
    for each in plain.node:
        each.device = ""
    assert plain == proto


@pytest.mark.parametrize(
    ("file", "kind"), [("attention.pb", "GraphDef"), ("classifier.pb", "GraphDef"), ("training.meta", "MetaGraphDef")]
)
def test_files_of_tensorflow_keep_all_but_devices(file: str, kind: str) -> None:
    """What TensorFlow wrote comes back byte for byte when the devices are as they were."""
    problem = build(str(DATA / file), "cpu,cpu", ProblemOptions(dims={"batch": 4}))
    made = export_placement(problem, halves(problem), "tensorflow")
    message, before = (MESSAGES[kind].FromString(data) for data in (
        made.exported.files["graph.pb"], (DATA / file).read_bytes()
    ))  # fmt: skip
    for new, old in zip(*((m if kind == "GraphDef" else m.graph_def).node for m in (message, before)), strict=True):
        assert new.device in ("/device:CPU:0", "/device:CPU:1", "")
        new.device = old.device
    assert message.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)
    assert made.said.valid


def test_names_of_devices(tmp_path: Path) -> None:
    """Numbers of cuda devices are kept, others are counted, and full names stay."""
    path = saved(tmp_path, graph(placeholder("x", (2,)), node("y", "Relu", "x", T=F)))

    def names(devices: object) -> tuple[str, ...]:
        return device_names(build(str(path), devices))  # type: ignore[arg-type]

    assert names({"cuda:1": "1GiB", "cpu": "1GiB"}) == ("/device:GPU:1", "/device:CPU:0")
    assert names("2xL4,2xcpu") == ("/device:GPU:0", "/device:GPU:1", "/device:CPU:0", "/device:CPU:1")


def test_graphs_that_nodes_cannot_say(tmp_path: Path) -> None:
    """Ops of a function that is called, a text, another format, and a file that has changed: a sentence each."""
    body = function("f", ["a"], [node("r", "Relu", "a", T=F)], {"out": "r:activations:0"})
    called = graph(
        placeholder("x", (2,)), node("c", "PartitionedCall", "x", f="@f"), node("y", "Neg", "c", T=F), functions=[body]
    )
    problem = build(str(saved(tmp_path, called)), "2xL4")
    with pytest.raises(ExportError, match="is not a node of the file's graph; freeze the model"):
        export_placement(problem, halves(problem), "tensorflow")
    text = build(str(DATA / "training.pbtxt"), "2xL4", ProblemOptions(dims={"batch": 4}))
    with pytest.raises(ExportError, match="is not a binary graph"):
        export_placement(text, halves(text), "tensorflow")
    other = build("zoo:random-layered", "2xL4", ProblemOptions(dims={"n_ops": 10}))
    with pytest.raises(ExportError, match="takes TensorFlow graphs, and this model was read from"):
        export_placement(other, halves(other), "tensorflow")
    path = saved(tmp_path, graph(placeholder("x", (2,)), node("y", "Relu", "x", T=F)), "changed.pb")
    problem = build(str(path), "2xL4")
    saved(tmp_path, graph(placeholder("x", (2,)), node("y", "Neg", "x", T=F)), "changed.pb")
    with pytest.raises(ExportError, match="has changed since it was read"):
        export_placement(problem, Placement(np.zeros(1, np.int32)), "tensorflow")


def test_a_node_on_two_devices_is_found(tmp_path: Path) -> None:
    """ImportedModel back tells where an op's nodes are apart, and where the file is another model."""
    proto = graph(
        placeholder("x", (2, 3)), weight("w", 3, 4), node("w/read", "Identity", "w", T=F),
        node("y", "MatMul", "x", "w/read", T=F), constant("one", np.ones(4, np.float32)),
        node("z", "Add", "y", "one", T=F),
    )  # fmt: skip
    problem = build(str(saved(tmp_path, proto)), "2xL4")
    made = export_placement(problem, halves(problem), "tensorflow")
    for change, words in ((("w/read", "device", "/device:GPU:1"), "2 devices"), (("z", "op", "Sub"), "same graph")):
        message = MESSAGES["GraphDef"].FromString(made.exported.files["graph.pb"])
        name, field, value = change
        setattr(next(each for each in message.node if each.name == name), field, value)
        with pytest.raises(ExportError, match=words):
            create_exporter("tensorflow").read_back(
                Exported({"graph.pb": message.SerializeToString()}, made.exported.placement), problem
            )
