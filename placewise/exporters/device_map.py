"""Accelerate and transformers: the `device_map` of `from_pretrained` and `dispatch_model`, a device per module."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from functools import lru_cache

import numpy as np

from placewise.core.open_model import open_model, replayed
from placewise.core.options import NO_OPTIONS
from placewise.core.target_rules import keep_off
from placewise.errors import ExportError, InputError
from placewise.exporters.base import Exported, ExportInfo, ExportOption, OptionValues, asked_precision
from placewise.exporters.module_units import (
    NUMBERED,
    Modules,
    ModuleUnits,
    SplitInputsError,
    compress_keys,
    find_modules,
    find_units,
    locate_ops,
)
from placewise.exporters.projection import project_units
from placewise.exporters.space import Space, pinned, sets_of, sharing
from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem

FILE = "device_map.json"
_FORMATS = ("torch-export", "torch-module", "torch-modules", "huggingface")
Value = int | str
_LOADED_SO = {
    "fp32": "dtype=torch.float32",
    "fp16": "dtype=torch.float16",
    "bf16": "dtype=torch.bfloat16",
    "int8": "quantization_config=BitsAndBytesConfig(load_in_8bit=True)",
    "int4": "quantization_config=BitsAndBytesConfig(load_in_4bit=True)",
}
"""What from_pretrained takes for each precision."""
_OTHERS = re.compile(r"(xpu|mps|npu|mlu|hpu|musa|sdaa|neuron)(:\d+)?")


class DeviceMapExporter:
    """A map from full module names to GPU numbers, ``cpu`` or ``disk``."""

    info = ExportInfo(
        "device-map",
        writes=f"{FILE}: module → device",
        loaded_by="Accelerate 1.15 and transformers 5.23, as device_map=json.load(open(...))",
        verified="executed",
        cannot_say="less than a module; replicas; a CPU beside GPUs that computes: Accelerate keeps such weights in "
        "host memory or on disk and moves them to a GPU whenever they are needed",
        disk=True,
        takes="PyTorch modules, torch.export programs and Hugging Face configurations, whose ops know their modules",
        suffix=".json",
        precisions=tuple(_LOADED_SO),
        options={"whole": ExportOption(NUMBERED, "a regular expression that finds, in paths, modules not to be split")},
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        modules, raw = _require_modules(problem.graph, str(options["whole"]))
        mapping, projected = map_modules(problem, placement, modules)
        notes = [f"modules on {name} are moved to a GPU to compute" for name in _offload_hosts(problem, projected)]
        if not raw:
            notes.append("the model is not at hand: weights that no op reads are not in the map")
        if wanted := _LOADED_SO.get(asked_precision(problem)):
            notes.append(f"load the model with {wanted}, as the plan prices it")
        return Exported({FILE: json.dumps(mapping, indent=2) + "\n"}, projected, tuple(notes))

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`: a problem for every GPU that may be the first, and one without GPUs.

        What meets the model's inputs is on the first GPU in use.
        """
        modules, _ = _require_modules(problem.graph, NUMBERED)
        units = find_units(problem.graph, modules)
        shared = sharing(problem, sets_of(units.label))
        values = _device_values(problem, Placement(np.flatnonzero(problem.allowed.any(axis=0)).astype(np.int32)))
        hosts = np.flatnonzero(problem.cluster.is_host)
        gpus = sorted(set(values) - set(hosts.tolist()), key=lambda device: _rank(values[device]))
        main = np.flatnonzero(units.label == units.main)
        parts = []
        for place, gpu in enumerate(gpus):
            part = keep_off(shared, gpus[:place])
            parts.append(pinned(part, int(main[0]), gpu) if len(main) else part)
        return Space(problems=(*parts, keep_off(shared, gpus)) if len(hosts) else tuple(parts))

    def project(self, problem: Problem, placement: Placement) -> Placement:
        return map_modules(problem, placement, _require_modules(problem.graph, NUMBERED)[0])[1]

    def project_known(self, problem: Problem, placement: Placement) -> Placement:
        """As `project`, without reading the model again: only weights that no op reads can make a difference."""
        graph = problem.graph
        if graph.source is not None and graph.source.format not in _FORMATS:
            raise ExportError("the modules of this model are not PyTorch's", remedy=f"it takes {self.info.takes}")
        modules = find_modules(graph)
        if not modules.tensors:
            raise ExportError("none of the weights of this model belongs to a module", remedy="give the model itself")
        return map_modules(problem, placement, modules)[1]

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        return read_map(problem, json.loads(str(exported.files[FILE]), object_pairs_hook=_reject_duplicates))


def map_modules(
    problem: Problem, placement: Placement, modules: Modules, units: ModuleUnits | None = None
) -> tuple[dict[str, Value], Placement]:
    """The map nearest to a placement, and the placement that it stands for. Raises ExportError."""
    graph = problem.graph
    units = units or find_units(graph, modules)
    values = _device_values(problem, placement)
    forced: dict[int, int] = {}
    for _ in range(2):
        projected = project_units(problem, placement, units.label, forced=forced)
        keys = compress_keys(graph, units, projected.device)
        main = _main_device(keys, values)
        here = projected.device[units.label == units.main]
        if units.main not in set(units.unit_label) or (here == main).all():
            break
        forced = {units.main: main}
    try:
        device = locate_ops(graph, keys, main)
    except SplitInputsError as error:
        raise _refuse_split(problem, error) from None
    return {key: values[home] for key, home in keys.items()}, Placement(device)


def _main_device(keys: dict[str, int], values: dict[int, Value]) -> int:
    """The device to which Accelerate moves the model's inputs: the first GPU in use, else the CPU."""
    return min(keys.values(), key=lambda device: _rank(values[device]))


def _rank(value: Value) -> tuple[bool, str]:
    """By which devices are ordered: GPUs by number, then hosts."""
    return value in ("cpu", "disk"), str(value).zfill(9)


@lru_cache(maxsize=1)
def _require_modules(graph: Graph, pattern: str) -> tuple[Modules, bool]:
    """The modules of a model, and whether the model could be read for them. Raises ExportError if it has none.

    The last answer is kept: many placements of a model are projected one after the other.
    """
    if graph.source is not None and graph.source.format not in _FORMATS:
        raise ExportError(
            "the modules of this model are not PyTorch's", remedy=f"it takes {DeviceMapExporter.info.takes}"
        )
    raw = _read_raw(graph)
    try:
        modules = find_modules(raw or graph, pattern)
    except InputError as error:
        raise ExportError(f"the option 'whole': {error}") from None
    if not modules.tensors:
        raise ExportError("none of the weights of this model belongs to a module", remedy="give the model itself")
    return modules, raw is not None


def _device_values(problem: Problem, placement: Placement) -> dict[int, Value]:
    """Accelerate's name of each device. Raises ExportError if the placement uses a device that it does not know."""
    values: dict[int, Value] = {}
    for number, device in enumerate(problem.cluster):
        match = re.fullmatch(r"cuda:(\d{1,9})", device.name)
        if match:
            values[number] = int(match[1])
        elif device.is_host and (name := "disk" if device.kind == "disk" else "cpu") not in values.values():
            values[number] = name
        elif _OTHERS.fullmatch(device.name):
            values[number] = device.name
    unknown = next((device for device in np.unique(placement.device).tolist() if device not in values), None)
    if unknown is not None:
        remedy = "name accelerators cuda:0, cuda:1, …, or xpu, mps, npu"
        raise ExportError(f"Accelerate knows no device {problem.cluster.names[unknown]!r}", remedy=remedy)
    return values


def read_map(problem: Problem, mapping: dict[str, Value]) -> Ints:
    """The device of each op [n_ops] under a map. Raises ExportError."""
    values = _device_values(problem, Placement.on(0, 0))
    device_of = {value: device for device, value in reversed(values.items())}
    for key, value in mapping.items():
        if value not in device_of:
            raise ExportError(f"{key!r} is on {value!r}, which is not in the cluster")
        if any(other != key and (not other or key.startswith(f"{other}.")) for other in mapping):
            raise ExportError(f"{key!r} is in the map twice, once inside another module")
    keys = {key: device_of[value] for key, value in mapping.items()}
    try:
        return locate_ops(problem.graph, keys, _main_device(keys, values))
    except SplitInputsError as error:
        raise _refuse_split(problem, error) from None


def _refuse_split(problem: Problem, error: SplitInputsError) -> ExportError:
    names = problem.cluster.names
    read = " and ".join(f"{what} on {names[device]}" for what, device in error.read.items() if device >= 0)
    remedy = "keep these on one device (--no-split)"
    return ExportError(f"the op {error.op!r}, which is in no module of the map, reads {read}", remedy=remedy)


def _read_raw(graph: Graph) -> Graph | None:
    """The raw view of the model, with all its weights, if its file can be read again."""
    source = graph.source
    if source is None or source.format not in ("torch-export", "huggingface") or not source.path:
        return None
    if not source.path.startswith("hf:") and not os.path.exists(source.path):
        return None
    try:
        options = replace(replayed(NO_OPTIONS, source), view="raw", graph=None, precision=None, tf32=None)
        return open_model(source.path, options).graph
    except InputError:
        return None


def _offload_hosts(problem: Problem, placement: Placement) -> list[str]:
    """The hosts that only store weights, since accelerators compute."""
    used = np.unique(placement.device).tolist()
    hosts = [problem.cluster.names[device] for device in used if problem.cluster.devices[device].is_host]
    return hosts if len(used) > len(hosts) else []


def _reject_duplicates(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    if len(dict(pairs)) < len(pairs):
        raise ExportError("a module is in the map twice")
    return dict(pairs)
