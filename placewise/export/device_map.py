"""Accelerate and transformers: a device for every module, as `device_map` of `from_pretrained` and `dispatch_model`."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

import numpy as np

from placewise.core.open_model import open_model, replayed
from placewise.core.options import NO_OPTIONS
from placewise.errors import ExportError, InputError
from placewise.export.base import Exported, ExportInfo, ExportOption, OptionValues
from placewise.export.module_units import (
    NUMBERED,
    Modules,
    ModuleUnits,
    SplitInputsError,
    compress_keys,
    find_modules,
    find_units,
    locate_ops,
)
from placewise.export.projection import nearest
from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem

FILE = "device_map.json"
_FORMATS = ("torch-export", "torch-module", "torch-modules", "huggingface")
Value = int | str
_OTHERS = re.compile(r"(xpu|mps|npu|mlu|hpu|musa|sdaa|neuron)(:\d+)?")


class DeviceMapExporter:
    """Keys are full names of modules, values numbers of GPUs, or ``cpu`` and ``disk``."""

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
        options={"whole": ExportOption(NUMBERED, "a regular expression that finds, in paths, modules not to be split")},
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`."""
        graph = problem.graph
        if graph.source is not None and graph.source.format not in _FORMATS:
            raise ExportError("the modules of this model are not PyTorch's", remedy=f"it takes {self.info.takes}")
        try:
            modules = find_modules(_raw(graph) or graph, str(options["whole"]))
        except InputError as error:
            raise ExportError(f"the option 'whole': {error}") from None
        if not modules.tensors:
            raise ExportError("none of the weights of this model belongs to a module", remedy="give the model itself")
        mapping, said = map_modules(problem, placement, modules)
        notes = [f"modules on {name} are moved to a GPU to compute" for name in _waits(problem, said)]
        if _raw(graph) is None:
            notes.append("the model is not at hand: weights that no op reads are not in the map")
        return Exported({FILE: json.dumps(mapping, indent=2) + "\n"}, said, tuple(notes))

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`."""
        return read_map(problem, json.loads(str(exported.files[FILE]), object_pairs_hook=_once))


def map_modules(
    problem: Problem, placement: Placement, modules: Modules, units: ModuleUnits | None = None
) -> tuple[dict[str, Value], Placement]:
    """The map nearest to a placement, and the placement that it says. Raises ExportError."""
    graph = problem.graph
    units = units or find_units(graph, modules)
    values = _values_of(problem, placement)
    forced: dict[int, int] = {}
    for _ in range(2):
        said = nearest(problem, placement, units.label, forced=forced)
        keys = compress_keys(graph, units, said.device)
        main = _main_of(keys, values)
        if units.main not in set(units.unit_label) or _is_main(units, said, main):
            break
        forced = {units.main: main}
    try:
        device = locate_ops(graph, keys, main)
    except SplitInputsError as apart:
        raise _refused(problem, apart) from None
    return {key: values[home] for key, home in keys.items()}, Placement(device)


def _is_main(units: ModuleUnits, said: Placement, main: int) -> bool:
    """Whether what meets the model's inputs between modules is on the device that these are moved to."""
    here = said.device[units.label == units.main]
    return not len(here) or bool((here == main).all())


def _main_of(keys: dict[str, int], values: dict[int, Value]) -> int:
    """The device that Accelerate moves the model's inputs to: the first GPU in use, else the CPU."""
    return min(keys.values(), key=lambda device: (values[device] in ("cpu", "disk"), str(values[device]).zfill(9)))


def _values_of(problem: Problem, placement: Placement) -> dict[int, Value]:
    """What Accelerate calls each device of the cluster. Raises ExportError for one that a placement uses in vain."""
    found: dict[int, Value] = {}
    for number, device in enumerate(problem.cluster):
        match = re.fullmatch(r"cuda:(\d{1,9})", device.name)
        if match:
            found[number] = int(match[1])
        elif device.is_host and (name := "disk" if device.kind == "disk" else "cpu") not in found.values():
            found[number] = name
        elif _OTHERS.fullmatch(device.name):
            found[number] = device.name
    used = np.unique(placement.device).tolist()
    for number in used:
        name = problem.cluster.names[number]
        if number not in found:
            remedy = "name accelerators cuda:0, cuda:1, …, or xpu, mps, npu"
            raise ExportError(f"Accelerate knows no device {name!r}", remedy=remedy)
    return found


def read_map(problem: Problem, said: dict[str, Value]) -> Ints:
    """The device of each op [n_ops] as a map says it. Raises ExportError."""
    values = _values_of(problem, Placement.on(0, 0))
    device_of = {value: device for device, value in reversed(values.items())}
    for key, value in said.items():
        if value not in device_of:
            raise ExportError(f"{key!r} is on {value!r}, which the cluster has not")
        if any(other != key and (not other or key.startswith(f"{other}.")) for other in said):
            raise ExportError(f"{key!r} is in the map twice, once inside another module")
    keys = {key: device_of[value] for key, value in said.items()}
    try:
        return locate_ops(problem.graph, keys, _main_of(keys, values))
    except SplitInputsError as apart:
        raise _refused(problem, apart) from None


def _refused(problem: Problem, apart: SplitInputsError) -> ExportError:
    names = problem.cluster.names
    read = " and ".join(f"{what} on {names[device]}" for what, device in apart.read.items() if device >= 0)
    remedy = "keep these on one device (--no-split)"
    return ExportError(f"the op {apart.op!r}, which is in no module of the map, reads {read}", remedy=remedy)


def _raw(graph: Graph) -> Graph | None:
    """The model with all its weights, if its file can be read again."""
    source = graph.source
    if source is None or source.format not in ("torch-export", "huggingface") or not source.path:
        return None
    if not source.path.startswith("hf:") and not os.path.exists(source.path):
        return None
    try:
        return open_model(source.path, replace(replayed(NO_OPTIONS, source), view="raw", graph=None)).graph
    except InputError:
        return None


def _waits(problem: Problem, placement: Placement) -> list[str]:
    used = np.unique(placement.device).tolist()
    hosts = [problem.cluster.names[device] for device in used if problem.cluster.devices[device].is_host]
    return hosts if len(used) > len(hosts) else []


def _once(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    if len(dict(pairs)) < len(pairs):
        raise ExportError("a module is in the map twice")
    return dict(pairs)
