"""Trace a run: export it once, copy equal layers, split mixtures of experts, and restore the model's own names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from placewise.errors import InputError, ModelFileError
from placewise.model.graph import Graph
from placewise.readers.huggingface.expand import expand_repeats
from placewise.readers.huggingface.instance import Instance, offline
from placewise.readers.huggingface.library_errors import EXPORT, describe_library_error
from placewise.readers.huggingface.operators import COMBINE, DISPATCH, EXPERT, EXPERTS
from placewise.readers.huggingface.repeats import RepeatTracker
from placewise.readers.huggingface.runs import Run
from placewise.readers.torch.assemble import assemble
from placewise.readers.torch.inline import inline_bodies
from placewise.readers.torch.program import trace_program
from placewise.readers.torch.traced_program import Parameter, TensorMeta, TracedCall, TracedProgram, ValueRef

_WRAPPER = "model"


def trace_run(instance: Instance, run: Run, repeats: RepeatTracker, *, apart: bool = False) -> Graph:
    """Return the raw graph of one run; with `apart` every expert is an op.

    Raises ModelFileError if the model cannot be exported.
    """
    wrapper = _Wrapper(instance.module, run, repeats)
    try:
        with offline(), torch.no_grad(), torch.device("meta"):
            program = torch.export.export(wrapper, tuple(run.inputs.values()), strict=False)
    except InputError:
        raise
    except Exception as error:
        raise describe_library_error("the model cannot be traced", error, EXPORT) from None
    try:
        listing = expand_repeats(_strip_wrapper(inline_bodies(trace_program(program)), list(run.inputs)))
    except ModelFileError as error:  # all sizes are given: open ones depend on the data
        raise ModelFileError(error.problem, where=error.where, remedy=EXPORT) from None
    return assemble(split_experts(listing) if apart else listing, None)


class _Wrapper(nn.Module):
    """A module that forwards to the call of a run and has the model as its only child."""

    def __init__(self, model: nn.Module, run: Run, repeats: RepeatTracker) -> None:
        super().__init__()
        self.model, self._run, self._repeats = model, run, repeats

    def forward(self, *tensors: torch.Tensor) -> Any:
        self._repeats.reset()
        return self._run.call(self.model, dict(zip(self._run.inputs, tensors, strict=True)))


def _strip_wrapper(listing: TracedProgram, inputs: list[str]) -> TracedProgram:
    """Restore the names of scopes, weights and inputs in the model and in the run."""
    own = dict(zip(listing.inputs, inputs, strict=True))
    metas = {own.get(name, name): meta for name, meta in listing.metas.items()}
    calls = [
        replace(call, arguments={key: _rename_argument(value, own) for key, value in call.arguments.items()},
                scope=_strip_prefix(call.scope))
        for call in listing.calls
    ]  # fmt: skip
    parameters = [replace(parameter, name=_strip_prefix(parameter.name)) for parameter in listing.parameters]
    return replace(
        listing, metas=metas, inputs=tuple(inputs), calls=tuple(calls), parameters=tuple(parameters),
        outputs=tuple(own.get(name, name) for name in listing.outputs),
    )  # fmt: skip


def _rename_argument(argument: Any, own: dict[str, str]) -> Any:
    if isinstance(argument, ValueRef):
        return ValueRef(own.get(argument.name, argument.name))
    return [_rename_argument(item, own) for item in argument] if isinstance(argument, (list, tuple)) else argument


def _strip_prefix(path: str) -> str:
    return "" if path == _WRAPPER else path.removeprefix(f"{_WRAPPER}.")


def split_experts(listing: TracedProgram) -> TracedProgram:
    """Split every mixture of experts into a dispatch of tokens, one op per expert with its own weights, and a sum."""
    metas, parameters, calls = dict(listing.metas), {p.value: p for p in listing.parameters}, list[TracedCall]()
    for call in listing.calls:
        if call.op == EXPERTS:
            calls.extend(_split_mixture(call, metas, parameters))
        else:
            calls.append(call)
    return replace(listing, metas=metas, parameters=tuple(parameters.values()), calls=tuple(calls))


def _split_mixture(
    call: TracedCall, metas: dict[str, TensorMeta], parameters: dict[str, Parameter]
) -> Iterator[TracedCall]:
    count = int(call.arguments["experts"])
    hidden, index, scores = (call.arguments[name] for name in ("hidden", "index", "scores"))
    tokens, chosen = metas[index.name].shape
    part = TensorMeta((math.ceil(tokens * chosen / count), *metas[hidden.name].shape[1:]), metas[hidden.name].dtype)
    extra = {"experts": count, "tokens": tokens, "chosen": chosen}
    inputs = [f"{call.name}:to{expert}" for expert in range(count)]
    outputs = [f"{call.name}:from{expert}" for expert in range(count)]
    metas.update(dict.fromkeys((*inputs, *outputs), part))
    shared = {"hidden": hidden, "index": index}
    yield TracedCall(f"{call.name}_dispatch", DISPATCH, shared, tuple(inputs), call.scope, call.origin, extra=extra)
    for expert in range(count):
        own = [_slice_expert(ref.name, expert, metas, parameters) for ref in call.arguments["weights"]]
        arguments = {"hidden": ValueRef(inputs[expert]), "weights": own}
        name, scope = f"{call.name}_expert{expert}", f"{call.scope}.{expert}"
        yield TracedCall(name, EXPERT, arguments, (outputs[expert],), scope, call.origin, extra=extra)
    arguments = {"parts": [ValueRef(name) for name in outputs], "scores": scores}
    yield TracedCall(f"{call.name}_combine", COMBINE, arguments, call.results, call.scope, call.origin, extra=extra)
    for ref in call.arguments["weights"]:
        parameters.pop(ref.name, None)


def _slice_expert(value: str, expert: int, metas: dict[str, TensorMeta], parameters: dict[str, Parameter]) -> ValueRef:
    """The slice of one expert in a parameter, as a separate parameter."""
    own = f"{value}:{expert}"
    if own not in metas:
        whole = metas[value]
        all_of_them = parameters[value]
        path, _, last = all_of_them.name.rpartition(".")
        metas[own] = TensorMeta(whole.shape[1:], whole.dtype)
        share = (all_of_them.storage, expert)
        parameters[own] = Parameter(own, f"{path}.{expert}.{last}", share, all_of_them.trainable)
    return ValueRef(own)
