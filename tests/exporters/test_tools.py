"""Exports in the tools themselves, wherever they are installed: what they make of the files is what the plan says."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from export_models import on, stack_graph, stack_problem
from parallel_plans import problem_of, staged
from tensorflow_files import DATA

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.exporters.writing import export_placement
from placewise.model.placement import Placement
from placewise.model.ways import StageGroup

LAYERS = (2, 4, 3)
"""Of nine layers, how many are on each of three devices."""


def needs(package: str) -> Path:
    """Where an installed package is; the test is skipped where it is none. Nothing is imported but its parents."""
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin)


def text_for(target: str) -> str:
    problem = stack_problem(stack_graph(9), gpus=3, cpu=False)
    stage = np.repeat(np.arange(3), LAYERS)
    where = {f"layers.{n}.{part}": f"cuda:{stage[n]}" for n in range(9) for part in ("attn", "mlp")}
    made = export_placement(problem, on(problem, where | {"head": "cuda:2"}), target)
    assert not made.projected
    (content,) = made.exported.files.values()
    return str(content)


def test_megatron_parses_its_layout() -> None:
    """Megatron Core's own class finds the layers of each stage, and accepts the layout for nine layers."""
    needs("megatron.core")
    code = """
import re, sys, warnings
warnings.simplefilter("ignore")
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
layout = PipelineParallelLayerLayout(re.search("layout '(.*)'", sys.stdin.read())[1], 3)
layout.validate_layer_layout(num_layers=9, mtp_num_layers=0)
print([[kind.name for kind in stage[0]].count("decoder") for stage in layout.layout])
"""
    assert _python(code, text_for("megatron")) == str(list(LAYERS))


def split_text_for(target: str, replicas: int = 1, *, tokens: bool = False) -> str:
    """The file for two stages of a small Llama, each split over two devices; all layers recompute."""
    problem = problem_of("llama", f"{4 * replicas}xA100-80GB", sequence_parallel=tokens)
    devices = np.arange(4 * replicas).reshape(2, -1).tolist()
    plan = staged(problem, [StageGroup(tuple(own), replicas, 2) for own in devices], [2], again=True)
    made = export_placement(problem, plan, target)
    assert not made.projected
    (content,) = made.exported.files.values()
    return str(content)


def test_megatron_takes_the_arguments_of_split_plans() -> None:
    """Every argument but those of the training loop is a field of Megatron Core's configuration, which accepts all."""
    needs("megatron.core")
    code = """
import dataclasses, re, shlex, sys, warnings
warnings.simplefilter("ignore")
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.core.transformer.transformer_config import TransformerConfig
words = shlex.split(sys.stdin.read().splitlines()[-1])
values = {one[2:].replace("-", "_"): other for one, other in zip(words, [*words[1:], "--"]) if one.startswith("--")}
loop = [name for name in ("micro_batch_size", "global_batch_size") if values.pop(name, None)]
read = lambda text: True if text.startswith("--") else int(text) if text.isdigit() else text
values = {name: read(text) for name, text in values.items()}
made = TransformerConfig(hidden_size=32, num_attention_heads=8, pipeline_dtype=__import__("torch").float32, **values)
layout = PipelineParallelLayerLayout(values["pipeline_model_parallel_layout"], 2)
layout.validate_layer_layout(num_layers=made.num_layers, mtp_num_layers=0)
counts = [[kind.name for kind in stage[0]].count("decoder") for stage in layout.layout]
sizes = made.tensor_model_parallel_size, made.recompute_method, made.recompute_num_layers
print(counts, *sizes, len(loop), made.sequence_parallel)
"""
    assert _python(code, split_text_for("megatron")) == "[2, 2] 2 block 2 2 False"
    assert _python(code, split_text_for("megatron", tokens=True)) == "[2, 2] 2 block 2 2 True"


def test_vllm_has_the_arguments_of_split_plans() -> None:
    """Every argument of the command is one that vLLM's engine adds to its parser."""
    source = (needs("vllm").parent / "engine" / "arg_utils.py").read_text()
    calls = [call for call in ast.walk(ast.parse(source)) if isinstance(call, ast.Call)]
    added = [call.args for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    known = {word.value for words in added for word in words if isinstance(word, ast.Constant)}
    asked = {word for word in split_text_for("vllm", 2).split() if word.startswith("--")}
    assert asked == {"--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"} and asked <= known


def test_vllm_takes_its_partition() -> None:
    """The function by which vLLM cuts layers gives each rank its own, from the variable alone."""
    path = needs("vllm").parent / "distributed" / "utils.py"
    source = path.read_text()
    (found,) = [part for part in ast.parse(source).body if getattr(part, "name", "") == "get_pp_indices"]
    partition = next(word for word in text_for("vllm").split() if word.startswith("VLLM_PP_LAYER_PARTITION="))
    known: dict[str, Any] = {"envs": SimpleNamespace(VLLM_PP_LAYER_PARTITION=partition.partition("=")[2])}
    exec(compile(ast.Module([found], []), str(path), "exec"), known)  # importing vllm needs a GPU build of torch
    assert [known["get_pp_indices"](9, rank, 3) for rank in range(3)] == [(0, 2), (2, 6), (6, 9)]


def test_deepspeed_builds_the_pipeline(tmp_path: Path) -> None:
    """Three processes (gloo) make the module that was written: each holds the entries of its stage."""
    needs("deepspeed")
    (tmp_path / "planned_pipeline.py").write_text(text_for("deepspeed"))
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch.multiprocessing as mp

def stage(rank, world, port):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "DS_ACCELERATOR": "cpu"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    import torch, deepspeed
    from planned_pipeline import PARTS, PlannedPipeline
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    made = PlannedPipeline([torch.nn.Linear(2, 2) for _ in range(PARTS[-1])], num_stages=world)
    held = sorted(int(name.split(".")[0]) for name, _ in made.named_parameters() if name.endswith("weight"))
    open(f"stage{rank}", "w").write(f"{held[0]}..{held[-1]}")

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mp.spawn(stage, (3, port), nprocs=3)
"""
    (tmp_path / "train.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path)), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    held = [(tmp_path / f"stage{rank}").read_text() for rank in range(3)]
    assert held == ["0..2", "3..6", "7..10"]


def test_deepspeed_builds_and_trains_stages_of_split_layers(tmp_path: Path) -> None:
    """Four processes (gloo): two stages, each split over two. They hold their entries, and the right ones recompute."""
    needs("deepspeed")
    pytest.importorskip("torch")
    problem = problem_of("llama")
    plan = staged(problem, [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)], [2], again=True)
    made = export_placement(problem, plan, "deepspeed")
    assert not made.projected
    (tmp_path / "planned_pipeline.py").write_text(str(made.exported.files["planned_pipeline.py"]))
    code = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch.multiprocessing as mp

def stage(rank, world, port):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "DS_ACCELERATOR": "cpu"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    import torch, deepspeed
    from planned_pipeline import CONFIG, DEVICES, PARTS, PlannedPipeline
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    entries = [torch.nn.Linear(2, 2) for _ in range(PARTS[-1])]
    made = PlannedPipeline(entries, loss_fn=torch.nn.functional.mse_loss)
    config = {**CONFIG, "optimizer": {"type": "SGD", "params": {"lr": 0.1}, "torch_adam": True}}
    engine, *_ = deepspeed.initialize(model=made, config=config)
    loss = engine.train_batch(iter([(torch.ones(2, 2), torch.ones(2, 2))] * CONFIG["gradient_accumulation_steps"]))
    held = sorted(int(name.split(".")[0]) for name, _ in made.named_parameters() if name.endswith("weight"))
    group = torch.distributed.get_process_group_ranks(made.mpu().get_slice_parallel_group())
    seen = {"held": held, "group": group, "again": made.is_checkpointable_results, "loss": float(loss)}
    open(f"stage{rank}", "w").write(json.dumps(seen))
    torch.distributed.barrier()
    os._exit(0)

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mp.spawn(stage, (4, port), nprocs=4)
"""
    (tmp_path / "train.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads((tmp_path / f"stage{rank}").read_text()) for rank in range(4)]
    assert [one["held"] for one in seen] == [[0, 1, 2]] * 2 + [[3, 4, 5]] * 2
    assert [one["group"] for one in seen] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [one["again"] for one in seen] == [[False, True, True]] * 2 + [[True, True, False]] * 2
    assert all(np.isfinite(one["loss"]) for one in seen)


def test_tensorflow_runs_nodes_where_it_is_told(tmp_path: Path) -> None:
    """On two CPUs of one machine, every node runs on its device, and the results are those without devices."""
    tensorflow = os.environ.get("PLACEWISE_TENSORFLOW", sys.executable)
    if tensorflow == sys.executable and find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed: PLACEWISE_TENSORFLOW may name a Python that has it")
    problem = build(str(DATA / "attention.pb"), "cpu,cpu", ProblemOptions(dims={"batch": 4}))
    made = export_placement(problem, Placement(np.arange(problem.n_ops) % 2), "tensorflow")
    (tmp_path / "graph.pb").write_bytes(made.exported.files["graph.pb"])  # type: ignore[arg-type]
    code = """
import os, sys
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
import numpy as np, tensorflow as tf
v1 = tf.compat.v1
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
graph = v1.GraphDef.FromString(open("graph.pb", "rb").read())
asked = {node.name: node.device for node in graph.node}
config = v1.ConfigProto(allow_soft_placement=True, device_count={"CPU": 2})
config.graph_options.rewrite_options.disable_meta_optimizer = True
config.graph_options.optimizer_options.opt_level = -1
results = []
for told in (True, False):
    for node in graph.node:
        node.device = asked[node.name] if told else ""
    with tf.Graph().as_default() as made, v1.Session(config=config) as session:
        tf.import_graph_def(graph, name="")
        feeds = {
            op.outputs[0]: np.random.default_rng(0).random([4, *op.outputs[0].shape.as_list()[1:]])
            for op in made.get_operations() if op.type == "Placeholder"
        }
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
        ran = v1.RunMetadata()
        results.append(session.run("Identity:0", feeds, options=options, run_metadata=ran))
        there = {node.name: node.device for part in ran.partition_graphs for node in part.node}
        if told:
            wrong = [name for name, device in there.items() if not device.endswith(asked.get(name, ""))]
            print(len(wrong), len(set(there.values())), sum(name in there for name in asked) > 40, end=" ")
print(np.array_equal(*results))
"""
    assert _python(code, "", python=tensorflow, folder=tmp_path) == "0 2 True True"


def _python(code: str, text: str, *, python: str = sys.executable, folder: Path | None = None) -> str:
    """The last line that a program prints."""
    environment = (
        dict(os.environ) if python != sys.executable else os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    done = subprocess.run(
        [python, "-c", code], input=text, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip().splitlines()[-1]
