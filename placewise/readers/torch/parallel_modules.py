"""Split the modules of a live model over the devices of a mesh, by their paths: tensor parallelism.

Products and embeddings take PyTorch's own styles of `parallelize_module`; any other module with split weights, and
weights that consist of several matrices side by side, take `ShardedModule`.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.utils import _pytree as pytree

HEAD_COUNTS = (
    "num_heads", "num_attention_heads", "num_key_value_heads", "num_kv_heads", "n_heads", "n_head", "n_kv_heads",
    "all_head_size", "inner_dim", "split_size",
)  # fmt: skip
"""Attributes of attentions that count heads, or their widths together: each device has a part of them."""
WIDTHS = ("out_features", "out_channels", "nf")
"""Attributes of products that are as many as their results."""


class ModuleStyle(NamedTuple):
    """How one module is split: a style, and by name within the module, the split dimension of each split weight.

    `style` is colwise (a product or convolution by its results), rowwise (by its arguments; results are summed),
    embedding (by rows of the table; results are summed), heads (an attention) or follows. `parts` has the lengths of
    matrices side by side in a split dimension: each device has a part of each. With `gathers`, the split result is
    gathered at once. With sequence parallelism, sums are scattered along the dimension `scatters` (−1: they are not),
    and with `summands` gradients of what a colwise module reads stay summands.
    """

    style: str
    weights: Mapping[str, int]
    parts: Mapping[str, Sequence[int]] = {}
    gathers: bool = False
    scatters: int = -1
    summands: bool = False


class TokenGather(NamedTuple):
    """What a module takes by tokens and needs whole: a tensor of this `shape`, with tokens along `dim`.

    With `sums`, each device has a summand of its gradient, else all of it.
    """

    shape: Sequence[int]
    dim: int
    sums: bool


def split_modules(
    model: nn.Module,
    mesh: DeviceMesh,
    splits: Mapping[str, ModuleStyle],
    within: Sequence[str] = ("",),
    *,
    gathers: Mapping[str, Mapping[int, TokenGather]] = {},
    slices: Mapping[str, int] = {},
    results: Mapping[str, int] = {},
) -> None:
    """Split the modules at these paths over a one-dimensional mesh, in place, by `parallelize_module`.

    Modules that read the same tensor share its gradient's sum. Weights that are one stay one, as far as they are inside
    of modules at the paths `within`. With sequence parallelism, modules in `gathers` gather what they are given by
    tokens, by its place among their arguments (`find_arguments`), those in `slices` hand on the tokens of this device
    along a dimension of their result, and those in `results` gather theirs. Raises ValueError for a module that is not
    there or that cannot be split so.
    """
    if mesh.size() == 1:
        return
    for path, found in gathers.items():
        _gather_tokens(model.get_submodule(path), mesh, found)
    for path, dim in slices.items():
        _hand_on(model.get_submodule(path), mesh, Replicate(), Shard(dim))
    ties = [[name for name in names if is_inside(name, within)] for names in tied_parameters(model)]
    styles: dict[str, ParallelStyle] = {}
    for path, split in splits.items():
        try:
            module = model.get_submodule(path)
        except AttributeError:
            raise ValueError(f"the model has no module {path!r}") from None
        if split.style == "heads":
            _divide(module, HEAD_COUNTS, mesh.size())
        if split.weights:
            styles[path] = _choose_style(path, module, split)
    columns = {path: style for path, style in styles.items() if splits[path].style == "colwise"}
    _share_inputs(model, mesh, columns, {path for path in columns if splits[path].summands})
    parallelize_module(model, mesh, styles)
    for path, dim in results.items():
        _hand_on(model.get_submodule(path), mesh, Shard(dim), Replicate())
    _tie_again(model, ties)


def is_inside(path: str, parts: Sequence[str]) -> bool:
    """Whether a module or weight is that at one of these paths, or inside of it; "" is the whole model."""
    return any(not part or path == part or path.startswith(f"{part}.") for part in parts)


def whole_tensor(tensor: torch.Tensor, split: tuple[int, Sequence[int]] | None, mesh: DeviceMesh) -> torch.Tensor:
    """A weight, or its gradient, from the parts of all devices; `split` is the dimension and the lengths of parts."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    if split is None or mesh.size() == 1:
        return tensor
    dim, lengths = split
    shares = [torch.empty_like(tensor) for _ in range(mesh.size())]
    dist.all_gather(shares, tensor.contiguous(), group=mesh.get_group())
    own = [length // mesh.size() for length in lengths] or [tensor.shape[dim]]
    pieces = [torch.split(share, own, dim) for share in shares]
    return torch.cat([piece[number] for number in range(len(own)) for piece in pieces], dim)


class ShardedModule(ParallelStyle):
    """A module of any class on the parts of its weights: convolutions, norms of split channels, fused products.

    `colwise` reads whole arguments and makes a part of the results, `rowwise` sums the results of all devices, and
    `follows` computes on the part that a device has. With `scatters`, sums are scattered along that dimension.
    """

    def __init__(self, split: ModuleStyle) -> None:
        super().__init__()
        self.split = split

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        split, group = self.split, device_mesh.get_group()
        rank, size = device_mesh.get_local_rank(), device_mesh.size()
        for name, dim in split.weights.items():
            held = _take_share(getattr(module, name).detach(), dim, split.parts.get(name, ()), rank, size)
            if name in dict(module.named_buffers(recurse=False)):
                module.register_buffer(name, held)
            else:
                trains = getattr(module, name).requires_grad
                module.register_parameter(name, nn.Parameter(held, requires_grad=trains))
        _divide(module, ("num_groups",) if isinstance(module, nn.GroupNorm) else ("groups",), size)
        if split.style == "colwise":
            _divide(module, WIDTHS, size)
        if split.style == "rowwise":
            self._sum_results(module, device_mesh)
        if split.gathers:
            last = 1 if _is_convolution(module) else -1
            module.register_forward_hook(lambda _, __, result: _gather(result, group, last % result.dim()))
        return module

    def _sum_results(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Sum the results of all devices, and add the bias to the sum."""
        bias, group, dim = getattr(module, "bias", None), mesh.get_group(), self.split.scatters

        def total(result: torch.Tensor) -> torch.Tensor:
            return _sum(result, group) if dim < 0 else _change_layout(result, mesh, Partial(), Shard(dim))

        if bias is None:
            module.register_forward_hook(lambda _, __, result: total(result))
            return
        nothing: Any = torch.zeros_like(bias)
        inner = module.forward

        def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
            module._parameters["bias"] = nothing  # noqa: SLF001
            try:
                result = inner(*args, **kwargs)
            finally:  # recomputation stops in here as soon as it has what it needs
                module._parameters["bias"] = bias  # noqa: SLF001
            shape = [-1, *[1] * (result.dim() - 2)] if _is_convolution(module) else [-1]
            added = bias if dim < 0 else _copy(bias, group)
            return torch.add(total(result), added.reshape(shape))

        module.forward = forward


def _choose_style(path: str, module: nn.Module, split: ModuleStyle) -> ParallelStyle:
    plain = isinstance(module, nn.Linear) and not split.parts
    between = Replicate() if split.scatters < 0 else Shard(split.scatters)
    if split.style == "colwise" and plain:
        return ColwiseParallel(output_layouts=Replicate() if split.gathers else Shard(-1))
    if split.style == "rowwise" and plain:
        return RowwiseParallel(output_layouts=between)
    if split.style == "embedding" and isinstance(module, nn.Embedding):
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    opens_groups = split.style == "colwise" and int(getattr(module, "groups", 1)) > 1
    known = split.style in ("colwise", "rowwise", "follows")
    if not known or opens_groups or isinstance(module, nn.MultiheadAttention):
        raise ValueError(f"{path}, a {type(module).__name__}, cannot be split by {split.style}")
    return ShardedModule(split)


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.conv._ConvNd)  # noqa: SLF001


def _take_share(tensor: torch.Tensor, dim: int, parts: Sequence[int], rank: int, size: int) -> torch.Tensor:
    """The part of a device: of each of the matrices that stand side by side."""
    whole = torch.split(tensor, list(parts) or [tensor.shape[dim]], dim)
    for piece in whole:
        if piece.shape[dim] % size:
            raise ValueError(f"{piece.shape[dim]} rows or columns cannot be split over {size} devices")
    return torch.cat([piece.chunk(size, dim)[rank] for piece in whole], dim).contiguous()


def _divide(module: nn.Module, names: Sequence[str], size: int) -> None:
    """Divide those of the attributes that are numbers of this or more."""
    for name in names:
        count = getattr(module, name, None)
        if isinstance(count, int) and count >= size and count % size == 0:
            setattr(module, name, count // size)


def tied_parameters(model: nn.Module) -> list[tuple[str, ...]]:
    """Names of parameters that are one tensor, as those of tied embeddings."""
    names: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return [tuple(group) for group in names.values() if len(group) > 1]


def _tie_again(model: nn.Module, ties: Sequence[Sequence[str]]) -> None:
    """Let tied names have one parameter again: the split one, where a name that nobody reads is not split."""
    for names in filter(None, ties):
        held = max(map(model.get_parameter, names), key=lambda value: isinstance(value, DTensor))
        for name in names:
            if model.get_parameter(name).shape != held.shape:
                raise ValueError(f"{names[0]} and {name} are one weight and would be split in different ways")
            path, _, own = name.rpartition(".")
            model.get_submodule(path).register_parameter(own, held)


class _SharedInput:
    """The tensor that several modules read, made ready for all of them: its gradients are summed once.

    With `summands`, they stay summands: what gathered the tensor scatters their sum.
    """

    def __init__(self, mesh: DeviceMesh, readers: int, *, distributed: bool, summands: bool) -> None:
        self.mesh, self.readers, self.distributed, self.left = mesh, readers, distributed, 0
        self.summands = summands
        self.source: torch.Tensor | None = None
        self.shared: torch.Tensor | None = None

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        source = inputs[0]
        if source is not self.source or self.left == 0:
            self.source, self.left = source, self.readers
            if self.distributed:
                back = [Partial() if self.summands else Replicate()]
                self.shared = DTensor.from_local(source, self.mesh, [Replicate()], grad_placements=back)
            else:
                self.shared = source if self.summands else _copy(source, self.mesh.get_group())
        shared = self.shared
        self.left -= 1
        if self.left == 0:
            self.source = self.shared = None
        return (shared, *inputs[1:])


def _share_inputs(
    model: nn.Module, mesh: DeviceMesh, styles: Mapping[str, ParallelStyle], summands: Collection[str]
) -> None:
    """Let column-parallel modules of one parent share what they read; gradients of the `summands` are not summed."""
    siblings: dict[tuple[str, bool, bool], list[nn.Module]] = {}
    for path, style in styles.items():
        key = path.rpartition(".")[0], isinstance(style, ColwiseParallel), path in summands
        siblings.setdefault(key, []).append(model.get_submodule(path))
    for (_, distributed, apart), modules in siblings.items():
        shared = _SharedInput(mesh, len(modules), distributed=distributed, summands=apart)
        for module in modules:
            module.register_forward_pre_hook(shared)


def _gather_tokens(module: nn.Module, mesh: DeviceMesh, found: Mapping[int, TokenGather]) -> None:
    """Let a module gather what is at these places among its arguments, counted as pytree flattens them."""

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        given, spec = pytree.tree_flatten((args, kwargs))
        for place, one in found.items():
            back = Partial() if one.sums else Replicate()
            given[place] = _change_layout(given[place], mesh, Shard(one.dim), Replicate(), back)
        return pytree.tree_unflatten(given, spec)

    module.register_forward_pre_hook(before, with_kwargs=True)


def _hand_on(module: nn.Module, mesh: DeviceMesh, own: Placement, wanted: Placement) -> None:
    """Let a module hand on its result in another layout."""
    module.register_forward_hook(lambda _, __, result: _change_layout(result, mesh, own, wanted))


def take_tokens(mesh: DeviceMesh, dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from a whole tensor to the tokens of this device along `dim`."""
    return lambda value: _change_layout(value, mesh, Replicate(), Shard(dim))


def _change_layout(
    value: torch.Tensor, mesh: DeviceMesh, own: Placement, wanted: Placement, back: Placement | None = None
) -> torch.Tensor:
    """A tensor of this device in another layout; its gradient has the layout `back` (default: the wanted one)."""
    whole = DTensor.from_local(value, mesh, [own]).redistribute(placements=[wanted])
    return whole.to_local(grad_placements=None if back is None else [back])


class _Copy(torch.autograd.Function):
    """The same value on all devices; gradients are summed."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Sum(torch.autograd.Function):
    """The sum over all devices; each has its whole gradient already."""

    @staticmethod
    def forward(_: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        total = value.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Gather(torch.autograd.Function):
    """All parts side by side along `dim`; a device's gradient is that of its part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, value.contiguous(), group=group)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        own = gradient.chunk(dist.get_world_size(ctx.group), ctx.dim)[dist.get_rank(ctx.group)]
        return own, None, None


def _copy(value: torch.Tensor, group: Any) -> torch.Tensor:
    copied: torch.Tensor = _Copy.apply(value, group)  # type: ignore[no-untyped-call]
    return copied


def _sum(value: torch.Tensor, group: Any) -> torch.Tensor:
    total: torch.Tensor = _Sum.apply(value, group)  # type: ignore[no-untyped-call]
    return total


def _gather(value: torch.Tensor, group: Any, dim: int) -> torch.Tensor:
    gathered: torch.Tensor = _Gather.apply(value, group, dim)  # type: ignore[no-untyped-call]
    return gathered
