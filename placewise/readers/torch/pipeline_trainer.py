"""One process of a training run: its stages of a program, their schedule, replicas, the optimizer and its state.

This module and those that it imports depend on PyTorch only: exports contain copies of them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.export import ExportedProgram

from placewise.readers.torch.cutting import Device, StagePlan, build_piece, outputs_of, plan_stages, weights_of
from placewise.readers.torch.gradient_exchange import reduce_in_buckets
from placewise.readers.torch.split_backward import SplitBackwardStage
from placewise.readers.torch.training_stages import TrainedProgram, TrainingStage

TARGET = "target"
"""The name of the target among the data of a training run."""
Data = Mapping[str, torch.Tensor]


class Step(NamedTuple):
    """A training step: its number, from 1, the mean loss of all micro-batches, and its seconds."""

    number: int
    loss: float
    seconds: float


class Action(NamedTuple):
    """What a process does for a micro-batch at a stage: ``F``, ``B``, or ``I`` and ``W`` of a backward pass in two."""

    stage: int
    kind: str
    microbatch: int


class PipelineTrainer:
    """The stages of this process on its `device`, and how it trains them with the others.

    `plan` is the document of a training run: ``stage_ranks`` (the process of a replica that runs each stage),
    ``replicas``, ``calls`` (number and stage), ``schedule``, ``microbatches`` per step, ``optimizer``,
    ``learning_rate``, ``seed``, ``frozen`` and ``shapes``. Process r is number ``r % n`` of replica ``r // n``.
    torch.distributed must be initialized. `data` are rows of inputs and of a target by name; without them, inputs are
    drawn at random.

    Raises ValueError for a program that cannot train, and for a plan that it does not fit.
    """

    def __init__(
        self, program: ExportedProgram, plan: Mapping[str, Any], *, device: Device, data: Data | None = None
    ) -> None:
        self.plan = plan
        self.ranks = max(plan["stage_ranks"]) + 1
        self.replicas: int = plan["replicas"]
        if dist.get_world_size() != self.ranks * self.replicas:
            needed = f"{self.ranks} × {self.replicas} processes"
            raise ValueError(f"the plan is for {needed}, and there are {dist.get_world_size()}")
        self.replica, self.rank = divmod(dist.get_rank(), self.ranks)
        self.device = torch.device(device)
        border = self._border = torch.device("cpu") if dist.get_backend() == "gloo" else self.device
        self.microbatches = plan["microbatches"] // self.replicas
        self._groups = self._make_groups()
        trained = TrainedProgram(program, shapes=plan["shapes"], frozen=plan["frozen"])
        cut = plan_stages(program, trained.steps, {call["number"]: call["stage"] for call in plan["calls"]})
        if len(cut.nodes) != len(plan["stage_ranks"]):
            raise ValueError(f"the plan has {len(plan['stage_ranks'])} stages, and the program {len(cut.nodes)}")
        borders = trained.trace_borders(cut)
        self.source = Rows(trained, plan["seed"], plan["microbatches"], data)
        self._loss = trained.loss
        own = [stage for stage, rank in enumerate(plan["stage_ranks"]) if rank == self.rank]
        held = _hold_weights(trained, cut, own, self.device)
        look = {"device": self.device, "border": border, "owned": plan["schedule"] == "zero-bubble"}
        self.modules = [TrainingStage(trained, cut, stage, borders, held, **look) for stage in own]
        self.parameters, self.buffers = _name_weights(trained, held)
        self.aliases = _find_aliases(trained)
        self._ties = self._make_tie_groups(trained, cut)
        self.optimizer = make_optimizer(plan, list(self.parameters.values()))
        stages = [
            self._make_stage(module, stage, len(cut.nodes)) for module, stage in zip(self.modules, own, strict=True)
        ]
        self._schedule = make_schedule(plan, stages, self.microbatches, self._loss_of_stage)

    @property
    def is_last(self) -> bool:
        """Whether the loss is computed here."""
        return any(module.last for module in self.modules)

    def step(self, number: int) -> Step:
        """Run training step `number`, from 1: gradients of the mean loss of all micro-batches, and an update."""
        own = range(self.replica, self.plan["microbatches"], self.replicas)
        rows = [self.source.microbatch(number, which) for which in own]
        torch.manual_seed(hash((self.plan["seed"], number, dist.get_rank())) % (1 << 31))
        dist.barrier()
        begin = time.perf_counter()
        for parameter in self.parameters.values():
            parameter.grad = None
        losses: list[torch.Tensor] = []
        first = any(module.first for module in self.modules)
        given = [torch.stack(column).to(self._border) for column in zip(*(row.inputs for row in rows), strict=True)]
        target = self._stack_targets([row.target for row in rows])
        more = {"target": target, "losses": losses} if self.is_last else {}
        self._schedule.step(*(given if first else ()), return_outputs=False, **more)
        self._exchange_gradients()
        self.optimizer.step()
        total = torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros(())
        total = total.to(torch.float64).to(self._border) / self.replicas
        dist.all_reduce(total)
        return Step(number, float(total), time.perf_counter() - begin)

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of the last step, by the parameter's name in the model."""
        return {name: value.grad for name, value in self.parameters.items() if value.grad is not None}

    def held_bytes(self) -> int:
        """Bytes of the parameters and buffers of this process."""
        held = [*self.parameters.values(), *self.buffers.values()]
        return sum(value.numel() * value.element_size() for value in held)

    def state(self) -> dict[str, Any]:
        """Parameters, buffers and the optimizer's state of this process: tensors and numbers only."""
        return {
            "parameters": {name: value.detach() for name, value in self.parameters.items()},
            "buffers": dict(self.buffers),
            "aliases": dict(self.aliases),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned. Raises ValueError for the state of other stages."""
        for own, other in ((self.parameters, state["parameters"]), (self.buffers, state["buffers"])):
            if own.keys() != other.keys() or any(own[name].shape != other[name].shape for name in own):
                raise ValueError("the checkpoint holds other weights than this stage")
            with torch.no_grad():
                for name, value in own.items():
                    value.copy_(other[name])
        self.optimizer.load_state_dict(state["optimizer"])

    def order(self) -> list[list[Action]]:
        """What every process of a replica does in a step, in order."""
        if self.plan["schedule"] in ("gpipe", "1f1b"):
            return list_actions(self.plan["schedule"], self.ranks, self.microbatches)
        order = self._schedule.pipeline_order
        return [
            [
                Action(action.stage_index, action.computation_type.value, action.microbatch_index)
                for action in order[rank]
                if action is not None and action.computation_type.value in ("F", "B", "I", "W")
            ]
            for rank in range(self.ranks)
        ]

    def _make_groups(self) -> tuple[Any, Any]:
        """The processes of this replica, and those that run the same stages in all replicas."""
        mine: list[Any] = [None, None]
        for replica in range(self.replicas):
            group = dist.new_group([replica * self.ranks + rank for rank in range(self.ranks)])
            mine[0] = group if replica == self.replica else mine[0]
        for rank in range(self.ranks):
            group = dist.new_group([replica * self.ranks + rank for replica in range(self.replicas)])
            mine[1] = group if rank == self.rank else mine[1]
        return mine[0], mine[1]

    def _make_tie_groups(self, trained: TrainedProgram, cut: StagePlan) -> list[tuple[str, Any]]:
        """The parameters that several processes of a replica hold, with the group of those processes."""
        holders: dict[str, set[int]] = {}
        for stage, nodes in enumerate(cut.nodes):
            for name in sorted(_read_weights(trained, nodes) & trained.trained):
                holders.setdefault(trained.names_of(name)[0], set()).add(self.plan["stage_ranks"][stage])
        found = []
        for name, ranks in holders.items():
            for replica in range(self.replicas if len(ranks) > 1 else 0):
                group = dist.new_group([replica * self.ranks + rank for rank in sorted(ranks)])
                if replica == self.replica and self.rank in ranks:
                    found.append((name, group))
        return found

    def _make_stage(self, module: TrainingStage, stage: int, count: int) -> PipelineStage:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SplitBackwardStage(
                module, stage, count, self._border,
                input_args=module.example(module.takes, whole=module.first),
                output_args=module.example(module.makes, whole=module.last),
                input_grads=module.gradients(() if module.first else module.takes),
                output_grads=module.gradients(() if module.last else module.makes),
                group=self._groups[0],
            )  # fmt: skip

    def _loss_of_stage(self, outputs: Any, target: torch.Tensor) -> torch.Tensor:
        rows = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        given = target[0] if self.source.has_target else None
        loss: torch.Tensor = self._loss([value[0] for value in rows], given) / self.microbatches
        return loss

    def _stack_targets(self, targets: Sequence[torch.Tensor | None]) -> torch.Tensor:
        rows = [value for value in targets if value is not None]
        return torch.stack(rows).to(self.device) if rows else torch.zeros(len(targets))

    def _exchange_gradients(self) -> None:
        """Sum the gradients of weights that several stages hold, and average over replicas."""
        for name, group in self._ties:
            parameter = self.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
        if self.replicas > 1:
            gradients = list(self.gradients().values())
            reduce_in_buckets(gradients, self._groups[1], self.replicas)


class WholeTrainer:
    """The whole program in one process: micro-batch after micro-batch, to compare with. Raises as `PipelineTrainer`."""

    def __init__(
        self, program: ExportedProgram, plan: Mapping[str, Any], *, device: Device, data: Data | None = None
    ) -> None:
        self.plan, self._device = plan, torch.device(device)
        trained = TrainedProgram(program, shapes=plan["shapes"], frozen=plan["frozen"])
        cut = plan_stages(program, trained.steps, {})
        trained.trace_borders(cut)
        held = _hold_weights(trained, cut, [0], self._device)
        outputs = outputs_of(program)
        piece = build_piece(
            program, cut.nodes[0], outputs, weights_of(program), device=device, reads=list(trained.inputs), moved=held
        )
        self.module, self.loss, self.is_random = piece.module, trained.loss, trained.is_random
        self.source = Rows(trained, plan["seed"], plan["microbatches"], data)
        self.parameters, self.buffers = _name_weights(trained, held)
        self.aliases = _find_aliases(trained)
        self._optimizer = make_optimizer(plan, list(self.parameters.values()))

    def step(self, number: int) -> Step:
        count = self.plan["microbatches"]
        rows = [self.source.microbatch(number, which) for which in range(count)]
        begin = time.perf_counter()
        for parameter in self.parameters.values():
            parameter.grad = None
        total = 0.0
        for row in rows:
            outputs = self.module(*(value.to(self._device) for value in row.inputs))
            loss = self.loss(outputs, row.target) / count
            loss.backward()
            total += float(loss.detach())
        self._optimizer.step()
        return Step(number, total, time.perf_counter() - begin)

    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: value.grad for name, value in self.parameters.items() if value.grad is not None}


class Row(NamedTuple):
    """The inputs of a micro-batch, in the program's order, and its target."""

    inputs: list[torch.Tensor]
    target: torch.Tensor | None


class Rows:
    """The inputs and targets of every micro-batch of every step: `data` in turn, or numbers drawn from `seed`.

    Arrays of `data` have the shape of one micro-batch, and are then used for all of them, or the rows of several
    micro-batches one after the other. Raises ValueError for unknown inputs, for arrays of other shapes, also of the
    target, and for rows that the micro-batches do not divide.
    """

    def __init__(self, trained: TrainedProgram, seed: int, microbatches: int, data: Data | None) -> None:
        self._inputs, self._seed, self._count = trained.inputs, seed, microbatches
        self._data = dict(data or {})
        self.has_target = TARGET in self._data and TARGET not in trained.inputs
        unknown = next((name for name in self._data if name not in trained.inputs and name != TARGET), None)
        if unknown is not None:
            known = ", ".join(repr(name) for name in trained.inputs)
            raise ValueError(f"the program has no input {unknown!r}, but {known}")
        if self.has_target and trained.loss.own is not None:
            raise ValueError("the program's own output is its loss, so it takes no target")
        for name, (shape, _) in trained.inputs.items():
            if name in self._data:
                self._check(name, shape)
        if self.has_target and self._rows():
            target, most = self._data[TARGET], max(self._rows().values())
            found = len(target) if target.dim() else 0
            if not found or found % most:
                raise ValueError(f"the target has {found} rows, and the inputs make {most} micro-batches")
        if self.has_target:
            trained.loss.check_target(self._take_target(0))

    def microbatch(self, step: int, number: int) -> Row:
        """The inputs and the target of micro-batch `number` of a step, from 1."""
        which = (step - 1) * self._count + number
        generator = torch.Generator().manual_seed(hash((self._seed, step, number)) % (1 << 31))
        inputs = []
        for name, (shape, dtype) in self._inputs.items():
            inputs.append(self._take(name, shape, which) if name in self._data else _draw(shape, dtype, generator))
        return Row(inputs, self._take_target(which) if self.has_target else None)

    def _check(self, name: str, shape: Sequence[int]) -> None:
        value = self._data[name]
        if tuple(value.shape) == tuple(shape):
            return
        if value.dim() != len(shape) or value.dim() == 0 or tuple(value.shape[1:]) != tuple(shape[1:]):
            raise ValueError(f"the input {name!r} has shape {tuple(value.shape)}, and a micro-batch {tuple(shape)}")
        if not shape[0] or len(value) % (shape[0] * self._count) or not len(value):
            raise ValueError(
                f"the input {name!r} has {len(value)} rows, which {self._count} micro-batches of {shape[0]} rows "
                "do not divide"
            )

    def _rows(self) -> dict[str, int]:
        """The number of micro-batches in each given input that has several."""
        return {
            name: len(self._data[name]) // shape[0]
            for name, (shape, _) in self._inputs.items()
            if name in self._data and tuple(self._data[name].shape) != tuple(shape)
        }

    def _take(self, name: str, shape: Sequence[int], which: int) -> torch.Tensor:
        value = self._data[name]
        if tuple(value.shape) == tuple(shape):
            return value
        begin = which * shape[0] % len(value)
        return value[begin : begin + shape[0]]

    def _take_target(self, which: int) -> torch.Tensor:
        value, count = self._data[TARGET], max(self._rows().values(), default=1)
        size = len(value) // count if value.dim() else 1
        return value if count == 1 else value[which % count * size : (which % count + 1) * size]


def make_schedule(plan: Mapping[str, Any], stages: Sequence[PipelineStage], microbatches: int, loss: Any) -> Any:
    """The schedule that a plan names, over the stages of this process. Raises ValueError for one that does not fit."""
    kind, ranks = plan["schedule"], plan["stage_ranks"]
    require_schedule(kind, ranks, microbatches)
    if kind in ("gpipe", "1f1b"):
        single = ScheduleGPipe if kind == "gpipe" else Schedule1F1B
        return single(stages[0], microbatches, loss_fn=loss, scale_grads=False)
    several: Any = ScheduleInterleaved1F1B
    if kind == "zero-bubble":
        several = ScheduleZBVZeroBubble if is_vee(ranks) else ScheduleInterleavedZeroBubble
    return several(list(stages), microbatches, loss_fn=loss, scale_grads=False)


def require_schedule(kind: str, ranks: Sequence[int], microbatches: int) -> None:
    """Raise ValueError where a schedule cannot run stages on these processes with so many micro-batches."""
    count = max(ranks) + 1
    if kind in ("gpipe", "1f1b") and len(ranks) > count:
        raise ValueError(f"{kind} runs one stage per device, and here are {len(ranks)} on {count}")
    if kind == "1f1b" and microbatches < len(ranks):
        raise ValueError(f"1f1b needs as many micro-batches as stages, {len(ranks)}, and there are {microbatches}")
    rounds = max(1, microbatches // count)
    if kind in ("interleaved", "zero-bubble") and microbatches % rounds:
        raise ValueError(f"{microbatches} micro-batches do not divide into {rounds} rounds over {count} devices")


def list_actions(kind: str, stages: int, microbatches: int) -> list[list[Action]]:
    """What every process does under gpipe or 1f1b, one stage each."""
    order = []
    for stage in range(stages):
        ahead = microbatches if kind == "gpipe" else min(microbatches, stages - stage)
        actions = [Action(stage, "F", number) for number in range(ahead)]
        for number in range(microbatches):
            actions.append(Action(stage, "B", number))
            if ahead + number < microbatches:
                actions.append(Action(stage, "F", ahead + number))
        order.append(actions)
    return order


def is_vee(ranks: Sequence[int]) -> bool:
    """Whether stages go to the last process and back, two on each: 0, 1, 1, 0."""
    count = max(ranks) + 1
    return count > 1 and list(ranks) == [*range(count), *reversed(range(count))]


def make_optimizer(plan: Mapping[str, Any], parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that a plan names; a stage without parameters has one of an empty tensor."""
    values = list(parameters) or [nn.Parameter(torch.zeros(0))]
    rate = plan["learning_rate"]
    if plan["optimizer"] == "adam":
        return torch.optim.Adam(values, lr=rate)
    return torch.optim.SGD(values, lr=rate, momentum=0.9 if plan["optimizer"] == "momentum" else 0.0)


def _read_weights(trained: TrainedProgram, nodes: Sequence[Any]) -> set[str]:
    return {read.name for node in nodes for read in node.all_input_nodes} & trained.targets.keys()


def _hold_weights(
    trained: TrainedProgram, cut: StagePlan, stages: Sequence[int], device: torch.device
) -> dict[tuple[str, str], torch.Tensor]:
    """The weights that some stages read, on a device, by name and device; those that train are parameters."""
    read = {name for stage in stages for name in _read_weights(trained, cut.nodes[stage])}
    read |= {name for stage in stages for name in cut.makes[stage] if name in trained.targets}
    return {(name, str(device)): value for name, value in trained.hold(sorted(read), device).items()}


def _find_aliases(trained: TrainedProgram) -> dict[str, str]:
    """Other names in the model of weights, with the name by which they are known here."""
    return {other: names[0] for names in map(trained.names_of, trained.same) for other in names[1:]}


def _name_weights(
    trained: TrainedProgram, held: Mapping[tuple[str, str], torch.Tensor]
) -> tuple[dict[str, nn.Parameter], dict[str, torch.Tensor]]:
    """The parameters that train, and the buffers, by their names in the model."""
    parameters: dict[str, nn.Parameter] = {}
    buffers: dict[str, torch.Tensor] = {}
    for (name, _), value in held.items():
        if isinstance(value, nn.Parameter):
            parameters[trained.names_of(name)[0]] = value
        elif name in trained.buffers:
            buffers[trained.targets[name]] = value
    return parameters, buffers


def _draw(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal floats, or whole numbers of 0 and 1."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(tuple(shape), generator=generator).to(dtype)
    return torch.randint(0, 2, tuple(shape), generator=generator).to(dtype)
