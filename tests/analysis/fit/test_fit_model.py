"""fit: the command is that of the plan, and what it says of speed, limits and changes follows from the costs."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_runs import run
from gguf_models import tiny_model, write_mixture, write_model
from huggingface_configs import SMALL

import placewise as pw
from placewise._util.units import format_bytes
from placewise.analysis.fit import fit_model as module
from placewise.analysis.fit.limits import find_decoding, seconds_per_token
from placewise.errors import InputError
from placewise.exporters.stack import find_stack
from placewise.exporters.writing import export_placement
from placewise.model.result import Outcome, Reason, Status
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags, parse_flags
from placewise.readers.gguf.llama_memory import count_bytes, count_compute
from placewise.reporting.fitted import _list_facts, _row

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("traced_once")
DEVICES = "RTX3060,cpu"
SIZES = {"prompt": 8, "tokens": 4}
CONFIG = SMALL["llama"] | {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 6, "vocab_size": 512,
    "dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small Llama whose layers are mostly weights."""
    path = tmp_path_factory.mktemp("fit") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_the_command_is_that_of_the_plan(config: str) -> None:
    """What is printed for pasting is what the export of the plan says, and the speed is the plan's."""
    answer = pw.fit(config, DEVICES, dims=SIZES)
    assert answer.plan.placement is not None and answer.fitted.precision == ""
    made = export_placement(answer.plan.problem, answer.plan.placement, "llama.cpp")
    assert str(made.exported.files["llama.sh"]).rstrip().endswith(answer.command)
    assert answer.command.startswith("llama-server") and "-ngl 7" in answer.command
    assert answer.tokens_per_second == answer.plan.tokens_per_second is not None
    assert answer.command in answer.summary() and "tokens per second" in answer.summary()


def test_the_widest_precision_that_is_fast_enough(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the precisions that people can read along with the widest is chosen; if there is none, the fastest."""
    monkeypatch.setattr(module, "FAST_ENOUGH", 1e9)
    fastest = pw.fit(config, DEVICES, dims=SIZES)
    assert fastest.tokens_per_second is not None
    speeds = {change.words: change.tokens_per_second or 0.0 for change in fastest.fitted.tried}
    assert fastest.tokens_per_second >= max(speeds.values()) and len(speeds) == len(module.NARROWER)
    asked = pw.fit(config, DEVICES, dims=SIZES, precision="int8")
    assert asked.fitted.precision == "int8" and not asked.fitted.tried
    assert "Q8_0" in asked.command


def test_what_limits_and_what_has_to_go(config: str) -> None:
    """The device with most of a token's time is named; without the layers that have to go, a token takes half."""
    answer = pw.fit(config, DEVICES, dims=SIZES, precision="bf16", max_memory={"cuda:0": "300MiB"})
    problem, placement = answer.plan.problem, answer.plan.placement
    limit, departure = answer.fitted.limit, answer.fitted.departure
    assert placement is not None and limit is not None and departure is not None
    decodes = find_decoding(problem)
    seconds = seconds_per_token(problem, placement, decodes)
    loads = np.bincount(placement.device, seconds, problem.n_devices)
    assert limit.device == "cpu" == problem.cluster.names[int(np.argmax(loads))]
    assert limit.share == pytest.approx(loads.max() / loads.sum()) and limit.reason == "memory bandwidth"
    stack, fast = find_stack(problem), problem.cluster.index("cuda:0")
    assert stack is not None
    here = decodes & (placement.device == problem.cluster.index("cpu")) & (stack.of >= 0) & (stack.of < stack.count)
    gained = (seconds - problem.costs.op_seconds[:, fast] / problem.graph.op_repeats)[here]
    gains = np.sort(np.bincount(stack.of[here], gained))[::-1]
    assert 0 < departure.layers < stack.count
    assert gains[: departure.layers].sum() >= seconds.sum() / 2 > gains[: departure.layers - 1].sum()


def test_one_device_more_of_each_model(config: str) -> None:
    """Where memory is what lacks, another card of the list is tried, and it is faster."""
    answer = pw.fit(config, DEVICES, dims=SIZES, precision="bf16", max_memory={"cuda:0": "300MiB"})
    assert [change.words for change in answer.fitted.changes] == ["one RTX3060 more"]
    assert answer.fitted.changes[0].faster > 1
    assert module._more_devices("2xL4,RTX3060,L4,cpu") == [
        ("one L4 more", "2xL4,RTX3060,L4,cpu,L4"), ("one RTX3060 more", "2xL4,RTX3060,L4,cpu,RTX3060"),
    ]  # fmt: skip
    assert module._more_devices("2 * L4@20GiB,link=nvlink4,core") == [
        ("one L4@20GiB more", "2 * L4@20GiB,link=nvlink4,core,L4@20GiB")
    ]


@pytest.mark.parametrize(
    ("outcome", "reason", "shown", "why"),
    [
        (Outcome.INFEASIBLE, Reason.PROVED, "does not fit", "too large"),
        (Outcome.UNKNOWN, Reason.TIME_LIMIT, "none found", "nothing was found in the time"),
        (Outcome.UNKNOWN, Reason.FINISHED, "none found", "nothing was found"),
    ],
)
def test_what_was_not_found_is_not_called_impossible(
    outcome: Outcome, reason: Reason, shown: str, why: str, config: str
) -> None:
    """Only a proof says that something does not fit."""
    answer = pw.fit(config, DEVICES, dims=SIZES, precision="int8").fitted
    none = replace(answer.result, judgement=None, placement=None, status=Status(outcome, reason), unmet="too large")
    change = module._change("one more", none, answer.result)
    assert change.why == why and _row(change, answer) == ("one more", shown, "")


def test_unlike_cards_are_named(config: str) -> None:
    """As the list of devices counts them, with how to check that; the context is said, and how to ask for more."""
    answer = pw.fit(config, "RTX3060,RTX4090,cpu", dims=SIZES, precision="int8")
    (said,) = (note for note in answer.fitted.notes if "--list-devices" in note)
    assert said.startswith("CUDA1 is the NVIDIA GeForce RTX 4090 24 GB: `llama-server --list-devices`")
    assert "--device CUDA1 " in answer.command
    lines = _list_facts(answer.fitted)
    assert said in lines and "context: 12 tokens, of which the prompt has 8; --dim context=32k asks for more" in lines
    alike = pw.fit(config, "2xRTX4090,cpu", dims=SIZES, precision="int8").fitted.notes
    assert not any("--list-devices" in note for note in alike)


def test_hosts_alone_need_no_devices(config: str) -> None:
    """Without accelerators nothing is offloaded, and the speed is that of the host."""
    answer = pw.fit(config, "cpu", dims=SIZES, precision="int8")
    assert answer.command.endswith("-ngl 0")
    assert answer.plan.assignment and set(answer.plan.assignment.values()) == {"cpu"}


def test_prompts_that_copy_weights_get_a_larger_micro_batch(tmp_path: Path) -> None:
    """Of all that are tried the fastest; none where the user names one, and where nothing is copied twice."""
    path = write_mixture(tmp_path / "model.gguf", layers=6, experts=64, inner=1536)
    dims = {"prompt": 2000, "tokens": 8}
    found = pw.fit(path, "RTX3060@4GiB,cpu", dims=dims)
    assert " -ub 2048 " in found.command or " -b 4096 -ub 4096 " in found.command
    assert "tokens of a prompt at a time (-ub), and not 512" in found.summary()
    own = pw.fit(path, "RTX3060@4GiB,cpu", dims={**dims, "ubatch": 512})
    assert " -ub " not in own.command and own.plan.value is not None and found.plan.value < own.plan.value
    assert " -ub " not in pw.fit(path, "RTX3060@4GiB,cpu", dims={**dims, "prompt": 512}).command
    assert " -ub " not in pw.fit(path, "A100-80GB,cpu", dims=dims).command


def test_bad_input_is_one_sentence(config: str, tmp_path: Path) -> None:
    """Targets without a command, and models that generate no text, are refused."""
    with pytest.raises(InputError, match="started by no command"):
        pw.fit(config, DEVICES, target="onnx")
    with pytest.raises(InputError, match="generates no text"):
        pw.fit("zoo:bert-base", DEVICES)
    with pytest.raises(InputError, match="tokens=0"):
        pw.fit(config, DEVICES, dims={"tokens": 0})


def test_the_command_line_prints_the_same(config: str) -> None:
    """The command stands alone on the first line; JSON has the same figures; nothing that fits is exit code 3."""
    said = run("fit", config, "-d", DEVICES, "--dim", "prompt=8", "--dim", "tokens=4", "--precision", "int4", "-q")
    assert said.stdout.splitlines()[0].startswith("llama-server")
    shown = run("fit", config, "-d", DEVICES, "--dim", "prompt=8", "--dim", "tokens=4", "--precision", "int4", "--json")
    document = json.loads(shown.stdout)
    assert document["command"] == said.stdout.splitlines()[0]
    assert document["tokens_per_second"] > 0 and document["prompt_tokens"] == 8
    none = run("fit", config, "-d", DEVICES, "--max-memory", "cuda:0=1MiB", "--max-memory", "cpu=1MiB", code=3)
    assert none.stdout.startswith("infeasible with precision int4: ")


def test_room_for_the_compute_buffer(tmp_path: Path) -> None:
    """Of a GGUF model the compute buffer is kept free on every accelerator, unless the user says how much is.

    The command for a processor names no accelerator, and a core is one thread.
    """
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model())
    answer = pw.fit(path, DEVICES, dims={"prompt": 8, "tokens": 8, "context": 512})
    room = count_compute(read_header(path), LlamaFlags(context=512, ngl=3), ["CUDA0"])["CUDA0"]
    problem = answer.plan.problem
    gpu = problem.cluster.index("cuda:0")
    assert answer.fitted.room == room > 0
    assert problem.capacity[gpu] == pytest.approx(problem.cluster.devices[gpu].memory - room, abs=1)
    assert "compute buffers counted" in answer.summary() and answer.fitted.sizes["cpu"] > 0
    assert answer.command.startswith(f"llama-server -m {path} -c 512 -np 1")
    assert pw.fit(path, DEVICES, dims={"prompt": 8, "tokens": 8}, headroom="1%").fitted.room == 0
    host = pw.fit(path, "cpu", dims={"prompt": 8, "tokens": 8})
    assert host.fitted.room == 0 and host.command == f"llama-server -m {path} -c 16 -np 1 --device none -ngl 0"
    core = pw.fit(path, "core", dims={"prompt": 8, "tokens": 8})
    assert core.command == f"llama-server -m {path} -c 16 -np 1 -t 1 --device none -ngl 0"


@pytest.mark.parametrize(("family", "mebibytes"), [("llama", 10), ("mixtral", 14), ("gemma3", 10)])
def test_every_number_of_bytes_agrees(family: str, mebibytes: int, tmp_path: Path) -> None:
    """What is free beside what is held is what there is, where the plan is judged again and by llama.cpp's own rules.

    Two unlike cards, which hold some of the layers, and a CPU.
    """
    pytest.importorskip("gguf")
    path, sizes = write_model(tmp_path / "model.gguf", family, layers=12), {"prompt": 64, "tokens": 16, "context": 512}
    memory = {"cuda:0": mebibytes << 20, "cuda:1": mebibytes - 1 << 20}
    answer = pw.fit(path, "RTX4090,RTX3060,cpu", max_memory=memory, dims=sizes)
    answer.plan.save(tmp_path / "plan.json")
    again, held = pw.judge(path, tmp_path / "plan.json"), answer.plan.result.judgement
    assert held is not None and again.valid and "cpu" in answer.plan.assignment.values()
    words, header = shlex.split(answer.command), read_header(path)
    names = words[words.index("--device") + 1].split(",")
    counted = count_bytes(header, parse_flags(words), names)
    graph, placement = answer.plan.problem.graph, answer.plan.placement
    assert placement is not None and len(names) == 2
    for device, (use, judged) in enumerate(zip(held.devices, again.devices, strict=True)):
        assert (use.peak, use.capacity) == (judged.peak, judged.capacity) and use.free == use.capacity - use.peak
        whole = answer.plan.problem.cluster.devices[device].memory
        left = format_bytes(whole - use.peak - answer.fitted.sizes[use.device])
        assert f"{use.device} {left} of {format_bytes(whole)}" in answer.summary()
        if use.device in memory:
            assert use.capacity + answer.fitted.room == memory[use.device]
        here = placement.device == device
        used = np.unique(graph.weight_edges.value[here[graph.weight_edges.consumer]])
        resident = graph.weights.bytes[used].sum() + graph.ops.state_bytes[here].sum()
        there = counted[use.device.replace("cuda:", "CUDA").replace("cpu", "CPU")]
        assert resident == there.weights + there.cache <= use.peak
