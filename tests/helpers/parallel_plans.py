"""Plans with stages of the example models, written by hand, and their comparison with one process."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_configs import write_config
from locations import ROOT

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.exporters.torch_parallel import HUGGINGFACE_MODEL
from placewise.exporters.writing import export_placement, write_files
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.ways import StageGroup

MODELS = ROOT / "examples" / "parallel" / "models.py"
LAYERS = 4
PARTS = {
    "llama": ["embed_tokens", *(f"layers.{n}" for n in range(LAYERS)), "norm", "lm_head"],
    "bert": [
        "word_embeddings", "position_embeddings", "embedding_norm", *(f"layer.{n}" for n in range(LAYERS)),
        "classifier",
    ],
    "resnet": ["conv1", "bn1", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "fc"],
}  # fmt: skip
MICROBATCHES = 4


def reference(name: str) -> str:
    """What names the function of a model."""
    return f"{MODELS}:{name}"


def example(name: str, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    """The module, and the arguments of one micro-batch."""
    if str(MODELS.parent) not in sys.path:
        sys.path.insert(0, str(MODELS.parent))
    import models

    made: tuple[Any, tuple[Any, ...]] = getattr(models, name)(**options)
    return made


def problem_of(name: str, devices: str = "4xA100-80GB", **options: object) -> Problem:
    """An example in training, with ways to split it."""
    model, args = example(name)
    given = {"tensor_parallel": 2, "microbatches": 4, "graph": "training", "objective": "throughput"} | options
    return build(model, devices, ProblemOptions(**given), example_inputs=args)


def export_family(
    folder: Path, kind: str, groups: list[StageGroup], *, wishes: Mapping[str, Any] = {}, **changes: Any
) -> tuple[str, dict[str, Any]]:
    """What names the function of a Hugging Face model that was exported to `folder`, and its plan; layers recompute."""
    options = {"tensor_parallel": 2, "microbatches": MICROBATCHES, "graph": "training", "objective": "throughput"}
    dims = {"batch": 2} | ({} if kind == "vit" else {"length": 64})
    config = write_config(folder, kind, **changes)
    problem = build(config, "4xcore", ProblemOptions(dims=dims, **options, **wishes))
    last = [problem.require_ways().n_units // 2 - 1][: len(groups) - 1]
    made = export_placement(problem, staged(problem, groups, last, again=True), "torch")
    assert not made.projected
    write_files(made.exported, made.info, folder)
    return f"{folder / HUGGINGFACE_MODEL}:make", json.loads((folder / "parallel.json").read_text())


def staged(problem: Problem, groups: list[StageGroup], last: list[int], *, again: bool = False) -> Placement:
    """Stages up to these units; with `again`, units recompute where they can."""
    units = problem.require_ways().n_units
    return place_units(problem, groups, np.searchsorted(last, np.arange(units)), range(units) if again else ())


def place_units(
    problem: Problem, groups: Sequence[StageGroup], stage: Sequence[int] | np.ndarray, again: Collection[int] = ()
) -> Placement:
    """Units in the stages [n_units], each split as far as its stage; those in `again` recompute where they can."""
    ways = problem.require_ways()
    way = [
        max(
            ways.ways_of(unit, groups[s].tensor_parallel).tolist(),
            key=lambda w, unit=unit: bool(ways.recompute[w]) == (unit in again),
        )
        for unit, s in enumerate(stage)
    ]
    return Placement.of_stages(ways, tuple(groups), np.asarray(stage, np.int32), np.array(way, np.int32))


def draw(args: Sequence[Any], count: int = MICROBATCHES, seed: int = 0) -> list[np.ndarray]:
    """Inputs of all micro-batches, like the arguments of one."""
    rng, found = np.random.default_rng(seed), []
    for value in args:
        shape = (count, *value.shape)
        whole = "int" in str(value.dtype)
        found.append(rng.integers(0, 96, shape) if whole else rng.standard_normal(shape).astype(np.float32))
    return found


def split(style: str, dim: int, *names: str, gathers: bool = False) -> dict[str, Any]:
    """How one module is split."""
    return {"style": style, "weights": dict.fromkeys(names or ("weight",), dim), "parts": {}, "gathers": gathers}


def splits_of(name: str) -> dict[str, Any]:
    """The splits of a model as Megatron-LM makes them, by hand."""
    found: dict[str, Any] = {}
    if name == "resnet":
        for block in PARTS[name][2:-1]:
            found[f"{block}.conv1"] = split("colwise", 0)
            found[f"{block}.bn1"] = split("follows", 0, "weight", "bias", "running_mean", "running_var")
            found[f"{block}.conv2"] = split("rowwise", 1)
        return found
    attention, bias = ("self_attn", ()) if name == "llama" else ("attention", ("weight", "bias"))
    for layer in (part for part in PARTS[name] if part.startswith("layer")):
        for part in "qkv":
            found[f"{layer}.{attention}.{part}_proj"] = split("colwise", 0, *bias)
        found[f"{layer}.{attention}.o_proj"] = split("rowwise", 1)
        if name == "llama":
            found |= {f"{layer}.mlp.{part}_proj": split("colwise", 0) for part in ("gate", "up")}
            found[f"{layer}.mlp.down_proj"] = split("rowwise", 1)
        else:
            found |= {f"{layer}.intermediate": split("colwise", 0, *bias), f"{layer}.output": split("rowwise", 1)}
    if name == "llama":
        found |= {"embed_tokens": split("embedding", 0), "lm_head": split("colwise", 0, gathers=True)}
    return found


def make_plan(name: str, stages: int, replicas: int, degree: int, *, recompute: Sequence[str] = ()) -> dict[str, Any]:
    """A plan of equal stages, cut after half of the modules."""
    parts = PARTS[name]
    half = len(parts) // 2
    cut = [[""]] if stages == 1 else [parts[:half], parts[half:]]
    return {
        "tensor_parallel": degree,
        "data_parallel": replicas,
        "microbatches": MICROBATCHES,
        "schedule": "1f1b",
        "stages": [
            {
                "modules": own,
                "calls": [],
                "recompute": [path for path in recompute if stages == 1 or path in own],
                "devices": [f"core:{s * replicas * degree + k}" for k in range(replicas * degree)],
            }
            for s, own in enumerate(cut)
        ],
        "splits": splits_of(name) if degree > 1 else {},
        "summed": [],
    }


def largest_error(one: np.ndarray, other: np.ndarray, scale: float = 0.0) -> float:
    """The largest difference, as a share of the largest entry, or of `scale` if that is more."""
    return float(np.abs(one - other).max(initial=0.0)) / max(float(np.abs(other).max(initial=0.0)), scale, 1e-30)


def gradient_scale(gradients: dict[str, np.ndarray]) -> float:
    """A thousandth of the largest gradient: gradients below, as of a key's bias, are zero but for rounding."""
    return 1e-3 * max(float(np.abs(value).max(initial=0.0)) for value in gradients.values())
