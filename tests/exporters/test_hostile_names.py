"""Exported scripts with hostile names of models, modules, ops, tensors and devices: they run, and names are text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from export_models import stack_graph
from onnx_files import make_node, model, saved, weight

from placewise.core.build import build
from placewise.exporters.onnx import SCRIPT
from placewise.exporters.writing import export_placement, write_files
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.graph import Source
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem

HOSTILE = (
    "\ntouch pwned\n", "'; touch pwned; '", '"; touch pwned; "', "$(touch pwned)", "`touch pwned`", '"""', "'''",
    "\\", "\\\n", "\u2028touch pwned", "\x85touch pwned", "\x0ctouch pwned", "{0.__class__}", "%s", "coding: utf-7",
    "\udcff", "größe",
)  # fmt: skip
COMMANDS = {"vllm": "vllm", "llama.cpp": "llama-server", "megatron": "--num-layers"}
"""The program that each script calls; the line of the target megatron is arguments alone."""


def hostile_stack(name: str) -> Problem:
    """Four layers on two devices; the model, the list of layers, and both devices are called so."""
    graph = stack_graph(4, path=f"{name}.layers").with_source(Source(f"{name}.json", "", "test"))
    devices = tuple(Device(f"{name}{n}") for n in range(2))
    links = tuple(Link(*ends, 1e9) for d in devices for ends in ((d.name, HOST), (HOST, d.name)))
    cluster = Cluster(devices, links)
    costs = CostTable.given(np.ones((graph.n_ops, 2)), np.zeros((graph.n_tensors, len(cluster.class_bandwidth))))
    return Problem(graph, cluster, costs, Objective("throughput"))


def halves(problem: Problem) -> Placement:
    return Placement((np.arange(problem.n_ops) >= problem.n_ops // 2).astype(np.int32))


@pytest.mark.parametrize("target", COMMANDS)
def test_shell_scripts_call_one_program(target: str, tmp_path: Path) -> None:
    """bash runs the program once, with the arguments that tame names give, and nothing else."""
    (tame,) = called(target, hostile_stack("tame"), tmp_path)
    for name in HOSTILE:
        assert called(target, hostile_stack(name), tmp_path) == [tame], name


def called(target: str, problem: Problem, folder: Path) -> list[str]:
    """What a script calls: a line per program, with its arguments."""
    programs, log = folder / "programs", folder / "log"
    programs.mkdir(exist_ok=True)
    log.write_text("")
    fake = programs / COMMANDS[target]
    fake.write_text(f'#!/bin/bash\nprintf "%q " "$0" "$@" >> {log}\necho >> {log}\n')
    fake.chmod(0o755)
    made = export_placement(problem, halves(problem), target)
    (written,) = write_files(made.exported, made.info, folder / "script.sh")
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "MODEL": "weights"}
    subprocess.run(["bash", written], cwd=folder, env=environment, check=True, capture_output=True)
    assert not (folder / "pwned").exists()
    return log.read_text().splitlines()


def test_python_modules_hold_names_as_text(tmp_path: Path) -> None:
    """The modules for DeepSpeed are imported, and their devices are those of the plans."""
    problems = [hostile_stack(name) for name in HOSTILE]
    for number, problem in enumerate(problems):
        made = export_placement(problem, halves(problem), "deepspeed")
        write_files(made.exported, made.info, tmp_path / f"planned{number}.py")
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").touch()
    (tmp_path / "deepspeed" / "pipe.py").write_text("PipelineModule = object\n")
    code = "import json, sys; print(json.dumps([__import__(name).DEVICES for name in sys.argv[1:]]))"
    words = [sys.executable, "-c", code, *(f"planned{number}" for number in range(len(problems)))]
    done = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == [list(problem.cluster.names) for problem in problems]
    assert not (tmp_path / "pwned").exists()


def test_pieces_of_onnx_run_under_any_locale(tmp_path: Path) -> None:
    """Names of nodes and values that are code, or no ASCII: the script runs the pieces, also where text is ASCII."""
    pytest.importorskip("onnxruntime")
    names = [name for name in HOSTILE if name.isprintable() or name.isascii()]
    nodes = [make_node("MatMul", ["x" + names[0], "w"], ["a" + names[0]], name=names[0])]
    for before, name in pairwise(names):
        nodes.append(make_node("Relu", ["a" + before], ["a" + name], name=name))
    path = saved(tmp_path, model(nodes, {"x" + names[0]: [2, 4]}, ["a" + names[-1]], [weight("w", 4, 4)]), "größe.onnx")
    devices = tuple(Device(f"{name}{n}", "cpu", peak_flops={"float32": 1e10}) for n, name in enumerate(names[:2]))
    problem = build(path, Cluster(devices))
    made = export_placement(problem, Placement(np.arange(problem.n_ops) % 2), "onnx")
    write_files(made.exported, made.info, tmp_path / "out")
    np.savez(tmp_path / "in.npz", **{"x" + names[0]: -np.ones((2, 4), np.float32)})
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(
        [sys.executable, tmp_path / "out" / SCRIPT, tmp_path / "in.npz", tmp_path / "out.npz"],
        cwd=tmp_path, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    assert not (tmp_path / "pwned").exists() and (tmp_path / "out.npz").exists()
