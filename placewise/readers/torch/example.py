"""Prepare a module and its example inputs for tracing: unwrapped, on one device, with the requested sizes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from placewise.errors import InputError
from placewise.readers.torch.sizes import BATCH

_MAX_DEPTH = 6


@dataclass(frozen=True, slots=True)
class Example:
    """A module with example inputs of one call."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def is_meta(self) -> bool:
        """Whether a weight of the module is on the meta device."""
        return any(tensor.is_meta for tensor in weights_of(self.module))

    @property
    def has_data(self) -> bool:
        """Whether all weights have data: False for meta and fake tensors."""
        return not any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in weights_of(self.module))


def unwrap_module(module: Any) -> nn.Module:
    """The module inside wrappers of torch.compile or data parallelism. Raises InputError if it is not a module."""
    seen: set[int] = set()
    while id(module) not in seen:
        seen.add(id(module))
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod  # noqa: SLF001
        elif isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            module = module.module
    if not isinstance(module, nn.Module):
        raise InputError(f"{type(module).__name__} is not an nn.Module", remedy="give a module with example inputs")
    return module


def weights_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """All distinct parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def prepare_example(module: nn.Module, args: Any, kwargs: Any, dims: Mapping[str, int]) -> Example:
    """The example with inputs resized to `dims`, and on the meta device if the module is there.

    Raises InputError for inputs that forward does not accept, and for unknown dimensions.
    """
    args = (args,) if isinstance(args, torch.Tensor) else args
    if isinstance(args, (str, Mapping)) or not isinstance(args, Sequence) or not isinstance(kwargs, Mapping):
        raise InputError("example inputs are not a tuple and a mapping", remedy="give args=(x, …) and kwargs={…}")
    args, kwargs = pytree.tree_map_only(np.ndarray, torch.as_tensor, (tuple(args), dict(kwargs)))
    example = Example(module, args, kwargs)
    signature = _signature(module)
    try:
        if signature is not None:
            signature.bind(*example.args, **example.kwargs)
    except TypeError as error:
        raise InputError(f"forward does not take these inputs ({error})", remedy="give one for each argument") from None
    for name, number in dims.items():
        for place in _batch_axes(example) if name == BATCH else [name]:
            example = _resize_input(example, place, number)
    if not any(tensor.is_meta for tensor in weights_of(module)):
        return example
    on_meta = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (example.args, dict(example.kwargs)))
    return Example(module, *on_meta)


def named_inputs(example: Example) -> list[tuple[str, int | str, Any]]:
    """The inputs of forward: name, position or keyword, and value."""
    signature = _signature(example.module)
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [] if signature is None else [key for key, item in signature.parameters.items() if item.kind in plain]
    names += [f"args_{place}" for place in range(len(example.args) - len(names))]
    inputs: list[tuple[str, int | str, Any]] = [
        (name, place, value) for place, (name, value) in enumerate(zip(names, example.args, strict=False))
    ]
    return [*inputs, *((name, name, value) for name, value in example.kwargs.items())]


def _signature(module: nn.Module) -> inspect.Signature | None:
    """The signature of forward; None if it is compiled."""
    try:
        return inspect.signature(module.forward)
    except (ValueError, TypeError):
        return None


def _batch_axes(example: Example) -> list[str]:
    """The first axes that are as long as that of the first input; ``batch`` itself if there are none."""
    sizes = {name: value.shape[0] for name, _, value in named_inputs(example) if _is_tensor(value) and value.dim()}
    return [f"{name}:0" for name, size in sizes.items() if size == next(iter(sizes.values()))] or [BATCH]


def _resize_input(example: Example, name: str, number: int) -> Example:
    argument, _, axis = name.rpartition(":")
    inputs = named_inputs(example)
    place, tensor = next(((place, value) for called, place, value in inputs if called == argument), ("", None))
    if not isinstance(tensor, torch.Tensor) or not axis.isdecimal() or int(axis) >= tensor.dim():
        known = [f"{key}:{axis}" for key, _, value in inputs if _is_tensor(value) for axis in range(value.dim())]
        raise InputError(f"no input has the dimension {name!r}", remedy=f"there are {', '.join(known) or 'none'}")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InputError(f"dimension {name!r} is {number!r}", remedy="give a whole number from 1")
    if not tensor.shape[int(axis)]:
        raise InputError(f"dimension {name!r} of the example is empty", remedy="give an example with an entry")
    rows = torch.arange(number, device=tensor.device) % tensor.shape[int(axis)]
    sized = tensor.index_select(int(axis), rows)
    if isinstance(place, str):
        return replace(example, kwargs={**example.kwargs, place: sized})
    return replace(example, args=(*example.args[:place], sized, *example.args[place + 1 :]))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def fake_example(example: Example) -> Example:
    """The example with fake CPU tensors, for modules on meta that create CPU tensors."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    known: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            with mode:
                empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
            known[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
        return known[id(tensor)]

    module = copy.deepcopy(example.module)
    for part in module.modules():
        for table in (part._parameters, part._buffers):  # noqa: SLF001
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = fake(tensor)  # type: ignore[assignment]
    args, kwargs = pytree.tree_map_only(torch.Tensor, fake, (example.args, dict(example.kwargs)))
    return Example(module, args, kwargs)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a nested result of sequences, mappings, dataclasses and other objects."""
    tensors: list[torch.Tensor] = []
    seen: set[int] = set()

    def visit(item: Any, depth: int) -> None:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
        elif depth < _MAX_DEPTH and id(item) not in seen and not isinstance(item, (str, bytes, int, float, nn.Module)):
            seen.add(id(item))
            for part in _children(item):
                visit(part, depth + 1)

    visit(value, 0)
    return tensors


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set)):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return list(vars(value).values()) if hasattr(value, "__dict__") and not callable(value) else []
