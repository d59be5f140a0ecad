"""A live model that runs as a plan with stages says: tensor, data and pipeline parallel, with recomputation.

This module and those that it imports depend on PyTorch only: exports contain copies of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from placewise.readers.torch.cutting import MicrobatchStage, Value
from placewise.readers.torch.gradient_exchange import reduce_in_buckets
from placewise.readers.torch.parallel_modules import (
    ModuleStyle,
    TokenGather,
    is_inside,
    split_modules,
    take_tokens,
    tied_parameters,
    whole_tensor,
)
from placewise.readers.torch.stage_modules import (
    ModulePlan,
    StageModule,
    build_stage_module,
    callable_modules,
    checkpoint_modules,
    export_model,
    find_arguments,
)

Loss = Callable[[Any, Any], torch.Tensor]


class ParallelModel:
    """The part of a model that this process runs, and how it exchanges values and gradients with the others.

    `plan` is the document that `placewise export --to torch` writes: sizes, stages and splits. Process r is device
    ``r % tensor_parallel`` of replica ``r // tensor_parallel % data_parallel`` of stage ``r // (both)``, and all of
    them hold the same model, with `args` and `kwargs` of one micro-batch. torch.distributed must be initialized.

    Raises ValueError for a plan that is not that of the model or of so many processes.
    """

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        plan: Mapping[str, Any],
        *,
        loss: Loss | None = None,
        device: str = "cpu",
    ) -> None:
        self.plan, self.loss = plan, loss or mean_square
        self.stages, degree = len(plan["stages"]), plan["tensor_parallel"]
        self.replicas = plan["data_parallel"]
        sizes = (self.stages, self.replicas, degree)
        if dist.get_world_size() != self.stages * self.replicas * degree:
            shape = " × ".join(map(str, sizes))
            raise ValueError(f"the plan has {shape} processes, and there are {dist.get_world_size()}")
        self.device = torch.device(device)
        self.mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=("pp", "dp", "tp"))
        self.place, self.replica, self.rank = (self.mesh.get_local_rank(name) for name in ("pp", "dp", "tp"))
        self.micro_batches = plan["microbatches"] // self.replicas
        own = plan["stages"][self.place]
        stages = [ModulePlan(callable_modules(model, stage["modules"]), stage["calls"]) for stage in plan["stages"]]
        tokens = plan.get("tokens", {})
        gathers = {path: [TokenGather(**one) for one in found] for path, found in tokens.get("gathers", {}).items()}
        program = export_model(model, args, kwargs, stages, gathers) if self.stages > 1 or tokens else None
        ties = tied_parameters(model)
        self._first_name = {name: names[0] for names in ties for name in names}
        self._splits = {
            path: ModuleStyle(**split) for path, split in plan["splits"].items() if is_inside(path, own["modules"])
        }
        model.to(self.device)
        slices, results = (
            {path: dim for path, dim in tokens.get(key, {}).items() if is_inside(path, own["modules"])}
            for key in ("slices", "results")
        )
        split_modules(
            model, self.mesh["tp"], self._splits, own["modules"], slices=slices, results=results,
            gathers={
                path: find_arguments(program, path, found)
                for path, found in gathers.items()
                if program is not None and is_inside(path, own["modules"])
            },
        )  # fmt: skip
        checkpoint_modules(model, own["recompute"])
        self._summed = set(plan["summed"])
        self._in_spec = pytree.tree_structure((tuple(args), dict(kwargs)))
        self.stage: StageModule | None = None
        self.model = model
        if program is not None:
            self.stage = build_stage_module(model, program, stages, self.place)
            self._tokens = tokens.get("values", {})
            changes = {name: take_tokens(self.mesh["tp"], dim) for name, dim in tokens.get("calls", {}).items()}
            self.stage.changes.update(changes)
            self._schedules: dict[bool, Any] = {}
        self._tie_groups = self._make_tie_groups(ties) if self.stages > 1 else []

    @property
    def is_last(self) -> bool:
        """Whether outputs arrive here."""
        return self.place == self.stages - 1

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of this process by their names in the model; one that has several has its first."""
        for name, value in (self.stage or self.model).named_parameters():
            yield self._first_name.get(name, name), value

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The outputs of every micro-batch of this replica, stacked; empty except in the last stage.

        `inputs` are the tensors of the model's arguments, each [micro-batches of this replica, …].
        """
        with torch.no_grad():
            if self.stages == 1:
                rows = [pytree.tree_leaves(self._run(inputs, number)) for number in range(self.micro_batches)]
                return tuple(torch.stack(column) for column in zip(*rows, strict=True))
            results = self._schedule(train=False).eval(*(inputs if self.place == 0 else ()))
            if not self.is_last:
                return ()
            return tuple(results) if isinstance(results, (tuple, list)) else (results,)

    def step(self, inputs: Sequence[torch.Tensor], targets: torch.Tensor | None = None) -> float:
        """Gradients of the mean loss of all micro-batches, in `grad` of the parameters; the loss, in the last stage.

        Every replica is given its own micro-batches; gradients are averaged over replicas.
        """
        for _, parameter in self.named_parameters():
            parameter.grad = None
        targets = torch.zeros(self.micro_batches) if targets is None else targets
        losses: list[torch.Tensor] = []
        if self.stages == 1:
            for number in range(self.micro_batches):
                loss = self.loss(self._run(inputs, number), targets[number])
                (loss / self.micro_batches).backward()
                losses.append(loss.detach())
        else:
            given = tuple(inputs) if self.place == 0 else ()
            target = {"target": targets, "losses": losses} if self.is_last else {}
            self._schedule(train=True).step(*given, return_outputs=False, **target)
        self._finish_gradients()
        return float(torch.stack(losses).detach().mean()) if losses else 0.0

    def whole_gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of this stage's parameters, put together from all devices that split them."""
        return {
            name: whole_tensor(parameter.grad, self._split_of(name), self.mesh["tp"]).detach()
            for name, parameter in self.named_parameters()
            if parameter.grad is not None
        }

    def _run(self, inputs: Sequence[torch.Tensor], number: int) -> Any:
        given = [value[number].to(self.device) for value in inputs]
        if self.stage is not None:
            return self.stage.arrange(self.stage(*given))
        args, kwargs = pytree.tree_unflatten(given, self._in_spec)
        return self.model(*args, **kwargs)

    def _schedule(self, *, train: bool) -> Any:
        if train not in self._schedules:
            assert self.stage is not None
            stage = self._make_stage(self.stage)
            kind = Schedule1F1B if train and self.plan["schedule"] == "1f1b" else ScheduleGPipe
            loss = self._loss_of_stage if train else None
            self._schedules[train] = kind(stage, self.micro_batches, loss_fn=loss)
        return self._schedules[train]

    def _make_stage(self, module: StageModule) -> PipelineStage:
        first, last = self.place == 0, self.is_last
        takes, makes = ([self._example(value) for value in values] for values in (module.takes, module.returns))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PipelineStage(
                MicrobatchStage(module, first=first, last=last), self.place, self.stages, self.device,
                tuple(value[None] for value in takes) if first else tuple(takes),
                tuple(value[None] for value in makes) if last else tuple(makes),
                group=self.mesh["pp"].get_group(),
            )  # fmt: skip

    def _example(self, value: Value) -> torch.Tensor:
        """A tensor like what crosses, with the tokens of this device if it is split by them."""
        shape = list(value.shape)
        if value.name in self._tokens:
            shape[self._tokens[value.name]] //= self.mesh["tp"].size()
        return value._replace(shape=tuple(shape)).empty(self.device)

    def _loss_of_stage(self, outputs: Any, target: torch.Tensor) -> torch.Tensor:
        assert self.stage is not None
        rows = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        return self.loss(self.stage.arrange([value[0] for value in rows]), target[0])

    def _finish_gradients(self) -> None:
        """Sum what devices of a split, or stages with one weight, have parts of, and average over replicas."""
        for _, parameter in self.named_parameters():
            if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor):
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        gradients = {name: _local(p.grad) for name, p in self.named_parameters() if p.grad is not None}
        for names, group in self._tie_groups:
            if names[0] in gradients:
                dist.all_reduce(gradients[names[0]], group=group)
        if self.mesh["tp"].size() > 1:
            reduce_in_buckets(
                [gradients[name] for name in gradients if name in self._summed], self.mesh["tp"].get_group(), 1
            )
        if self.replicas > 1:
            reduce_in_buckets(list(gradients.values()), self.mesh["dp"].get_group(), self.replicas)

    def _make_tie_groups(self, ties: Sequence[Sequence[str]]) -> list[tuple[Sequence[str], Any]]:
        """For weights that several stages hold: the group of the processes with the same part of it."""
        ranks = self.mesh.mesh
        paths = [stage["modules"] for stage in self.plan["stages"]]
        found = []
        for names in ties:
            holders = [s for s, own in enumerate(paths) if any(is_inside(name, own) for name in names)]
            if len(holders) < 2:
                continue
            for replica in range(self.replicas):
                for rank in range(ranks.shape[2]):
                    group = dist.new_group([int(ranks[s, replica, rank]) for s in holders])
                    if (replica, rank) == (self.replica, self.rank) and self.place in holders:
                        found.append((names, group))
        return found

    def _split_of(self, name: str) -> tuple[int, Sequence[int]] | None:
        path, _, own = name.rpartition(".")
        split = self._splits.get(path)
        if split is None or own not in split.weights:
            return None
        return split.weights[own], split.parts.get(own, ())


def mean_square(outputs: Any, _: Any) -> torch.Tensor:
    """The loss where none is given: the mean square of all outputs."""
    tensors = [value for value in pytree.tree_leaves(outputs) if isinstance(value, torch.Tensor)]
    return torch.stack([v.square().mean() for v in tensors if v.is_floating_point()]).sum()


def load_function(reference: str) -> Callable[..., Any]:
    """The function that ``file.py:function`` or ``package.module:function`` names. Raises ValueError."""
    where, _, name = reference.rpartition(":")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        if spec is None or spec.loader is None or not Path(where).is_file():
            raise ValueError(f"there is no file {where}")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(spec.name, module)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"there is no function {name!r} in {where}")
    return function


def make_model(reference: str, options: Mapping[str, Any] = {}) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module, arguments and keyword arguments of one micro-batch that a function returns, as `load_function`."""
    made = load_function(reference)(**options)
    model, args, *rest = made
    return model, tuple(args), dict(rest[0]) if rest else {}


def _local(gradient: Any) -> torch.Tensor:
    if isinstance(gradient, DTensor):
        return gradient.to_local()
    result: torch.Tensor = gradient
    return result
