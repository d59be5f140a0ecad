"""A run of a model → its graph: exported once, equal layers copied, operators named as the cost rules know them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from placewise.errors import InputError, ModelFileError
from placewise.model.graph import Graph
from placewise.readers.huggingface.expand import expand_repeats
from placewise.readers.huggingface.experts import split_experts
from placewise.readers.huggingface.instance import Instance, offline
from placewise.readers.huggingface.library_errors import EXPORT, describe_library_error
from placewise.readers.huggingface.repeats import RepeatTracker
from placewise.readers.huggingface.runs import Run
from placewise.readers.torch.assemble import assemble
from placewise.readers.torch.inline import inlined
from placewise.readers.torch.listing import Listing, Ref
from placewise.readers.torch.program import listing_of

_WRAPPER = "model"


def trace_run(instance: Instance, run: Run, repeats: RepeatTracker, *, apart: bool = False) -> Graph:
    """The raw graph of one run; `apart` makes every expert an op of its own.

    Raises ModelFileError where the model cannot be exported.
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
        listing = expand_repeats(_strip_wrapper(inlined(listing_of(program)), list(run.inputs)))
    except ModelFileError as error:  # all sizes were given: what is open depends on the data
        raise ModelFileError(error.problem, where=error.where, remedy=EXPORT) from None
    return assemble(split_experts(listing) if apart else listing, None)


class _Wrapper(nn.Module):
    """A module whose forward is the call of a run, and whose one child is the model."""

    def __init__(self, model: nn.Module, run: Run, repeats: RepeatTracker) -> None:
        super().__init__()
        self.model, self._run, self._repeats = model, run, repeats

    def forward(self, *given: torch.Tensor) -> Any:
        self._repeats.reset()
        return self._run.call(self.model, dict(zip(self._run.inputs, given, strict=True)))


def _strip_wrapper(listing: Listing, inputs: list[str]) -> Listing:
    """Scopes, weights and inputs under the names that they have in the model and in the run."""
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
    if isinstance(argument, Ref):
        return Ref(own.get(argument.name, argument.name))
    return [_rename_argument(item, own) for item in argument] if isinstance(argument, (list, tuple)) else argument


def _strip_prefix(path: str) -> str:
    return "" if path == _WRAPPER else path.removeprefix(f"{_WRAPPER}.")
