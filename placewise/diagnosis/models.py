"""The tiny models of the checks: a chain of products and activations, as ONNX and as a program of PyTorch."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from placewise.core.build import build
from placewise.core.options import NO_OPTIONS
from placewise.diagnosis.machine import Machine, require_library
from placewise.model.cluster import Cluster
from placewise.model.placement import Placement
from placewise.model.problem import Problem

WIDTH, LAYERS = 128, 4


class TinyModels:
    """The files of the models in `folder`, written when they are first needed."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine, self._folder = machine, folder

    @cached_property
    def onnx(self) -> Path:
        """A chain of MatMul and Relu in ONNX."""
        path = self._folder / "tiny.onnx"
        write_chain(path)
        return path

    @cached_property
    def program(self) -> Path:
        """Linear layers and activations as a program of PyTorch. Raises NotHere without PyTorch."""
        require_library("torch")
        path = self._folder / "tiny.pt2"
        self._machine.ask("write_program", str(path), WIDTH, LAYERS)
        return path


def write_chain(path: Path) -> None:
    """Write the ONNX model, whose weights keep the size of values."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for layer in range(LAYERS):
        values = rng.standard_normal((WIDTH, WIDTH), np.float32) * np.float32(np.sqrt(2 / WIDTH))
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"p{layer}"], name=f"product{layer}"))
        nodes.append(helper.make_node("Relu", [f"p{layer}"], [f"a{layer}"], name=f"activation{layer}"))
        last = f"a{layer}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDTH, WIDTH]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def split_in_two(path: Path, cluster: Cluster) -> tuple[Problem, Placement]:
    """The problem of a model on a cluster, with the first half of its ops on one device and the others on the next."""
    problem = build(path, cluster, NO_OPTIONS)
    return problem, Placement((np.arange(problem.n_ops) >= problem.n_ops // 2).astype(np.int32))
