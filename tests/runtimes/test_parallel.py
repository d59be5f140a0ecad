"""Live models that are really split, replicated, cut into stages and recomputed, over gloo."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import split_modules
from huggingface_configs import VARIANTS
from locations import ROOT
from parallel_plans import (
    MICROBATCHES,
    MODELS,
    PARTS,
    draw,
    example,
    export_family,
    gradient_scale,
    largest_error,
    make_plan,
    problem_of,
    reference,
    staged,
)
from soak import later
from split_modules import reading

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.parallel_plan import describe_modules
from placewise.errors import RunError
from placewise.exporters.torch_parallel import FAMILIES
from placewise.model.ways import StageGroup

pytest.importorskip("torch", reason="torch is not installed")

from placewise.readers.torch.parallel_model import make_model

sys.path.append(str(ROOT / "benchmarks" / "real"))
from parallel_group import ParallelGroup  # a folder of programs is no package

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def pair() -> Iterator[ParallelGroup]:
    """Two processes."""
    with ParallelGroup(2) as group:
        yield group


def compare(group: ParallelGroup, name: str, plan: dict) -> None:
    """Outputs and gradients of a plan of an example against one process."""
    compare_model(group, reference(name), plan, draw(example(name)[1]))


def compare_model(group: ParallelGroup, model: str, plan: dict, inputs: list[np.ndarray]) -> None:
    """Outputs and gradients of a plan against one process."""
    group.add("parts", model, plan)
    group.add_whole("whole", model)
    for one, other in zip(group.outputs("parts", inputs), group.whole_outputs("whole", inputs), strict=True):
        assert one.shape == other.shape and largest_error(one, other) < TOLERANCE
    wanted = group.whole_gradients("whole", inputs)
    seen = set()
    for gradients in group.gradients("parts", inputs):
        for key, value in gradients.items():
            assert largest_error(value, wanted[key], gradient_scale(wanted)) < TOLERANCE, key
        seen |= gradients.keys()
    assert seen == wanted.keys()


SIZES = {"split": (1, 1, 2), "stages": (2, 1, 1), "replicas": (1, 2, 1)}
QUICK = {("llama", "stages"), ("bert", "split"), ("resnet", "split"), ("resnet", "replicas")}


@pytest.mark.parametrize(
    ("name", "way"),
    [pair if pair in QUICK else later(*pair) for pair in product(("llama", "bert", "resnet"), SIZES)],
)
def test_two_processes_compute_what_one_does(pair: ParallelGroup, name: str, way: str) -> None:
    """Outputs and the gradients of one step, to 1e-4."""
    compare(pair, name, make_plan(name, *SIZES[way]))


@pytest.mark.parametrize("name", ["llama", later("bert")])
def test_sequence_parallelism_computes_what_one_process_does(pair: ParallelGroup, name: str) -> None:
    """Norms and sums on the tokens of each process, gathered and scattered around products; layers recompute."""
    problem = problem_of(name, sequence_parallel=True)
    plan, _ = describe_modules(problem, staged(problem, [StageGroup((0, 1), 1, 2)], [], again=True))
    assert plan["tokens"]["gathers"] and plan["stages"][0]["modules"] != [""]
    compare(pair, name, plan)


SPLIT, REPLICAS = [StageGroup((0, 1), 1, 2)], [StageGroup((0, 1), 2, 1)]
STAGES = [StageGroup((0,), 1, 1), StageGroup((1,), 1, 1)]
CASES = [
    ("llama", SPLIT, {}), ("gpt2", SPLIT, {}), later("gpt2", REPLICAS, {}), later("bert", SPLIT, {}),
    later("qwen2", SPLIT, {}), later("mistral", SPLIT, {}),
    *(
        later(kind, groups, changes)
        for groups in (SPLIT, STAGES, REPLICAS)
        for kind, changes in [*((kind, {}) for kind in FAMILIES if kind != "opt"), *VARIANTS]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "groups", "changes"), CASES)
def test_exported_hugging_face_models_compute_what_one_process_does(
    pair: ParallelGroup, tmp_path: Path, kind: str, groups: list[StageGroup], changes: dict
) -> None:
    """Split by grouped queries or fused matrices, in stages with tied weights, or in replicas; layers recompute."""
    pytest.importorskip("transformers", reason="configurations are built with transformers")
    model, plan = export_family(tmp_path, kind, groups, **changes)
    assert bool(plan["splits"]) == (groups is SPLIT)
    compare_model(pair, model, plan, draw(make_model(model)[2].values()))


def test_stages_hand_on_rotations(pair: ParallelGroup, tmp_path: Path) -> None:
    """A module that only casts what it makes to the type that it has; its results go from stage to stage."""
    pytest.importorskip("transformers", reason="configurations are built with transformers")
    model, plan = export_family(tmp_path, "llama", STAGES, head_dim=32)
    assert "model.rotary_emb" in plan["stages"][0]["modules"]
    compare_model(pair, model, plan, draw(make_model(model)[2].values()))


def test_what_looks_like_tokens_is_not_gathered(pair: ParallelGroup) -> None:
    """A whole memory of half as many tokens has the shape of a device's part of the tokens beside it."""
    options = {"tensor_parallel": 2, "graph": "training", "objective": "throughput", "sequence_parallel": True}
    made, args = reading()
    problem = build(made, "2xcore", ProblemOptions(microbatches=MICROBATCHES, **options), example_inputs=args)
    plan, _ = describe_modules(problem, staged(problem, SPLIT, []))
    assert plan["tokens"]["gathers"]["layers.1"] == [{"shape": [2, 6, 32], "dim": 1, "sums": True}]
    assert args[1].shape == (2, 3, 32)
    compare_model(pair, f"{split_modules.__file__}:reading", plan, draw(args))


def test_split_convolutions_differ_by_rounding_alone(pair: ParallelGroup) -> None:
    """In float64, outputs and gradients of a ResNet agree to 1e-12: nothing is left out of sums or statistics.

    In float32, a rounded value on the other side of a ReLU's zero changes gradients by far more than rounding does.
    """
    plan, options = make_plan("resnet", 1, 1, 2), {"name": "resnet"}
    inputs = [value.astype(np.float64) for value in draw(example("resnet")[1])]
    pair.add("double", reference("in_float64"), plan, options)
    pair.add_whole("whole double", reference("in_float64"), options)
    outputs = zip(pair.outputs("double", inputs), pair.whole_outputs("whole double", inputs), strict=True)
    assert all(one.dtype == np.float64 and largest_error(one, other) < 1e-12 for one, other in outputs)
    wanted = pair.whole_gradients("whole double", inputs)
    for gradients in pair.gradients("double", inputs):
        assert gradients.keys() == wanted.keys()
        for name, value in gradients.items():
            assert largest_error(value, wanted[name]) < 1e-12, name


@pytest.mark.soak
def test_four_processes_compute_what_one_does() -> None:
    """Two stages of two devices each, whose layers recompute; and two replicas of two devices each."""
    with ParallelGroup(4) as group:
        for name, parts in PARTS.items():
            layers = [part for part in parts if part.startswith("layer")]
            compare(group, name, make_plan(name, 2, 1, 2, recompute=layers))
        compare(group, "llama", make_plan("llama", 1, 2, 2))


def test_devices_hold_their_parts_of_the_weights(pair: ParallelGroup) -> None:
    """Of split weights each process holds a half, of stages only its own."""
    whole = {name: 4 * value.numel() for name, value in example("llama")[0].named_parameters()}
    pair.add("split", reference("llama"), make_plan("llama", 1, 1, 2))
    for held in pair.weight_bytes("split"):
        for name, size in whole.items():
            assert held[name] == (size if "norm" in name else size // 2)
    pair.add("stages", reference("llama"), make_plan("llama", 2, 1, 1))
    first, second = pair.weight_bytes("stages")
    assert first | second == whole and not first.keys() & second.keys()


def test_recomputation_gives_the_same_gradients(pair: ParallelGroup) -> None:
    """To the last bit on one machine: the same ops run twice."""
    inputs = draw(example("bert")[1])
    pair.add("kept", reference("bert"), make_plan("bert", 2, 1, 1))
    pair.add("again", reference("bert"), make_plan("bert", 2, 1, 1, recompute=["layer.0", "layer.3"]))
    for one, other in zip(pair.gradients("kept", inputs), pair.gradients("again", inputs), strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in other)


@pytest.mark.soak
def test_a_plan_of_another_size_is_refused_in_one_sentence() -> None:
    """And its processes end."""
    with ParallelGroup(2) as group, pytest.raises(RunError, match="the plan has 2 × 1 × 2 processes, and there are 2"):
        group.add("parts", f"{MODELS}:llama", make_plan("llama", 2, 1, 2))
