"""All targets and many models on devices that none fits on: a plan for a target is exported as it is, or refused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from huggingface_configs import write_config
from locations import DATA
from soak import SOAKS, sample

import placewise as pw
from placewise.core.target_rules import TARGETS
from placewise.errors import PlacewiseError
from placewise.exporters.writing import export_placement
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Outcome, Result
from placewise.targets.place_for import place_for

LINE = frozenset({"deepspeed"})
STACK = LINE | {"llama.cpp", "megatron", "vllm"}
PIECES = frozenset({"onnx", "onnx-annotated"})
NODES = PIECES | {"openvino"}
MODULES = frozenset({"device-map"})
NAMES = frozenset({"tensorflow"})
MODELS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("onnx/gpt2", "onnx/llama", "onnx/vit", "onnx/bert_traced"), STACK | NODES),
    "onnx/bert": STACK - {"llama.cpp"} | NODES,
    **dict.fromkeys(("onnx/bert_fused", "onnx/mobilenet_v2", "onnx/t5", "onnx/whisper"), LINE | NODES),
    **dict.fromkeys(("onnx/resnet", "onnx/unet"), NODES),
    "onnx/efficientnet": LINE | PIECES,
    **dict.fromkeys(("onnx/resnet_blocks", "onnx/resnet_qoperator"), PIECES),
    **dict.fromkeys(("zoo:bert-base", "zoo:bert-large", "zoo:transformer-xl-8"), STACK),
    **dict.fromkeys(("zoo:nmt", "zoo:random-layered", "zoo:random-branchy"), LINE),
    **dict.fromkeys(("tensorflow/attention", "tensorflow/training"), NAMES),
    "tensorflow/loop_training": LINE | NAMES,
    "tensorflow/lstm": LINE,
    "torch/layered": LINE | {"pipelining"},
    **dict.fromkeys(
        ("hf:llama", "hf:mixtral", "hf:qwen2", "hf:qwen3", "hf:qwen3_moe", "hf:deepseek_v3", "hf:gemma2", "hf:gpt_oss",
         "hf:opt", "hf:bert", "hf:vit"),
        STACK | MODULES,
    ),
    "hf:whisper": LINE | MODULES,
}  # fmt: skip
"""Models, and the targets that must have a plan for them on the devices of `tight`; the others may refuse."""
LIBRARIES = {"openvino": "openvino", "pipelining": "torch", "device-map": "torch"}
SIZES: tuple[dict[str, int], ...] = ({}, {"batch": 2}, {"batch": 2, "seq": 8}, {"batch": 2, "sequence": 8})
SHARE = 0.9, 0.4
"""Of what the whole model needs: the memory of each accelerator and of the CPU."""


def locate(name: str, folder: Path) -> str | Path:
    """The file of a model, or its name."""
    if name.startswith("hf:"):
        pytest.importorskip("transformers")
        return write_config(folder, name.removeprefix("hf:"))
    suffix = {"onnx": ".onnx", "tensorflow": ".pb", "torch": ".pt2"}.get(name.partition("/")[0], "")
    return DATA / f"{name}{suffix}" if suffix else name


def tight(model: str | Path, objective: str) -> Problem:
    """Two accelerators and a CPU, each too small for the whole model, and for the compute buffer of a real prompt."""
    found = None
    for sizes in SIZES:
        try:
            found = pw.build(model, "2xL4,cpu", pw.ProblemOptions(dims=sizes))
            break
        except PlacewiseError:
            continue
    assert found is not None, model
    whole = pw.judge(found, Placement.on(0, found.n_ops)).devices[0].peak
    first, second = ("GPU.0", "GPU.1") if str(model).endswith(".onnx") else ("cuda:0", "cuda:1")  # as OpenVINO has them
    devices = {first: SHARE[0] * whole, second: SHARE[0] * whole, "cpu": SHARE[1] * whole}
    return pw.build(model, devices, pw.ProblemOptions(dims=sizes, objective=objective, headroom=0))


def plan_for(problem: Problem, target: str) -> Result:
    """The result of a short search; of a longer one, if that found nothing and proved nothing."""
    for seconds in (0.1, 10.0):
        result = place_for(problem, target, "auto", pw.Budget(seconds=seconds), advise=False)
        if result.status.outcome is not Outcome.UNKNOWN:
            break
    return result


def test_every_target_has_models() -> None:
    """Thirty models and more, and each target is bound to have a plan for some."""
    assert len(MODELS) >= 30 and set().union(*MODELS.values()) == set(TARGETS)


@pytest.mark.parametrize("objective", ["latency", "throughput"] if SOAKS else ["latency"])
@pytest.mark.parametrize("name", sample(list(MODELS), 7))
def test_a_plan_for_a_target_loses_nothing(name: str, objective: str, tmp_path: Path) -> None:
    """Not one op moves, the value is that of the plan to the last bit, and what cannot be is one sentence."""
    problem = tight(locate(name, tmp_path), objective)
    planned = set[str]()
    for target in TARGETS:
        try:
            result = plan_for(problem, target)
        except PlacewiseError as error:
            assert "\n" not in str(error)
            continue
        if result.placement is None:
            continue
        made = export_placement(result.problem, result.placement, target)
        assert not made.projected and made.moved == 0 and made.loss == 0, target
        assert made.said.valid and made.said.value == result.value, target
        assert np.array_equal(made.exported.placement.device, result.placement.device), target
        planned.add(target)
        whole = target == "deepspeed" or name == "hf:deepseek_v3" or (target == "llama.cpp" and name.startswith("hf:"))
        assert whole or len(set(result.placement.device.tolist())) > 1
    there = {target for target in TARGETS if find_spec(LIBRARIES.get(target, "numpy")) is not None}
    if objective == "latency":
        assert planned >= MODELS[name] & there, name
