"""A map of modules to devices for Accelerate and transformers, as an alternative to their greedy fill."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from placewise.catalog import read_cluster
from placewise.core.build import Devices, build
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.core.search_limits import budget_from
from placewise.errors import InputError, MissingExtraError
from placewise.exporters.device_map import Value, map_modules
from placewise.exporters.module_units import NUMBERED, Modules, colocated_ops, find_units, find_whole_modules
from placewise.model.cluster import Cluster
from placewise.model.problem import Rule
from placewise.model.result import Result
from placewise.placers.base import Budget


def device_map(
    model: Any,
    max_memory: Devices = "this",
    no_split_module_classes: Collection[str] | str | None = None,
    dtype: Any = None,
    special_dtypes: Mapping[str, Any] | None = None,
    *,
    example_inputs: Any = None,
    objective: str = "latency",
    headroom: float | str = "10%",
    offload: bool = True,
    budget: Budget | float | str | None = "20s",
) -> dict[str, Value]:
    """Which device gets which module of `model`: what Accelerate and transformers take as ``device_map``.

    `model` is an nn.Module, on the meta device or with data; it is not changed. `max_memory` gives bytes per device as
    Accelerate does, ``{0: "20GiB", 1: "20GiB", "cpu": "60GiB", "disk": "1TB"}`` (0 bytes: do not use it), or devices as
    `place` takes them, whose speeds and links then count. Instances of `no_split_module_classes` stay whole, none if
    it is empty; by default those that the model itself names (``_no_split_modules``), else the numbered layers.
    `dtype` and `special_dtypes` (by full name) are the types in which the weights will be loaded. Tied weights stay on
    one device.

    Activations count, at the sizes of the `example_inputs` (a tuple, or a mapping by name; by default the
    ``dummy_inputs`` of transformers, a few tokens): pass those of your real batch. `headroom` of every GPU stays free.
    `objective` "latency" uses as few devices as is fastest for one request, "throughput" fills them evenly. With
    `offload`, weights may stay on the CPU if the GPUs are too small, and on disk if all memory is. A `budget` in
    seconds stops the search; with None, the search does a fixed amount of work, and equal arguments give equal maps.

    Every parameter and buffer is in the map once. Raises InputError if nothing fits, and says what is missing.
    """
    mapping, _ = device_map_of(
        model, max_memory, no_split_module_classes, dtype, special_dtypes,
        example_inputs=example_inputs, objective=objective, headroom=headroom, offload=offload, budget=budget,
    )  # fmt: skip
    return mapping


def device_map_of(
    model: Any,
    max_memory: Devices = "this",
    no_split_module_classes: Collection[str] | str | None = None,
    dtype: Any = None,
    special_dtypes: Mapping[str, Any] | None = None,
    *,
    example_inputs: Any = None,
    objective: str = "latency",
    headroom: float | str = "10%",
    offload: bool = True,
    budget: Budget | float | str | None = "20s",
) -> tuple[dict[str, Value], Result]:
    """The map of `device_map`, and its result: predicted seconds, bound, and what every device holds."""
    on_meta = _copy_to_meta(model, dtype, special_dtypes or {})
    modules = _list_modules(on_meta, no_split_module_classes)
    cluster = _read_memory(max_memory)
    share: Any = headroom
    execution = "sequential" if objective == "latency" else None
    options = ProblemOptions(objective=objective, headroom=share, execution=execution)
    imported = open_model(on_meta, options, _example_inputs(model, example_inputs))
    units = find_units(imported.graph, modules)
    options = replace(options, together=colocated_ops(imported.graph, units))
    limits = budget_from(budget=budget)
    for attempt in _list_attempts(options, cluster, offload):
        result = place(build(imported, cluster, attempt), "auto", limits)
        if result.placement is not None:
            break
    if result.placement is None:
        remedy = "give more memory, smaller inputs, less headroom, or modules that may be split"
        if result.unmet:
            raise InputError(f"no device map exists: {result.unmet}", remedy=remedy)
        raise InputError("the search found no device map in time", remedy=f"give a longer budget; or {remedy}")
    mapping, placement = map_modules(result.problem, result.placement, modules, units)
    return mapping, replace(result, placement=placement)


def _list_attempts(options: ProblemOptions, cluster: Cluster, offload: bool) -> list[ProblemOptions]:
    """Options to try in turn: chained stages, then any; accelerators only, then with the CPU, then with the disk."""
    chains = [True, False] if options.objective == "throughput" else [None]
    hosts = tuple(Rule("", device.name) for device in cluster if device.is_host and not cluster.is_host.all())
    disks = tuple(Rule("", device.name) for device in cluster if device.kind == "disk")
    rules = list(dict.fromkeys([hosts or disks, disks, ()])) if offload else [hosts or disks]
    return [replace(options, contiguous=chain, forbid=rule) for rule in rules for chain in chains]


def _copy_to_meta(model: Any, dtype: Any, special: Mapping[str, Any]) -> Any:
    """A copy on the meta device, without data, with its weights in the types in which they will be loaded."""
    try:
        import torch

        from placewise.readers.torch.example import unwrap_module
    except ImportError:
        raise MissingExtraError("a device map", "torch") from None
    module = unwrap_module(model)
    memo: dict[int, Any] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        target = special.get(name, dtype) if tensor.is_floating_point() or name in special else None
        empty = torch.empty_like(tensor, device="meta", dtype=_parse_dtype(target))
        if isinstance(tensor, torch.nn.Parameter):
            empty = torch.nn.Parameter(empty, tensor.requires_grad and empty.is_floating_point())
        memo.setdefault(id(tensor), empty)
    return copy.deepcopy(module, memo)


def _parse_dtype(value: Any) -> Any:
    """An element type of PyTorch, from itself or its name. Raises InputError."""
    import torch

    dtype = value if value is None else getattr(torch, str(value).removeprefix("torch."), value)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise InputError(f"dtype is {value!r}", remedy="give an element type of PyTorch, such as 'float16'")
    return dtype


def _list_modules(module: Any, classes: Collection[str] | str | None) -> Modules:
    """The tensors of a module, their storages, and the submodules that stay whole."""
    named = dict(module.named_modules(remove_duplicate=False))
    tensors: dict[str, object] = {}
    for path, part in named.items():
        for table in (part._parameters, part._buffers):  # noqa: SLF001
            tensors |= {f"{path}.{name}".lstrip("."): id(value) for name, value in table.items() if value is not None}
    if classes is None:
        known = [part._no_split_modules or () for part in named.values() if hasattr(part, "_no_split_modules")]  # noqa: SLF001
        classes = {name for names in known for name in names}
        if not classes:
            return Modules(tuple(tensors), frozenset(find_whole_modules(named, NUMBERED)), tensors)
    classes = {classes} if isinstance(classes, str) else set(classes)
    whole = {path for path, part in named.items() if path and type(part).__name__ in classes}
    return Modules(tuple(tensors), frozenset(whole), tensors)


def _example_inputs(model: Any, inputs: Any) -> Any:
    if inputs is not None:
        return inputs
    dummies = getattr(model, "dummy_inputs", None)
    if not dummies:
        remedy = "give some of the size that will be run: example_inputs=(x,), or example_inputs={'input_ids': x}"
        raise InputError(f"a {type(model).__name__} does not say the shapes of its inputs", remedy=remedy)
    return dict(dummies)


def _read_memory(memory: Devices) -> Cluster:
    if not isinstance(memory, Mapping):
        return memory if isinstance(memory, Cluster) else read_cluster(memory)
    used = {key: size for key, size in memory.items() if size not in (0, "0")}
    if not used:
        raise InputError("no device has any memory", remedy='give some, like {0: "20GiB", "cpu": "60GiB"}')
    return read_cluster(used)
