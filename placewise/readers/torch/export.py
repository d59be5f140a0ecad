"""Trace a module by torch.export, in several modes until one works."""

from __future__ import annotations

import functools
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.export import ExportedProgram

from placewise.readers.torch.example import Example, fake_example, tensors_in
from placewise.readers.torch.program import trace_program
from placewise.readers.torch.traced_program import TracedProgram

T = TypeVar("T")
MAX_REASON = 160
_WRAPPED = "module"
"""The name of the module inside a `_FlatOutputs`."""


def trace_by_export(example: Example, dims: Mapping[str, int]) -> tuple[TracedProgram | None, str]:
    """The traced program of the module, or None and the reason why torch.export fails.

    Attempts: without Dynamo, with flattened outputs, and with Dynamo. A module on meta is first tried with fake CPU
    tensors, which have the memory layout of real data. `dims` are data-dependent sizes (``u0``).
    """

    def convert(program: ExportedProgram, attempt: _Attempt) -> TracedProgram:
        traced = trace_program(program, dims)
        return _strip_wrapper(traced) if attempt.flat else traced

    return _try_attempts(example, convert)


def export_program(example: Example) -> tuple[ExportedProgram | None, str]:
    """The exported program that `trace_by_export` traces, or None and the reason for the failure."""
    return _try_attempts(example, lambda program, _: program)


def _try_attempts(example: Example, use: Callable[[ExportedProgram, _Attempt], T]) -> tuple[T | None, str]:
    """The result of `use` for the first program that it accepts, or None and the error of the first attempt."""
    reasons: list[str] = []
    with _silence_torch():
        for attempt in _ATTEMPTS:
            if (attempt.on_cpu and not example.is_meta) or (
                attempt.flat and not any("output" in reason for reason in reasons)
            ):
                continue
            try:
                return use(_export(fake_example(example) if attempt.on_cpu else example, attempt), attempt), ""
            except Exception as error:  # torch.export raises many unrelated types
                reasons.append(_summarize_error(error))
    return None, reasons[0]


class _Attempt(NamedTuple):
    strict: bool = False
    flat: bool = False
    on_cpu: bool = False


_ATTEMPTS = tuple(
    _Attempt(strict, flat, on_cpu)
    for on_cpu in (True, False)
    for strict, flat in ((False, False), (False, True), (True, False))
)


def _export(example: Example, attempt: _Attempt) -> ExportedProgram:
    module = _FlatOutputs(example.module) if attempt.flat else example.module
    with torch.no_grad():
        return torch.export.export(module, example.args, dict(example.kwargs), strict=attempt.strict)


class _FlatOutputs(nn.Module):
    """A wrapper that returns the tensors in the outputs of a module as a flat list."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.train(module.training)

        @functools.wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
            return tensors_in(module(*args, **kwargs))

        self.forward = forward


def _strip_wrapper(program: TracedProgram) -> TracedProgram:
    return replace(
        program,
        parameters=tuple(replace(item, name=_strip_prefix(item.name)) for item in program.parameters),
        calls=tuple(replace(call, scope=_strip_prefix(call.scope)) for call in program.calls),
    )


def _strip_prefix(path: str) -> str:
    return "" if path == _WRAPPED else path.removeprefix(f"{_WRAPPED}.")


def _summarize_error(error: Exception) -> str:
    """The first line of torch's error, shortened, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0].partition(" (unhinted")[0] if lines else type(error).__name__
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


@contextmanager
def _silence_torch() -> Iterator[None]:
    """Suppress torch's logs and warnings: failed attempts are reported in one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
