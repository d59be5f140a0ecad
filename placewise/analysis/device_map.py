"""device_map(): a map of modules to devices for Accelerate and transformers, in the place of a greedy fill."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from placewise._util.units import parse_seconds
from placewise.catalog import read_cluster
from placewise.core.build import Devices, build
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.errors import InputError, MissingExtraError
from placewise.export.device_map import Value, mapped
from placewise.export.modules import NUMBERED, Modules, sets_of, units_of, whole_modules
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

    `model` is an nn.Module, on the meta device or with data; nothing of it is changed. `max_memory` gives bytes per
    device as Accelerate does, ``{0: "20GiB", 1: "20GiB", "cpu": "60GiB", "disk": "1TB"}`` (0 bytes: not this one), or
    devices as `place` takes them, whose speeds and links then count. Instances of
    `no_split_module_classes` stay whole, none if it is empty; by default those that the model itself names
    (``_no_split_modules``), else the layers of lists of layers. `dtype` and `special_dtypes` (by full name) are the
    types that weights will be loaded in. Tied weights stay on one device.

    Activations count, at the sizes of the `example_inputs` (a tuple, or a mapping by name; by default the
    ``dummy_inputs`` of transformers, a few tokens): give those of your real batch. `headroom` of every GPU stays free.
    `objective` "latency" uses as few devices as is fastest for one request, "throughput" fills them evenly. With
    `offload`, weights may stay on the CPU if GPUs are too small, and on disk if all memory is. A `budget` of seconds
    ends a search where it is by then; with None it does its own amount of work, and equal arguments give equal maps.

    Every parameter and buffer is in the map once. Raises InputError where nothing fits: it says what is missing.
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
    """The same with the result that the map says: predicted seconds, bound, and what every device holds."""
    weightless = _weightless(model, dtype, special_dtypes or {})
    modules = _modules(weightless, no_split_module_classes)
    cluster = _cluster(max_memory)
    share: Any = headroom
    options = ProblemOptions(
        objective=objective, headroom=share, execution="sequential" if objective == "latency" else None
    )
    reading = open_model(weightless, options, _inputs(model, example_inputs))
    units = units_of(reading.graph, modules)
    options = replace(options, together=sets_of(reading.graph, units))
    given = budget if isinstance(budget, Budget) else Budget() if budget is None else Budget(parse_seconds(budget))
    for attempt in _attempts(options, cluster, offload):
        result = place(build(reading, cluster, attempt), "auto", given)
        if result.placement is not None:
            break
    if result.placement is None:
        remedy = "give more memory, smaller inputs, less headroom, or modules that may be split"
        if result.unmet:
            raise InputError(f"no device map exists: {result.unmet}", remedy=remedy)
        raise InputError("no device map was found in time", remedy=f"give a longer budget; or {remedy}")
    mapping, said = mapped(result.problem, result.placement, modules, units)
    return mapping, replace(result, placement=said)


def _attempts(options: ProblemOptions, cluster: Cluster, offload: bool) -> list[ProblemOptions]:
    """What to try, one after the other: stages in a chain, any stages; no CPU beside accelerators, one, a disk too."""
    chains = [True, False] if options.objective == "throughput" else [None]
    hosts = tuple(Rule("", device.name) for device in cluster if device.is_host and not cluster.is_host.all())
    disks = tuple(Rule("", device.name) for device in cluster if device.kind == "disk")
    rules = list(dict.fromkeys([hosts or disks, disks, ()])) if offload else [hosts or disks]
    return [replace(options, contiguous=chain, forbid=rule) for rule in rules for chain in chains]


def _weightless(model: Any, dtype: Any, special: Mapping[str, Any]) -> Any:
    """A copy on the meta device, which holds no data, with its weights in the types that they will be loaded in."""
    try:
        import torch

        from placewise.readers.torch.example import unwrap_module
    except ImportError:
        raise MissingExtraError("a device map", "torch") from None
    module = unwrap_module(model)
    memo: dict[int, Any] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        wished = special.get(name, dtype) if tensor.is_floating_point() or name in special else None
        made = torch.empty_like(tensor, device="meta", dtype=_dtype(wished))
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, tensor.requires_grad and made.is_floating_point())
        memo.setdefault(id(tensor), made)
    return copy.deepcopy(module, memo)


def _dtype(wished: Any) -> Any:
    """An element type of PyTorch, also by its name. Raises InputError."""
    import torch

    if wished is None or isinstance(wished, torch.dtype):
        return wished
    found = getattr(torch, str(wished).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise InputError(f"dtype is {wished!r}", remedy="give an element type of PyTorch, such as 'float16'")
    return found


def _modules(module: Any, classes: Collection[str] | str | None) -> Modules:
    """The tensors of a module, those that are one under both names, and which modules stay whole."""
    named = dict(module.named_modules(remove_duplicate=False))
    tensors: dict[str, object] = {}
    for path, part in named.items():
        for table in (part._parameters, part._buffers):  # noqa: SLF001
            tensors |= {f"{path}.{name}".lstrip("."): id(value) for name, value in table.items() if value is not None}
    if classes is None:
        known = [part._no_split_modules or () for part in named.values() if hasattr(part, "_no_split_modules")]  # noqa: SLF001
        classes = {name for names in known for name in names}
        if not classes:
            return Modules(tuple(tensors), frozenset(whole_modules(named, NUMBERED)), tensors)
    classes = {classes} if isinstance(classes, str) else set(classes)
    whole = {path for path, part in named.items() if path and type(part).__name__ in classes}
    return Modules(tuple(tensors), frozenset(whole), tensors)


def _inputs(model: Any, inputs: Any) -> Any:
    if inputs is not None:
        return inputs
    found = getattr(model, "dummy_inputs", None)
    if not found:
        remedy = "give example inputs of the size that will be run: inputs=(x,), or inputs={'input_ids': x}"
        raise InputError(f"a {type(model).__name__} says nothing of the shapes it works on", remedy=remedy)
    return dict(found)


def _cluster(memory: Devices) -> Cluster:
    if not isinstance(memory, Mapping):
        return memory if isinstance(memory, Cluster) else read_cluster(memory)
    used = {key: size for key, size in memory.items() if size not in (0, "0")}
    if not used:
        raise InputError("no device has any memory", remedy='give some, like {0: "20GiB", "cpu": "60GiB"}')
    return read_cluster(used)
