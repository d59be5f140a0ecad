"""The paths from a plan to this machine's devices: runtimes, profiles, links and exporters, each run once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from placewise._util.units import format_bytes, format_seconds
from placewise.analysis.measure_placements import PLAN, Setting, measure_placements
from placewise.analysis.train_plan import TrainingRunSetting, train_placement
from placewise.catalog import read_cluster
from placewise.catalog.detect import this_machine
from placewise.diagnosis.checks import Check, NotHere
from placewise.diagnosis.machine import Found, Machine, require_library
from placewise.diagnosis.models import TinyModels, split_in_two
from placewise.errors import RunError
from placewise.exporters import registry as targets
from placewise.exporters.writing import export_placement
from placewise.model.cluster import Cluster
from placewise.profiling.links import measure_links
from placewise.profiling.profile import Profiling, profile
from placewise.runtimes.binding import bind
from placewise.runtimes.measure import Protocol
from placewise.runtimes.torch.training import TrainingOptions

TWO_CORES, GPU_AND_CORES, TWO_GPUS, OPENVINO_GPU = (
    "two cores",
    "a GPU and cores",
    "two GPUs",
    "an OpenVINO GPU and cores",
)
INTEL_MEMORY = 2 << 30
"""Bytes that the checks assume of a GPU of OpenVINO."""


@dataclass(frozen=True, slots=True)
class Group:
    """Two devices as a cluster, and where they are, as for --bind."""

    cluster: Cluster
    binding: Mapping[str, str] = field(default_factory=dict)


def find_group(machine: Machine, name: str) -> Group:
    """The pair of devices of this name. Raises NotHere if this machine lacks one of them."""
    host = this_machine().memory
    if name == TWO_CORES:
        first, second = machine.cores[0], machine.cores[-1]
        return Group(read_cluster("2xcore"), {"core:0": f"cores:{first}", "core:1": f"cores:{second}"})
    if name == OPENVINO_GPU:
        gpu = next((found.partition(" ")[0] for found in machine.openvino if found.startswith("GPU")), "")
        if not gpu:
            raise NotHere("OpenVINO finds no GPU")
        return Group(read_cluster({"GPU.0": INTEL_MEMORY, "cpu": host}), {"GPU.0": f"openvino:{gpu}"})
    wanted = 1 if name == GPU_AND_CORES else 2
    if not machine.gpus:
        raise NotHere(machine.why_no_gpu)
    if len(machine.gpus) < wanted:
        raise NotHere("CUDA sees one GPU")
    memory = {f"cuda:{gpu.number}": gpu.memory for gpu in machine.gpus[:wanted]}
    return Group(read_cluster({**memory, "cpu": host} if name == GPU_AND_CORES else memory))


RUNTIMES = {
    "onnxruntime": ("onnxruntime", (TWO_CORES, GPU_AND_CORES, TWO_GPUS)),
    "openvino": ("openvino", (TWO_CORES, OPENVINO_GPU)),
    "torch": ("torch", (TWO_CORES, GPU_AND_CORES, TWO_GPUS)),
    "pipelining": ("torch", (TWO_CORES, GPU_AND_CORES, TWO_GPUS)),
}
"""The library of each runtime, and the pairs of devices that it may run on."""
PROTOCOL = Protocol(rounds=3, samples=3, warm_up=2, seconds=5.0)
STEPS = 3
"""Training steps, all of them compared."""
SECONDS = 60.0
"""Seconds that a worker may take to answer."""
EXPORTS = {
    "device-map": ("program", "A2,cpu"), "dot": ("onnx", "A2,cpu"), "onnx": ("onnx", "A2,cpu"),
    "onnx-annotated": ("onnx", "A2,cpu"), "openvino": ("onnx", '{"GPU.0": "2GiB", "cpu": "4GiB"}'),
    "pipelining": ("program", "A2,cpu"), "trace": ("onnx", "A2,cpu"),
}  # fmt: skip
"""The tiny model and the devices of the targets that take one of them; the devices need not be here."""


def list_path_checks(machine: Machine, models: TinyModels) -> Iterator[Check]:
    """Every path, those of cores first."""
    for group in (TWO_CORES, GPU_AND_CORES, TWO_GPUS, OPENVINO_GPU):
        for runtime, (_, groups) in RUNTIMES.items():
            if group in groups:
                yield Check("runtimes", f"{runtime}, {group}", partial(_run_split, machine, models, runtime, group))
    for group in (TWO_CORES, GPU_AND_CORES, TWO_GPUS):
        yield Check("training", group, partial(_train, machine, models, group))
    for group in (TWO_CORES, GPU_AND_CORES):
        for runtime in ("onnxruntime", "openvino", "torch"):
            if group in RUNTIMES[runtime][1]:
                yield Check("profiles", f"{runtime}, {group}", partial(_profile, machine, models, runtime, group))
    yield Check("links", "between cores", partial(_measure_cores, machine))
    yield Check("links", "GPUs", partial(_measure_gpus, machine))
    yield Check("memory", "GPUs", partial(_measure_memory, machine))
    for target in targets.names():
        yield Check("exports", target, partial(_export, models, target))


def _model_of(models: TinyModels, runtime: str) -> Path:
    return models.program if RUNTIMES[runtime][0] == "torch" else models.onnx


def _require_cuda(machine: Machine, runtime: str, group: str) -> None:
    """Raise NotHere for a library that is installed without CUDA, where the group has GPUs of CUDA."""
    if group not in (GPU_AND_CORES, TWO_GPUS):
        return
    if runtime == "onnxruntime" and "CUDAExecutionProvider" not in machine.ask("onnxruntime"):
        raise NotHere("the installed onnxruntime has no CUDAExecutionProvider: install onnxruntime-gpu instead")
    if RUNTIMES[runtime][0] == "torch" and not machine.ask("torch")[1]:
        raise NotHere("PyTorch is built without CUDA")


def _run_split(machine: Machine, models: TinyModels, runtime: str, group: str) -> Found:
    """Run the two halves of a model on two devices, compare the outputs, and time them."""
    require_library(RUNTIMES[runtime][0])
    devices = find_group(machine, group)
    _require_cuda(machine, runtime, group)
    problem, placement = split_in_two(_model_of(models, runtime), devices.cluster)
    setting = Setting(runtime, devices.binding, protocol=PROTOCOL, seconds=SECONDS)
    found = measure_placements(problem, {PLAN: placement}, setting)
    plan, single = found.of(PLAN), found.single
    if plan.measurement.failure:
        raise RunError(plan.measurement.failure)
    ran = plan.realised
    if ran is not None and (ran.elsewhere or ran.idle):
        raise RunError(f"{', '.join(ran.elsewhere or ran.idle)} did not run where the plan has it")
    names = problem.cluster.names
    text = (
        f"{names[0]} and {names[1]} give the outputs of one device ({plan.difference:.2g} of the tolerance); "
        f"{format_seconds(plan.seconds)}, one device {format_seconds(single.seconds)}"
    )
    figures = {"seconds": plan.seconds, "one device": single.seconds, "difference": plan.difference}
    return text, figures


def _train(machine: Machine, models: TinyModels, group: str) -> Found:
    """Train the two halves of a model on two devices, and compare losses and gradients with one process."""
    require_library("torch")
    devices = find_group(machine, group)
    _require_cuda(machine, "pipelining", group)
    problem, placement = split_in_two(models.program, devices.cluster)
    options = TrainingOptions(steps=STEPS, compared=STEPS)
    trained = train_placement(problem, placement, options, TrainingRunSetting(devices.binding, seconds=SECONDS))
    names, record = problem.cluster.names, trained.record
    text = (
        f"{names[0]} and {names[1]} have the losses of one process in {STEPS} steps "
        f"(to {record.loss_difference:.2g}, gradients to {record.gradient_difference:.2g}); "
        f"{format_seconds(trained.seconds)} per step"
    )
    return text, {"seconds": trained.seconds, "difference": record.loss_difference}


def _profile(machine: Machine, models: TinyModels, runtime: str, group: str) -> Found:
    """Measure the ops of a model on each of two devices."""
    require_library(RUNTIMES[runtime][0])
    devices = find_group(machine, group)
    _require_cuda(machine, runtime, group)
    problem, _ = split_in_two(_model_of(models, runtime), devices.cluster)
    found = profile(problem, Profiling(runtime, devices.binding, repeats=3, seconds=SECONDS))
    missing = [name for name in problem.cluster.names if name not in {device.name for device in found.devices}]
    if missing:
        raise RunError(next((note for note in found.notes if note.startswith(missing[0])), f"no times of {missing[0]}"))
    whole = {device.name: device.idle.whole or 0.0 for device in found.devices}
    timed = min(sum(seconds is not None for seconds in device.idle.ops) for device in found.devices)
    said = ", ".join(f"{format_seconds(seconds)} on {name}" for name, seconds in whole.items())
    notes = [note for note in found.notes if "records no kernels" in note]
    return "; ".join([f"{timed} of {problem.n_ops} ops timed; the whole model {said}", *notes]), whole


def _measure_cores(machine: Machine) -> Found:
    """Measure memory, and transfers between the first and the last core."""
    if len(machine.cores) < 2:
        raise NotHere("this process may use one processor only")
    devices = find_group(machine, TWO_CORES)
    links = measure_links(devices.cluster, bind(devices.cluster, devices.binding), seconds=SECONDS)
    pair = next(iter(links.latency))
    rate, latency = links.bandwidth[pair].value, links.latency[pair].value
    memory = next(iter(links.alone.values())).value
    text = f"{format_seconds(latency)} and {format_bytes(rate)}/s from core to core; memory {format_bytes(memory)}/s"
    return text, {"latency": latency, "bandwidth": rate, "memory": memory}


def _measure_gpus(machine: Machine) -> Found:
    """Copies between pinned memory and each GPU, and between GPUs."""
    numbers = _torch_gpus(machine)
    rates: dict[str, Any] = machine.ask("copies", numbers)
    shown = [
        f"{name} {format_bytes(rate)}/s" if " to " in name and not name.startswith("direct")
        else f"{name}: {'yes' if rate else 'no'}"
        for name, rate in rates.items()
    ]  # fmt: skip
    return ", ".join(shown), rates


def _measure_memory(machine: Machine) -> Found:
    """Whether PyTorch counts the memory of a GPU as it is taken and given back."""
    number = _torch_gpus(machine)[0]
    held, most, after = machine.ask("memory", number)
    if after or most < held or held <= 0:
        raise RunError(f"PyTorch counts {held} bytes held, at most {most}, and {after} after they were freed")
    return f"a tensor takes {format_bytes(held)} of cuda:{number}, and gives them back", {"held": held, "most": most}


def _torch_gpus(machine: Machine) -> list[int]:
    """The numbers of the GPUs that PyTorch uses. Raises NotHere."""
    if not machine.gpus:
        raise NotHere(machine.why_no_gpu)
    require_library("torch")
    if not machine.ask("torch")[1]:
        raise NotHere("PyTorch is built without CUDA")
    return [gpu.number for gpu in machine.gpus]


def _export(models: TinyModels, target: str) -> Found:
    """Write a plan for a tool and read it back."""
    info = targets.create_exporter(target).info
    if target not in EXPORTS:
        raise NotHere(f"none of the tiny models is for it: it takes {info.takes}")
    model, devices = EXPORTS[target]
    problem, placement = split_in_two(models.program if model == "program" else models.onnx, read_cluster(devices))
    made = export_placement(problem, placement, target)
    count = len(made.exported.files)
    return f"{count} {'file' if count == 1 else 'files'}, read back as the same placement", {"files": count}
