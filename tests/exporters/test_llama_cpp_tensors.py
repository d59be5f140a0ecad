"""The command for llama.cpp puts every tensor of a GGUF model where the placement says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from gguf_models import write_model

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.exporters.writing import Export, export_placement
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags, parse_flags
from placewise.readers.gguf.llama_memory import place_tensors
from placewise.runtimes.llama_cpp.runtime import run_llama

pytest.importorskip("gguf")
LAYERS = 6


def export_split(path: Path) -> tuple[Problem, Placement, Export]:
    """Layers 0 to 2 on the first GPU, 3 to 5 and the output on the second, experts of layers 1 and 4 on the host."""
    problem = build(path, "2xL4,cpu", ProblemOptions(dims={"prompt": 16, "tokens": 8, "context": 512}))
    graph = problem.graph
    host = next(d for d, device in enumerate(problem.cluster) if device.is_host)
    gpus = [d for d in range(len(problem.cluster.names)) if d != host]
    device = np.full(graph.n_ops, gpus[1], np.int32)
    for op in range(graph.n_ops):
        held = [graph.weights.name[weight] for weight in graph.weights_of(op)]
        scope = str(graph.ops.scope[op])
        match = re.search(r"blk\.(\d+)", scope)
        if any(name.startswith("token_embd") for name in held) and match is None:
            device[op] = host
        elif match is not None:
            layer = int(match[1])
            device[op] = host if "experts" in scope and layer in (1, 4) else gpus[layer >= LAYERS // 2]
    placement = Placement(device)
    return problem, placement, export_placement(problem, placement, "llama.cpp")


def command_words(made: Export) -> list[str]:
    """The words of the script's command."""
    (command,) = (line for line in str(made.exported.files["llama.sh"]).splitlines() if line.startswith("llama-server"))
    return shlex.split(command)


def test_every_tensor_is_where_the_placement_says(tmp_path: Path) -> None:
    """By llama.cpp's rules for layers and overrides, each weight is on the device of an op that uses it."""
    path = write_model(tmp_path / "model.gguf", "mixtral", layers=LAYERS)
    problem, _, made = export_split(path)
    words, graph = command_words(made), problem.graph
    flags = parse_flags(words)
    names = words[words.index("--device") + 1].split(",")
    placed = place_tensors(read_header(path), flags, names)
    called = dict(re.findall(r"^# (\w+) is \"(.*)\"", str(made.exported.files["llama.sh"]), re.MULTILINE))
    final = made.exported.placement.device
    checked = 0
    for op in range(graph.n_ops):
        for weight in graph.weights_of(op):
            name = graph.weights.name[weight]
            assert called[placed[name]] == problem.cluster.names[final[op]], name
            checked += 1
    assert checked >= len(placed)
    assert flags.context == 512


def test_llama_cpp_overrides_the_experts_that_are_on_the_host(tmp_path: Path) -> None:
    """The real llama.cpp matches the exported expression with those tensors, and with no others."""
    pytest.importorskip("xllamacpp")
    path = write_model(tmp_path / "model.gguf", "mixtral", layers=LAYERS)
    flags = parse_flags(command_words(export_split(path)[2]))
    real = LlamaFlags(context=512, repack=False, overrides=flags.overrides)
    found = run_llama(path, real, prompt=4, tokens=1, repeats=1).allocation.overridden
    assert set(found) == {f"blk.{layer}.ffn_{part}_exps.weight" for layer in (1, 4) for part in ("gate", "up", "down")}
