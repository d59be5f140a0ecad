"""PyTorch with every kind of parallelism: a device mesh, split modules, pipeline stages, replicas and recomputation."""

from __future__ import annotations

import json

import numpy as np

from placewise.core.parallel_plan import HUGGINGFACE, call_name, describe_modules, locate_calls
from placewise.errors import ExportError, MissingExtraError
from placewise.exporters.base import Exported, ExportInfo, OptionValues
from placewise.exporters.equal_stages import find_equal_stages, require_disjoint
from placewise.exporters.module_units import find_number
from placewise.exporters.torch_sources import read_copy
from placewise.model.columns import Ints
from placewise.model.graph import Graph, Source
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.huggingface.settings import read_settings

PLAN, SCRIPT = "parallel.json", "run_parallel.py"
HUGGINGFACE_MODEL, CONFIG = "huggingface_model.py", "config.json"
FAMILIES = ("bert", "gemma2", "gpt2", "llama", "mistral", "opt", "qwen2", "qwen3", "vit")
"""The models of transformers that were run split, in stages and in replicas, by their `model_type`."""
COPIES = ("parallel_model", "parallel_modules", "stage_modules", "cutting", "gradient_exchange")
_SCRIPT = f'''\
"""Run the model of {PLAN} on many devices: torchrun --nproc-per-node PROCESSES {SCRIPT} MODEL [MICRO-BATCHES]

MODEL is FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION, a function that returns the module and the example arguments of
one micro-batch: `return module, args` or `return module, args, kwargs`. Every process calls it, so it has to make the
same weights each time. Where there is a {HUGGINGFACE_MODEL}, its function is the default. It draws weights, or
loads those of --weights: a folder that transformers saved, or an id of the hub (any function is given it as `weights`).

Inputs are those of the example, drawn again for every micro-batch; outputs, and the gradients of one training step, are
compared with those of the whole model on one device. --loss FILE.py:FUNCTION names a function of outputs and a target
(default: the mean square of all outputs). --float64 computes in double precision: behind ReLU, rounding in float32
alone can change gradients by more than the comparison allows.

To train, take `ParallelModel` from {COPIES[0]}.py: its `step` leaves gradients in `named_parameters()`.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from {COPIES[0]} import ParallelModel, load_function, make_model, mean_square

PLAN = json.loads((Path(__file__).resolve().parent / "{PLAN}").read_text())


def draw(args, kwargs, count):
    """Inputs like the example for every micro-batch, the same in all processes."""
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for value in pytree.tree_leaves((args, kwargs)):
        if not isinstance(value, torch.Tensor):
            raise SystemExit("arguments of the model have to be tensors: bind the others in the function")
        rows = torch.stack([value] * count)
        if value.is_floating_point():
            rows = torch.randn(rows.shape, generator=generator).to(value.dtype)
        elif value.dtype == torch.int64 and value.numel():
            rows = torch.randint(int(value.min()), int(value.max()) + 1, rows.shape, generator=generator)
        drawn.append(rows)
    return drawn


def whole_step(reference, inputs, spec, loss):
    """Outputs and gradients of the whole model, micro-batch by micro-batch."""
    outputs = []
    for number in range(len(inputs[0])):
        args, kwargs = pytree.tree_unflatten([value[number] for value in inputs], spec)
        made = reference(*args, **kwargs)
        outputs.append([value.detach() for value in pytree.tree_leaves(made) if isinstance(value, torch.Tensor)])
        (loss(made, torch.zeros(())) / len(inputs[0])).backward()
    gradients = {{name: value.grad for name, value in reference.named_parameters() if value.grad is not None}}
    return [torch.stack(column) for column in zip(*outputs)], gradients


def require_close(what, one, other, least=1e-30):
    """Raise AssertionError where two tensors differ by more than 1e-4 of the largest entry, or of `least`."""
    scale = max(float(other.abs().max()) if other.numel() else 0.0, least)
    error = float((one.cpu() - other.cpu()).abs().max()) if other.numel() else 0.0
    if not error <= 1e-4 * scale:
        advice = "; does it with --float64?" if other.dtype == torch.float32 else ""
        found = f"{{what}} differs by {{error:.3g}} from that of the whole model, of {{scale:.3g}}"
        raise AssertionError(found + advice)


def with_precision(made, float64):
    """The model and its arguments, in float64 if that is asked for."""
    model, args, kwargs = made
    if not float64:
        return made
    double = lambda value: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    return model.double(), *pytree.tree_map(double, (args, kwargs))


def main(model, micro_batches, loss, float64, weights):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    wanted = sum(len(stage["devices"]) for stage in PLAN["stages"])
    if world != wanted:
        raise SystemExit(f"{PLAN} is for {{wanted}} processes: torchrun --nproc-per-node {{wanted}}")
    PLAN["microbatches"] = micro_batches or PLAN["microbatches"]
    name = [name for stage in PLAN["stages"] for name in stage["devices"]][rank]
    kinds = {{name.partition(":")[0] for stage in PLAN["stages"] for name in stage["devices"]}}
    if "cuda" in kinds and len(kinds) > 1:
        raise SystemExit("these stages are on GPUs and on other devices, and one process group does not join them")
    device = torch.device("cpu")
    if name.startswith("cuda"):
        if not torch.cuda.is_available():
            raise SystemExit(f"process {{rank}} is on {{name}}, and PyTorch sees no GPU here")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        loss = load_function(loss) if loss else mean_square
        own = Path(__file__).resolve().parent / "{HUGGINGFACE_MODEL}"
        if not model and not own.exists():
            raise SystemExit("name the function that makes the model: FILE.py:FUNCTION")
        model, options = model or f"{{own}}:make", {{"weights": weights}} if weights else {{}}
        made, args, kwargs = with_precision(make_model(model, options), float64)
        reference, _, _ = with_precision(make_model(model, options), float64)
        parallel = ParallelModel(made, args, kwargs, PLAN, loss=loss, device=str(device))
    except ValueError as error:
        raise SystemExit(f"{PLAN} cannot run: {{error}}")
    spec = pytree.tree_structure((args, kwargs))
    inputs = draw(args, kwargs, PLAN["microbatches"])
    own = [value[parallel.replica :: parallel.replicas].to(device) for value in inputs]
    outputs = parallel.forward(own)
    parallel.step(own)
    wanted, gradients = whole_step(reference, inputs, spec, loss)
    for number, value in enumerate(outputs):
        require_close(f"output {{number}}", value, wanted[number][parallel.replica :: parallel.replicas])
    least = 1e-3 * max(float(value.abs().max()) for value in gradients.values())
    for name, value in parallel.whole_gradients().items():
        require_close(f"the gradient of {{name}}", value, gradients[name], least)
    dist.barrier()
    begin = time.perf_counter()
    parallel.step(own)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier()
    seconds = (time.perf_counter() - begin) / PLAN["microbatches"]
    if rank == world - 1:
        shape = f"{{parallel.stages}} stages × {{parallel.replicas}} replicas × {{PLAN['tensor_parallel']}} devices"
        print(f"{{shape}}, outputs and gradients as those of the whole model, {{seconds * 1e3:.3f}} ms per micro-batch")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo and of autograd may outlive the interpreter, whose end then aborts the process


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("micro_batches", nargs="?", type=int, default=0)
    parser.add_argument("--loss", default="")
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("--weights", default="")
    main(**vars(parser.parse_args()))
'''


_HUGGINGFACE_MODEL = '''\
"""{kind} of transformers {version}, as {config} describes it, in float32 and without dropout."""

import json
from pathlib import Path

import torch
import transformers

INPUTS = {inputs}
"""Name → shape and element type, of one micro-batch."""


def make(weights=""):
    """The module, its arguments and keyword arguments; weights are drawn, or those of a folder or an id of the hub."""
    config = transformers.AutoConfig.for_model(**json.loads((Path(__file__).resolve().parent / "{config}").read_text()))
    config.use_cache = False
    kind = transformers.{kind}
    torch.manual_seed(0)
    model = read(kind, weights, config) if weights else kind(config)
    names = {{"source": model.main_input_name, "tokens": "decoder_input_ids"}}
    drawn = {{names[name]: draw(shape, dtype, config) for name, (shape, dtype) in INPUTS.items()}}
    return model.float().eval(), (), drawn


def read(kind, weights, config):
    try:  # safetensors only: other files of weights may run code
        return kind.from_pretrained(weights, config=config, dtype=torch.float32, use_safetensors=True)
    except OSError as error:
        raise SystemExit(f"the weights {{weights!r}} cannot be read: {{error}}") from None


def draw(shape, dtype, config):
    whole = dtype.startswith("int")
    return torch.randint(config.vocab_size, shape) if whole else torch.randn(shape)
'''


class TorchExporter:
    """Stages of whole modules; all of one degree and one number of replicas, as a mesh has them."""

    info = ExportInfo(
        "torch",
        writes=f"{PLAN} (mesh, stages, styles by module), {SCRIPT} (for torchrun) and the modules that it needs",
        loaded_by="PyTorch 2.13 (DeviceMesh, parallelize_module, torch.distributed.pipelining)",
        verified="executed",
        cannot_say="stages of different degrees or numbers of replicas",
        takes="plans with stages, of PyTorch modules",
        splits=True,
        sequence_parallel=True,
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. Process r of the script is device r of the stages, in their order."""
        if not placement.stages:
            said = "the target 'torch' is for plans with stages, and this one places whole ops"
            raise ExportError(said, remedy="place with --tensor-parallel, or export to pipelining")
        projected = find_equal_stages(problem, placement, _order_units(problem, placement), self.info.name).placement
        source = problem.graph.source
        configured = source is not None and source.format == HUGGINGFACE
        if configured and problem.constraints.sequence_parallel and projected.stages[0].tensor_parallel > 1:
            said = "Hugging Face's models take lengths from the values that sequence parallelism splits"
            raise ExportError(said, remedy="place without --sequence-parallel, or export to megatron")
        document, early = describe_modules(problem, projected)
        document = {"model": source.path if source else "", **document}
        files = {PLAN: json.dumps(document, indent=1) + "\n", SCRIPT: _SCRIPT}
        files |= {f"{name}.py": read_copy(f"placewise.readers.torch.{name}") for name in COPIES}
        if source is not None and configured:
            files |= _write_huggingface(problem.graph, source)
        notes = [f"{path} gathers its results for what follows, which the plan computes split" for path in early]
        if configured and source is not None and source.options.get("dtype") != "float32":
            notes.append(f"the script compares in float32, and the plan is for {source.options.get('dtype')}")
        return Exported(files, projected, tuple(notes))

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        stages = json.loads(str(exported.files[PLAN]))["stages"]
        first = [problem.cluster.index(stage["devices"][0]) for stage in stages]
        require_disjoint([stage["devices"] for stage in stages])
        module = {path: s for s, stage in enumerate(stages) for path in stage["modules"]}
        call = {name: s for s, stage in enumerate(stages) for name in stage["calls"]}
        if sum(len(stage["modules"]) for stage in stages) > len(module):
            raise ExportError(f"a module is in {PLAN} twice")
        graph, found = problem.graph, np.full(problem.n_ops, -1, np.int32)

        where = [find_number(scope, module) for scope in graph.ops.scope]
        by_inputs = CONFIG in exported.files
        where = locate_calls(graph, where) if by_inputs else where
        for op in np.flatnonzero(~graph.ops.backward).tolist():
            s = where[op] if where[op] >= 0 else call.get(call_name(graph.ops.name[op]), -1)
            everywhere = exported.placement.device[op] if by_inputs else -1
            found[op] = first[s] if s >= 0 else everywhere

        unit = problem.require_ways().unit
        of_unit = {int(u): int(d) for u, d in zip(unit.tolist(), found.tolist(), strict=True) if d >= 0}
        for op in np.flatnonzero(graph.ops.backward).tolist():
            found[op] = of_unit.get(int(unit[op]), -1)
        return found


def _order_units(problem: Problem, placement: Placement) -> Ints:
    """The place [n_ops] of each op's unit in the order of the plan's stages, and within them of the units."""
    ways = problem.require_ways()
    stage = np.zeros(ways.n_units, np.int32)
    stage[ways.unit] = np.asarray(placement.stage)
    place = np.empty(ways.n_units, np.int32)
    place[np.lexsort((np.arange(ways.n_units), stage))] = np.arange(ways.n_units)
    return place[ways.unit]


def _write_huggingface(graph: Graph, source: Source) -> dict[str, str]:
    """The configuration, and the module that makes its model. Raises ExportError for another family."""
    try:
        import transformers

        from placewise.readers.huggingface.instance import describe_class
    except ImportError:
        raise MissingExtraError("exporting Hugging Face configurations to torch", "transformers") from None
    kind, values = describe_class(read_settings(source.path).values)
    if values["model_type"] not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ExportError(f"of Hugging Face's models, torch takes {known}; {values['model_type']} was never run split")
    tensors = graph.tensors
    inputs = {
        tensors.name[tensor]: (tensors.shape[tensor], tensors.dtype_name(tensor))
        for tensor in np.flatnonzero(tensors.producer < 0).tolist()
    }
    made = _HUGGINGFACE_MODEL.format(kind=kind, version=transformers.__version__, config=CONFIG, inputs=inputs)
    return {HUGGINGFACE_MODEL: made, CONFIG: json.dumps(values, indent=1) + "\n"}
