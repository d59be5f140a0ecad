"""The target `torch`: meshes, split modules and stages, which torchrun runs with the files that were written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from huggingface_configs import VARIANTS
from parallel_plans import MODELS, example, export_family, problem_of, staged
from soak import later
from split_modules import reading

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.parallel_plan import describe_modules
from placewise.costing.sharding import shard_graph
from placewise.errors import ExportError
from placewise.exporters.torch_parallel import FAMILIES
from placewise.exporters.writing import export_placement, write_files
from placewise.model.placement import Placement
from placewise.model.ways import StageGroup
from placewise.simulate import judge_placement

pytest.importorskip("torch", reason="torch is not installed")

import torch

from placewise.readers.torch.parallel_model import make_model


def run(folder: Path, name: str, processes: int, *flags: str) -> str:
    """What torchrun prints for an example; without a name, for the model that was written with the script."""
    model = [f"{MODELS}:{name}"] if name else []
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(folder / "run_parallel.py"), *model, *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def export_and_run(name: str, groups: list[StageGroup], last: list[int], folder: Path) -> tuple[dict, str]:
    """The plan that was written for a model, and what the script prints, which compares with the whole model."""
    cores = sum(len(group.devices) for group in groups)
    problem = problem_of(name, f"{cores}xcore")
    made = export_placement(problem, staged(problem, groups, last, again=True), "torch")
    assert not made.projected
    write_files(made.exported, made.info, folder)
    return json.loads((folder / "parallel.json").read_text()), run(folder, name, cores)


def test_torchrun_runs_split_modules(tmp_path: Path) -> None:
    """On two cores that recompute: outputs and gradients are those of the whole model."""
    said, printed = export_and_run("llama", [StageGroup((0, 1), 1, 2)], [], tmp_path / "out")
    assert said["tensor_parallel"] == 2 and said["stages"][0]["recompute"]
    assert "1 stages × 1 replicas × 2 devices, outputs and gradients as those" in printed


@pytest.mark.soak
@pytest.mark.parametrize("name", ["llama", "bert", "resnet"])
def test_torchrun_runs_stages_of_split_modules(name: str, tmp_path: Path) -> None:
    """Two stages of two cores each that recompute: outputs and gradients are those of the whole model."""
    said, printed = export_and_run(name, [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)], [2], tmp_path / "out")
    assert said["tensor_parallel"] == 2 and said["microbatches"] == 4
    assert [stage["devices"] for stage in said["stages"]] == [["core:0", "core:1"], ["core:2", "core:3"]]
    assert said["stages"][0]["recompute"]
    assert "2 stages × 1 replicas × 2 devices, outputs and gradients as those" in printed


@pytest.mark.soak
def test_torchrun_runs_sequence_parallelism(tmp_path: Path) -> None:
    """Two stages of two cores hand on the tokens of each core: outputs and gradients are those of the whole model."""
    problem = problem_of("llama", "4xcore", sequence_parallel=True)
    plan = staged(problem, [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)], [2], again=True)
    made = export_placement(problem, plan, "torch")
    assert not made.projected and not made.left_out
    write_files(made.exported, made.info, tmp_path / "out")
    said = json.loads((tmp_path / "out" / "parallel.json").read_text())
    assert said["splits"]["layers.0.self_attn.o_proj"]["scatters"] == said["splits"]["embed_tokens"]["scatters"] == 1
    assert list(said["tokens"]["values"].values()) == [1]
    assert said["tokens"]["gathers"]["layers.3.mlp"] == [{"shape": [2, 8, 32], "dim": 1, "sums": True}]
    assert "outputs and gradients as those" in run(tmp_path / "out", "llama", 4)


_COUNT = """
import json, sys
import torch, torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from placewise.readers.torch.parallel_model import ParallelModel, make_model
plan, reference = json.loads(sys.argv[1]), sys.argv[2]
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
model, args, kwargs = make_model(reference)
parallel = ParallelModel(model, args, kwargs, plan)
found = {}
with CommDebugMode() as seen:
    outputs = parallel._run([value[None] for value in args], 0)
    found["forward"] = {str(op).rpartition(".")[2]: n for op, n in seen.get_comm_counts().items()}
    parallel.loss(outputs, None).backward()
    found["both"] = {str(op).rpartition(".")[2]: n for op, n in seen.get_comm_counts().items()}
print(json.dumps(found))
"""


@pytest.mark.parametrize("name", ["llama", later("bert")])
def test_sequence_parallelism_exchanges_what_the_plan_counts(name: str) -> None:
    """As many all-gathers and reduce-scatters in each pass as the rules say, and no all-reduce of activations."""
    problem = problem_of(name, "2xcore", sequence_parallel=True)
    plan, early = describe_modules(problem, staged(problem, [StageGroup((0, 1), 1, 2)], []))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COUNT, json.dumps(plan), f"{MODELS}:{name}"],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    sharding = shard_graph(problem.graph, 2, unit=problem.require_ways().unit, sequence_parallel=True)
    tokens = [c for c in sharding.collectives if problem.graph.ops.kind[c.op] != "Loss"]
    forward, both = (Counter(c.kind for c in tokens if not c.backward or back) for back in (False, True))
    sliced = len(plan["tokens"]["calls"]) + len(plan["tokens"]["slices"])  # their gradients are whole
    more = {"forward": len(early), "both": len(early) + sliced}
    for pass_, wanted in (("forward", forward), ("both", both)):
        gathered, scattered = (
            sum(n for op, n in seen[pass_].items() if own in op) for own in ("all_gather", "reduce_scatter")
        )
        assert scattered == wanted["reduce-scatter"] and gathered == wanted["all-gather"] + more[pass_], (pass_, seen)
    assert not any("all_reduce" in op or "allreduce" in op for op in seen["both"])


class Positions(torch.nn.Module):
    """A layer behind a sum with positions, which are a weight of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = torch.nn.Parameter(torch.zeros(8, 32))
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.head = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.positions
        x = x + self.down(torch.relu(self.up(x)))
        return self.head(torch.relu(x) + self.positions)


def test_tokens_of_weights_are_refused() -> None:
    """A sum of tokens with a weight of the model itself is no module's work: one sentence."""
    options = ProblemOptions(
        objective="throughput", graph="training", tensor_parallel=2, microbatches=4, sequence_parallel=True
    )
    problem = build(Positions(), "2xA100-80GB", options, example_inputs=(torch.zeros(2, 8, 32),))
    plan = staged(problem, [StageGroup((0, 1), 1, 2)], [])
    with pytest.raises(ExportError, match=r"takes its tokens of a (weight|value that is whole), which no"):
        export_placement(problem, plan, "torch")


def test_fused_matrices_are_split_in_parts(tmp_path: Path) -> None:
    """Queries, keys and values of GPT-2: each process has its rows of all three."""
    pytest.importorskip("transformers", reason="configurations are built with transformers")
    _, plan = export_family(tmp_path, "gpt2", [StageGroup((0, 1), 1, 2)])
    split = {"style": "colwise", "weights": {"bias": 0, "weight": 1}, "gathers": False}
    parts = {"bias": [32, 32, 32], "weight": [32, 32, 32]}
    assert plan["splits"]["transformer.h.0.attn.c_attn"] == {**split, "parts": parts}


@pytest.mark.soak
def test_torchrun_runs_a_hugging_face_configuration(tmp_path: Path) -> None:
    """The script needs no function, for it makes the configured model."""
    pytest.importorskip("transformers", reason="configurations are built with transformers")
    export_family(tmp_path, "gpt2", [StageGroup((0, 1), 1, 2)])
    printed = run(tmp_path, "", 2)
    assert "1 stages × 1 replicas × 2 devices, outputs and gradients as those of the whole model" in printed


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "changes"), [*((kind, {}) for kind in FAMILIES), *VARIANTS])
def test_torchrun_runs_stages_of_split_hugging_face_models(kind: str, changes: dict, tmp_path: Path) -> None:
    """Two stages of two processes each, in every family, whose layers recompute; ReLUs (OPT) in double precision."""
    export_family(tmp_path, kind, [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)], **changes)
    printed = run(tmp_path, "", 4, *(["--float64"] if kind == "opt" else []))
    assert "2 stages × 1 replicas × 2 devices, outputs and gradients as those" in printed


def test_hugging_face_models_load_weights(tmp_path: Path) -> None:
    """Random weights are the same each time; those of a folder are the ones that transformers saved there."""
    pytest.importorskip("transformers", reason="configurations are built with transformers")
    reference, _ = export_family(tmp_path, "llama", [StageGroup((0, 1), 2, 1)])
    drawn, again = (make_model(reference)[0].state_dict() for _ in range(2))
    assert all(torch.equal(value, again[name]) for name, value in drawn.items())
    model, _, inputs = make_model(reference)
    for value in model.parameters():
        value.data += 1
    model.save_pretrained(tmp_path / "weights")
    loaded = make_model(reference, {"weights": str(tmp_path / "weights")})[0].state_dict()
    assert loaded.keys() == drawn.keys() and torch.equal(loaded["model.norm.weight"], drawn["model.norm.weight"] + 1)
    assert {name: value.shape for name, value in inputs.items()} == {"input_ids": (2, 64)}


@pytest.mark.parametrize(
    ("kind", "said"),
    [("t5", "computes on parts of values that are whole"), ("mixtral", "experts that are split"),
     ("falcon", "falcon was never run split")],
)  # fmt: skip
def test_hugging_face_models_that_cannot_be_split_are_refused(kind: str, said: str, tmp_path: Path) -> None:
    """One sentence when they are exported, in place of a script that fails."""
    pytest.importorskip("transformers", reason="configurations are built with transformers")
    with pytest.raises(ExportError, match=said):
        export_family(tmp_path, kind, [StageGroup((0, 1), 1, 2)])


def test_splits_by_tokens_of_hugging_face_models_are_refused(tmp_path: Path) -> None:
    """Their code asks values for their lengths, and a device has some of the tokens only."""
    pytest.importorskip("transformers", reason="configurations are built with transformers")
    with pytest.raises(ExportError, match="take lengths from the values that sequence parallelism splits"):
        export_family(tmp_path, "llama", [StageGroup((0, 1), 1, 2)], wishes={"sequence_parallel": True})


def test_arguments_of_one_shape_and_several_layouts_are_refused() -> None:
    """A memory as long as the tokens beside it: which one a module has to gather, no shape says."""
    options = ProblemOptions(objective="throughput", graph="training", tensor_parallel=2, sequence_parallel=True)
    made, args = reading(6)
    problem = build(made, "2xA100-80GB", options, example_inputs=args)
    with pytest.raises(ExportError, match=r"'layers.0' takes values of equal shape, some whole and some split"):
        export_placement(problem, staged(problem, [StageGroup((0, 1), 1, 2)], []), "torch")


@pytest.mark.soak
@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_torchrun_runs_replicas(name: str, tmp_path: Path) -> None:
    """Two cores take micro-batches in turns, and average their gradients."""
    _, printed = export_and_run(name, [StageGroup((0, 1), 2, 1)], [], tmp_path / "out")
    assert "1 stages × 2 replicas × 1 devices, outputs and gradients as those" in printed
    if name == "resnet":
        assert "outputs and gradients as those" in run(tmp_path / "out", name, 2, "--float64")


def test_a_plan_of_replicas_has_one_stage_of_the_whole_model() -> None:
    """Two cores, no splits."""
    problem = problem_of("bert", "2xcore")
    made = export_placement(problem, staged(problem, [StageGroup((0, 1), 2, 1)], [], again=True), "torch")
    said = json.loads(str(made.exported.files["parallel.json"]))
    assert not made.projected and said["data_parallel"] == 2 and said["stages"][0]["modules"] == [""]


def test_the_plan_names_modules_and_their_styles() -> None:
    """Whole modules of each stage, styles as parallelize_module takes them, and units that recompute."""
    problem = problem_of("llama")
    plan = staged(problem, [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)], [2], again=True)
    said = json.loads(str(export_placement(problem, plan, "torch").exported.files["parallel.json"]))
    first, second = said["stages"]
    assert first["modules"] == ["embed_tokens", "layers.0", "layers.1"]
    assert second["modules"] == ["layers.2", "layers.3", "norm", "lm_head"]
    assert first["recompute"] == ["layers.0", "layers.1"] and second["recompute"][:2] == ["layers.2", "layers.3"]
    styles = {path: split["style"] for path, split in said["splits"].items()}
    assert styles["layers.0.self_attn.q_proj"] == styles["layers.3.mlp.up_proj"] == "colwise"
    assert styles["layers.0.self_attn.o_proj"] == "rowwise" and styles["embed_tokens"] == "embedding"
    assert said["splits"]["lm_head"] == {"style": "colwise", "weights": {"weight": 0}, "parts": {}, "gathers": True}


def test_unequal_stages_are_projected_and_judged() -> None:
    """A mesh has one degree and one number of replicas."""
    problem = problem_of("bert")
    plan = staged(problem, [StageGroup((0, 1), 1, 2), StageGroup((2,), 1, 1)], [2])
    made = export_placement(problem, plan, "torch")
    assert made.projected and made.said.valid
    groups = {(group.tensor_parallel, group.data_parallel) for group in made.exported.placement.stages}
    assert len(groups) == 1
    assert made.said.value == judge_placement(problem, made.exported.placement).value


def test_models_and_plans_without_modules_or_stages() -> None:
    """One sentence each."""
    problem = build("zoo:random-layered", "2xA100-80GB", ProblemOptions(tensor_parallel=1, objective="throughput"))
    ways = problem.require_ways()
    plan = staged(problem, [StageGroup((0,), 1, 1)], [ways.n_units])
    with pytest.raises(ExportError, match="no PyTorch module"):
        export_placement(problem, plan, "torch")
    model, args = example("bert")
    whole = build(model, "2xA100-80GB", example_inputs=args)
    with pytest.raises(ExportError, match="is for plans with stages"):
        export_placement(whole, Placement.on(0, whole.n_ops), "torch")
