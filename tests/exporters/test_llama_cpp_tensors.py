"""The command for llama.cpp puts every tensor of a GGUF model where the placement says.

The real llama.cpp has as many devices here as RPC servers run on this machine. Without its programs
(`helpers/llama_servers.py`) those tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from gguf_models import FAMILIES, tiny_model, write_model
from llama_servers import MISSING, SECONDS, is_installed, start_server
from soak import sample

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.target_rules import run_on_target
from placewise.exporters.llama_cpp.buffers import find_buffers
from placewise.exporters.registry import create_exporter
from placewise.exporters.writing import Export, export_placement
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags, parse_flags
from placewise.readers.gguf.llama_memory import count_bytes, count_compute, place_tensors
from placewise.runtimes.llama_cpp.log import ROUNDED, Allocation, parse_log
from placewise.runtimes.llama_cpp.program import READ, SERVER, find_port, find_program
from placewise.runtimes.llama_cpp.runtime import run_llama
from placewise.simulate import judge_placement

pytest.importorskip("gguf")
LAYERS = 6
SPLITS = [((0, 3, 3, 0), (1, 4)), ((2, 1, 2, 1), ()), ((1, 4, 0, 1), (2,)), ((0, 1, 1, 4), (5,)), ((5, 0, 1, 0), ()),
          ((0, 3, 3, 0), (0, 1, 2))]  # fmt: skip
"""Layers on the host and on each of three GPUs, and the layers whose experts are on the host."""
COUNTED, NEAR = "input tensors = ", 0.03
"""What builds of late 2026 log, of which compute buffers are counted; older ones need no more."""
REORDERED = "gemma4"
"""Its embeddings per layer are looked up first by build 11549; older ones need no more than is counted either."""


def export_split(path: Path, split: Sequence[int], away: Sequence[int]) -> tuple[Problem, Placement, Export]:
    """Layers on the host and then on the GPUs, the output on the last of them, some experts on the host."""
    problem = build(path, "3xL4,cpu", ProblemOptions(dims={"prompt": 16, "tokens": 8, "context": 512}))
    graph, names = problem.graph, problem.cluster.names
    host = names.index("cpu")
    order = [host, *(names.index(f"cuda:{number}") for number in range(3))]
    line = np.repeat(order, split)
    device = np.full(graph.n_ops, line[-1], np.int32)
    for op in range(graph.n_ops):
        scope = str(graph.ops.scope[op])
        match = re.search(r"blk\.(\d+)", scope)
        if match is not None:
            device[op] = host if "experts" in scope and int(match[1]) in away else line[int(match[1])]
        elif "_embd" in scope:
            device[op] = host if graph.ops.kind[op] == "Gather" else line[0]
    placement = Placement(device)
    return problem, placement, export_placement(problem, placement, "llama.cpp")


def command_words(made: Export) -> list[str]:
    """The words of the script's command."""
    (command,) = (line for line in str(made.exported.files["llama.sh"]).splitlines() if line.startswith("llama-server"))
    return shlex.split(command)


def test_every_tensor_is_where_the_placement_says(tmp_path: Path) -> None:
    """By llama.cpp's rules for layers and overrides, each weight is on the device of an op that uses it."""
    path = write_model(tmp_path / "model.gguf", "mixtral", layers=LAYERS)
    problem, _, made = export_split(path, *SPLITS[0])
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


def test_layers_of_multi_token_prediction_take_no_memory(tmp_path: Path) -> None:
    """llama.cpp skips their tensors: every device has the bytes that it has of a file without these layers."""
    flags = LlamaFlags(ngl=99, split=(2, 1), context=512)
    with_, without = (
        count_bytes(read_header(write_model(tmp_path / f"{name}.gguf", name, layers=3)), flags, ["A", "B"])
        for name in ("glm4moe-ahead", "glm4moe")
    )
    assert sum(one.weights for one in with_.values()) == sum(one.weights for one in without.values())
    assert sum(one.cache for one in with_.values()) == sum(one.cache for one in without.values())


@pytest.mark.parametrize("split", [(1, 2, 0, 0), (0, 1, 2, 0), (0, 3, 0, 0), (2, 0, 1, 0)])
def test_layers_of_multi_token_prediction_are_counted(split: tuple[int, ...], tmp_path: Path) -> None:
    """llama.cpp counts the last of these four blocks in -ngl and --tensor-split, before the output."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model(layers=4, **{
        "llama.nextn_predict_layers": 1, "llama.attention.sliding_window": 0,
        "llama.attention.sliding_window_pattern": [False] * 4,
    }))  # fmt: skip
    problem, placement, made = export_split(path, split, ())
    words = command_words(made)
    on_gpus = sum(split[1:]) + 1
    assert not made.projected and words[words.index("-ngl") + 1] == str(on_gpus + 1)
    placed = place_tensors(read_header(path), parse_flags(words), words[words.index("--device") + 1].split(","))
    host = [f"blk.{layer}.attn_q.weight" for layer in range(split[0])]
    assert [name for name, device in placed.items() if device == "CPU" and name.endswith("attn_q.weight")] == host
    assert (create_exporter("llama.cpp").read_back(made.exported, problem) == placement.device).all()


@pytest.mark.parametrize(
    ("family", "split", "away", "first"),
    [("mixtral", (1, 2, 2, 1), (4, 5), (1, 2)), ("mixtral", (1, 2, 2, 1), (1, 2), (1, 2)),
     ("deepseek2", (0, 3, 2, 1), (4, 5), (1, 2)), ("deepseek2", (0, 3, 2, 1), (5,), (1,)),
     ("deepseek2", (2, 2, 2, 0), (5,), (2,))],
)  # fmt: skip
def test_a_projection_is_one_of_the_splits_that_are_searched(
    family: str, split: tuple[int, ...], away: tuple[int, ...], first: tuple[int, ...], tmp_path: Path
) -> None:
    """Experts of any layers on the host become those of the first on GPUs that have some: no proof is contradicted."""
    path = write_model(tmp_path / "model.gguf", family, layers=LAYERS)
    problem, _, made = export_split(path, split, away)
    _, wanted, _ = export_split(path, split, first)
    assert create_exporter("llama.cpp").project(problem, made.exported.placement) == wanted


def test_the_command_names_the_servers_in_use(tmp_path: Path) -> None:
    """Of three, those that have layers, in their order, RPC0 being the first of them; none where the host has all."""
    path = write_model(tmp_path / "model.gguf", "llama", layers=LAYERS)
    names = [f"rpc:10.0.0.{number}:50052" for number in range(3)]
    problem = build(path, ",".join(["cpu", *names]), ProblemOptions(dims={"prompt": 16, "tokens": 8}))
    graph, exporter = problem.graph, create_exporter("llama.cpp")
    layer = [re.match(r"blk\.(\d+)", str(graph.ops.scope[op])) for op in range(graph.n_ops)]
    for used in ((3, 1), (2,), ()):
        line = [0] * LAYERS if not used else [0, *sorted(np.resize(used, LAYERS - 1).tolist(), key=used.index)]
        device = [
            line[int(match[1])] if match else 0 if "token_embd" in str(graph.ops.scope[op]) else line[-1]
            for op, match in enumerate(layer)
        ]
        made = export_placement(problem, Placement(np.array(device, np.int32)), "llama.cpp")
        words = command_words(made)
        assert words[words.index("--device") + 1] == (",".join(f"RPC{n}" for n in range(len(used))) or "none")
        if used:
            assert words[words.index("--rpc") + 1] == ",".join(f"10.0.0.{number - 1}:50052" for number in used)
        else:
            assert "--rpc" not in words
        assert (exporter.read_back(made.exported, problem) == device).all()


def test_llama_cpp_overrides_the_experts_that_are_on_the_host(tmp_path: Path) -> None:
    """The real llama.cpp matches the exported expression with those tensors, and with no others."""
    pytest.importorskip("xllamacpp")
    path = write_model(tmp_path / "model.gguf", "mixtral", layers=LAYERS)
    flags = parse_flags(command_words(export_split(path, *SPLITS[0])[2]))
    real = LlamaFlags(context=512, repack=False, overrides=flags.overrides)
    found = run_llama(path, real, prompt=4, tokens=1, repeats=1).allocation.overridden
    assert set(found) == {f"blk.{layer}.ffn_{part}_exps.weight" for layer in (1, 4) for part in ("gate", "up", "down")}


@dataclass(frozen=True)
class LlamaDevices:
    """The program llama-server, and the addresses of RPC servers that it may use."""

    server: str
    addresses: tuple[str, ...]


@pytest.fixture(scope="module")
def devices() -> Iterator[LlamaDevices]:
    """Three RPC servers, each a device with the processor's memory."""
    if not is_installed():
        pytest.skip(MISSING)
    with ExitStack() as running:
        addresses = tuple(running.enter_context(start_server())[1] for _ in range(3))
        yield LlamaDevices(find_program(SERVER), addresses)


def load_command(words: Sequence[str], devices: LlamaDevices, log: Path) -> tuple[Allocation, int]:
    """What the real llama.cpp allocates under a command whose CUDA devices are RPC servers, and tokens it generates."""
    port, named = find_port(), [word.replace("CUDA", "RPC") if "CUDA" in word else word for word in words[1:]]
    options = ["--rpc", ",".join(devices.addresses), *named, "--port", str(port), "-t", "1", "-lv", "5", "--fit", "off"]
    with log.open("w") as written:
        process = subprocess.Popen(
            [devices.server, *options], env=os.environ | READ, stdout=written, stderr=written, text=True
        )
        try:
            until = time.monotonic() + SECONDS
            while "listening on" not in log.read_text(errors="replace"):
                assert process.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-2000:]
                time.sleep(0.05)
            asked = {"prompt": [3, 4, 5, 6], "n_predict": 4, "logit_bias": [[300, 1000.0]]}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                tokens = json.load(answer)["tokens_predicted"]
        finally:
            process.terminate()
            process.wait(SECONDS)
    return parse_log(log.read_text(errors="replace")), int(tokens)


def add_up(sizes: dict[str, float], place: str, devices: LlamaDevices) -> float:
    """Bytes of all buffers of "CPU" or of the device "CUDA1"."""
    address = "" if place == "CPU" else devices.addresses[int(place[4:])]
    return sum(size for name, size in sizes.items() if (address in name if address else name.startswith("CPU")))


@pytest.mark.parametrize(
    ("family", "number"),
    [
        *sample([(family, number) for number, family in enumerate(FAMILIES)], 2),
        *(("mixtral", number) for number in range(len(SPLITS))),
    ],
)
def test_the_real_llama_cpp_loads_the_plan(family: str, number: int, devices: LlamaDevices, tmp_path: Path) -> None:
    """Over several devices, layers, experts, weights and caches are where the plan has them, and it generates."""
    split, away = SPLITS[number % len(SPLITS)]
    path = write_model(tmp_path / "model.gguf", family, layers=LAYERS)
    away = tuple(layer for layer in away if "ffn_up_exps" in FAMILIES[family].parts)
    problem, placement, made = export_split(path, split, away)
    words = command_words(made)
    log = tmp_path / "log.txt"
    real, tokens = load_command(words, devices, log)
    assert tokens == 4
    homes = create_exporter("llama.cpp").read_back(made.exported, problem)
    assert (homes == placement.device).all()
    graph, called = problem.graph, {name: name.replace("cuda:", "RPC") for name in problem.cluster.names}
    for op in range(graph.n_ops):
        scope = str(graph.ops.scope[op])
        match = re.match(r"blk\.(\d+)", scope)
        place = called[problem.cluster.names[homes[op]]].replace("cpu", "CPU")
        if scope.startswith("output") and "norm" not in scope:
            assert real.layers[-1] == place
        elif match is not None and "experts" not in scope:
            assert real.layers[int(match[1])] == place, scope
    experts = {
        graph.weights.name[weight] for op in range(graph.n_ops) for weight in graph.weights_of(op)
        if "exps" in graph.weights.name[weight] and any(f"blk.{layer}." in graph.weights.name[weight] for layer in away)
    }  # fmt: skip
    assert real.overridden.keys() == experts and all(kind.startswith("CPU") for kind in real.overridden.values())
    header, flags = read_header(path), parse_flags(words)
    names = words[words.index("--device") + 1].split(",")
    buffers = len(real.weights) + len(real.cache)
    for place, counted in count_bytes(header, flags, names).items():
        assert add_up(dict(real.weights), place, devices) == pytest.approx(counted.weights, abs=buffers * ROUNDED)
        assert add_up(dict(real.cache), place, devices) == pytest.approx(counted.cache, abs=buffers * ROUNDED)
    newer = COUNTED in log.read_text(errors="replace")
    for place, counted in count_compute(header, flags, [name.replace("CUDA", "RPC") for name in names]).items():
        allocated = add_up(dict(real.compute), place.replace("RPC", "CUDA"), devices)
        assert allocated <= (1 + NEAR) * counted + ROUNDED
        assert not newer or family == REORDERED or allocated >= (1 - NEAR) * counted - ROUNDED


def place_with_little_room(path: Path, room: int) -> tuple[Problem, Placement, Export]:
    """All layers on two cards, of which the user leaves so many bytes beside weights, caches and plain buffers."""
    options = ProblemOptions(dims={"prompt": 64, "tokens": 8, "context": 2048, "ubatch": 256})
    problem = build(path, "2xL4,cpu", options)
    graph = problem.graph
    layer = [re.match(r"blk\.(\d+)", str(scope)) for scope in graph.ops.scope]
    device = [int(match[1]) >= 3 if match else 2 if "_embd" in str(graph.ops.scope[op]) else 1
              for op, match in enumerate(layer)]  # fmt: skip
    placement = Placement(np.array(device, np.int32))
    held = [use.peak for use in judge_placement(run_on_target(problem, "llama.cpp"), placement).devices]
    header, names = read_header(path), ["RPC0", "RPC1"]
    flags = parse_flags(command_words(export_placement(problem, placement, "llama.cpp")))
    plain = count_compute(header, flags, names, pipelined=False)
    limits = {f"cuda:{card}": int(held[card] + max(plain.values()) + room) for card in range(2)}
    limited = run_on_target(build(path, "2xL4,cpu", replace(options, max_memory=limits)), "llama.cpp")
    return limited, placement, export_placement(limited, placement, "llama.cpp")


def test_a_pipeline_without_room_is_ruled_out(tmp_path: Path) -> None:
    """By an override that means no tensor, with a note; with more room the command has none, and llama.cpp makes it."""
    path = write_model(tmp_path / "model.gguf", "llama", layers=LAYERS)
    limited, placement, made = place_with_little_room(path, 1 << 16)
    words = command_words(made)
    assert words[-2:] == ["--override-tensor", "without-pipeline=CPU"]
    assert any("a pipeline of micro-batches has no room" in note for note in made.exported.notes)
    assert not any("will lack" in note for note in made.exported.notes)
    assert (create_exporter("llama.cpp").read_back(made.exported, limited) == placement.device).all()
    assert not any(re.search("without-pipeline", tensor.name) for tensor in read_header(path).tensors)
    _, _, roomy = place_with_little_room(path, 1 << 30)
    assert "--override-tensor" not in command_words(roomy)


@pytest.mark.parametrize("room", [1 << 16, 1 << 30])
def test_the_real_llama_cpp_makes_a_pipeline_where_it_fits(room: int, devices: LlamaDevices, tmp_path: Path) -> None:
    """Its buffers are those of the plan with it and without, though it knows nothing of the user's limits."""
    path = write_model(tmp_path / "model.gguf", "llama", layers=LAYERS)
    limited, placement, made = place_with_little_room(path, room)
    log = tmp_path / "log.txt"
    real, tokens = load_command(command_words(made), devices, log)
    assert tokens == 4
    text = log.read_text(errors="replace")
    if COUNTED not in text:
        pytest.skip("this build of llama.cpp counts other buffers")
    assert ("pipeline parallelism enabled" in text) == (room > 1 << 20)
    for name, size in find_buffers(limited, placement).sizes.items():
        place = "CPU" if name == "cpu" else name.replace("cuda:", "CUDA")
        assert add_up(dict(real.compute), place, devices) == pytest.approx(size, rel=NEAR, abs=ROUNDED)
