"""Cut an exported program into stages that train: modules with parameters, and the values that cross their borders.

This module and those that it imports depend on PyTorch only: exports contain copies of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from placewise.readers.torch.cutting import (
    StagePlan,
    Value,
    build_piece,
    inputs_of,
    make_pure,
    outputs_of,
    steps_of,
    weights_of,
)

Shapes = Mapping[str, Sequence[int]]


class TrainedProgram:
    """A program, the parameters that train (names of their placeholders), and its `loss`.

    `shapes` are those of its inputs, where they are not the traced ones, and `frozen` regular expressions of parameters
    that stay as they are. Raises ValueError for a program that cannot train.
    """

    def __init__(self, program: ExportedProgram, *, shapes: Shapes | None = None, frozen: Sequence[str] = ()) -> None:
        self.program = program
        held = weights_of(program)
        specs = [spec for spec in program.graph_signature.input_specs if spec.kind != InputKind.USER_INPUT]
        self.targets = {spec.arg.name: str(spec.target) for spec in specs}
        self.buffers = {spec.arg.name for spec in specs if spec.kind == InputKind.BUFFER}
        parameters = [spec for spec in specs if spec.kind == InputKind.PARAMETER]
        self.trained = {
            spec.arg.name
            for spec in parameters
            if program.state_dict[str(spec.target)].requires_grad
            and (held[spec.arg.name].is_floating_point() or held[spec.arg.name].is_complex())
            and not any(re.search(pattern, str(spec.target)) for pattern in frozen)
        }
        self.same = _find_ties(held)
        if not parameters:
            raise ValueError("the program has no parameters, so there is nothing to train")
        if not self.trained:
            raise ValueError(f"none of the {len(parameters)} parameters of the program trains: all of them are frozen")
        self.steps = steps_of(program)
        make_pure(self.steps)
        values = {node.name: node.meta.get("val") for node in program.graph.nodes}
        self.inputs = {
            name: (tuple(map(int, (shapes or {}).get(name, value.shape))), value.dtype)
            for name in inputs_of(program)
            if isinstance(value := values[name], torch.Tensor)
        }
        self.loss = Loss([values[name] for name in outputs_of(program)])
        self.is_random = any(_is_random(node) for node in self.steps)

    def trace_borders(self, plan: StagePlan) -> dict[str, Value]:
        """Shape, type and gradient of every input and of every value that crosses a border.

        The program runs once, forward and backward, on tensors without data. Raises ValueError where it cannot train.
        """
        names = list(dict.fromkeys([*plan.crossing, *outputs_of(self.program)]))
        held = self.weights(torch.device("meta"))
        piece = build_piece(self.program, self.steps, names, held, device="meta", reads=list(self.inputs))
        inputs = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in self.inputs.values()]
        try:
            with torch.enable_grad():
                made = dict(zip(names, piece.module(*inputs), strict=True))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise ValueError(f"the program cannot be traced without data ({_first_sentence(error)})") from None
        number = next((name for name, value in made.items() if not isinstance(value, torch.Tensor)), None)
        if number is not None:
            raise ValueError(f"{number!r} is no tensor and would go from stage to stage: export with fixed shapes")
        loss = self.loss([made[name] for name in outputs_of(self.program)], None)
        if not loss.requires_grad:
            raise ValueError("no output of the program depends on a parameter through calls that have gradients")
        flowing = [name for name in plan.crossing if made[name].requires_grad]
        wanted = [*(made[name] for name in flowing), *(held[name] for name in self.trained)]
        try:
            found = torch.autograd.grad(loss, wanted, allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(f"the program has no gradient ({_first_sentence(error)})") from None
        trains = {name for name, gradient in zip(flowing, found, strict=False) if gradient is not None}
        borders = {name: Value(name, tuple(v.shape), v.dtype, name in trains) for name, v in made.items()}
        return borders | {name: Value(name, *said, trains=False) for name, said in self.inputs.items()}

    def weights(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Parameters that train, and all other weights as plain tensors, on a device."""
        held = weights_of(self.program)
        return self.hold(list(held), device)

    def hold(self, names: Sequence[str], device: torch.device) -> dict[str, torch.Tensor]:
        """Some weights on a device: parameters where they train, and one tensor for names of the same weight."""
        weights, made = weights_of(self.program), dict[str, torch.Tensor]()
        for name in names:
            first = self.same.get(name, name)
            if first not in made:
                value = weights[first].to(device)
                made[first] = nn.Parameter(value) if first in self.trained else value
        return {name: made[self.same.get(name, name)] for name in names}

    def names_of(self, name: str) -> list[str]:
        """The names in the model of a weight, given one of its placeholders; the first one names it in messages."""
        first = self.same.get(name, name)
        return [self.targets[first], *(self.targets[other] for other, own in self.same.items() if own == first)]


class TrainingStage(nn.Module):
    """A stage on its `device`; values cross its borders contiguous, on the device `border`, with their gradients.

    Inputs and outputs of the whole pipeline have a first dimension more, along which schedules cut micro-batches. With
    `owned`, results are copies: schedules that split the backward pass detach them, which neither a view allows nor a
    value that gradients of weights need later.
    """

    def __init__(
        self,
        trained: TrainedProgram,
        plan: StagePlan,
        place: int,
        borders: Mapping[str, Value],
        held: dict[tuple[str, str], torch.Tensor],
        *,
        device: torch.device,
        border: torch.device,
        owned: bool = False,
    ) -> None:
        super().__init__()
        self._owned = owned
        self.first, self.last = place == 0, place == len(plan.nodes) - 1
        self.takes = [borders[name] for name in plan.reads[place] if name in borders]
        self.makes = [borders[name] for name in plan.makes[place]]
        piece = build_piece(
            trained.program, plan.nodes[place], plan.makes[place], weights_of(trained.program),
            device=str(device), reads=[value.name for value in self.takes], moved=held,
        )  # fmt: skip
        self.module = piece.module
        self._device, self._border = device, border

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = [value[0] for value in values] if self.first else [_contiguous_gradient(value) for value in values]
        results = self.module(*(value.to(self._device) for value in given))
        if self.last:
            return tuple(value[None] for value in results)
        results = tuple(
            (value if border.trains else value.detach()).to(self._border).contiguous()
            for border, value in zip(self.makes, results, strict=True)
        )
        return tuple(value.clone() for value in results) if self._owned else results

    def example(self, values: Sequence[Value], *, whole: bool) -> tuple[torch.Tensor, ...]:
        """Tensors like these values, with the dimension of micro-batches where they are those of the `whole`."""
        return tuple(value.empty(self._border)[None] if whole else value.empty(self._border) for value in values)

    def gradients(self, values: Sequence[Value]) -> tuple[torch.Tensor | None, ...]:
        """Tensors like the gradients of these values; None for those that have none."""
        return tuple(value.empty(self._border).detach() if value.trains else None for value in values)


class Loss:
    """The loss of a micro-batch, from the program's outputs and a target.

    The first floating output of one element, if there is one. Else, without a target, the mean square of all floating
    outputs; with one of floats, the mean square of the first floating output's difference from it; with one of whole
    numbers, the cross-entropy of the first floating output over its last dimension. Raises ValueError for outputs that
    are all whole numbers.
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.floats = [
            number
            for number, value in enumerate(outputs)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
        if not self.floats:
            raise ValueError("all outputs of the program are whole numbers, which have no gradient")
        self.shape = tuple(outputs[self.floats[0]].shape)
        single = [number for number in self.floats if outputs[number].numel() == 1]
        self.own = single[0] if single else None

    def __call__(self, outputs: Sequence[torch.Tensor], target: torch.Tensor | None) -> torch.Tensor:
        if self.own is not None:
            return outputs[self.own].reshape(())
        first = outputs[self.floats[0]]
        if target is None:
            return torch.stack([outputs[number].square().mean() for number in self.floats]).sum()
        target = target.to(first.device)
        if target.is_floating_point():
            return (first - target).square().mean()
        return nn.functional.cross_entropy(first.reshape(-1, first.shape[-1]), target.reshape(-1))

    def check_target(self, target: torch.Tensor) -> None:
        """Raise ValueError for a target of a micro-batch that is not as large as the output: it would be repeated."""
        wanted = self.shape if target.is_floating_point() else self.shape[:-1]
        known = all(isinstance(size, int) for size in wanted)
        fits = tuple(target.shape) == wanted if target.is_floating_point() else target.numel() == math.prod(wanted)
        if known and not fits:
            raise ValueError(
                f"the target of a micro-batch has shape {tuple(target.shape)}, and the output gives it {wanted}"
            )

    @property
    def name(self) -> str:
        """What it is where no target is given."""
        return "the mean square of the outputs" if self.own is None else "the model's own loss"


def _contiguous_gradient(value: torch.Tensor) -> torch.Tensor:
    """The value, whose gradient arrives contiguous: processes exchange no other tensors."""
    if not value.requires_grad:
        return value
    value = value.view_as(value)
    value.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
    return value


def _find_ties(held: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Weights that are the same tensor as an earlier one, with that one."""
    first: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for name, value in held.items():
        if value.numel() and not value.is_meta:
            key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            if first.setdefault(key, name) != name:
                same[name] = first[key]
    return same


def _is_random(node: fx.Node) -> bool:
    """Whether a call draws random numbers that matter: dropout that drops nothing, or is switched off, has none."""
    if torch.Tag.nondeterministic_seeded not in (getattr(node.target, "tags", None) or ()):
        return False
    arguments = node.target._schema.arguments  # type: ignore[union-attr]  # noqa: SLF001
    given = {argument.name: argument.default_value for argument in arguments}
    given |= dict(zip(given, node.args, strict=False)) | dict(node.kwargs)
    rates = [given[name] for name in ("p", "dropout_p", "dropout") if name in given]
    switches = [given[name] for name in ("train", "training") if name in given]
    return not (rates and all(rate == 0 for rate in rates)) and not any(switch is False for switch in switches)


def _first_sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition(". ")[0][:200] if lines else type(error).__name__
