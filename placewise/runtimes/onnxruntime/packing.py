"""Sub-models on their way to the workers: as bytes, or, where they are too large for that, as files for a moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import onnx

from placewise.processes.scratch import scratch
from placewise.readers.onnx.submodels import Submodel
from placewise.runtimes.onnxruntime.wiring import Work

LARGEST = 1 << 30
"""Bytes of weights that still travel inside a model; a message of protobuf may have 2 GiB."""


@contextmanager
def packed(parts: Sequence[Submodel], works: Sequence[Sequence[Work]]) -> Iterator[tuple[tuple[Work, ...], ...]]:
    """The works of every worker with their models, which are there until the end of the context."""
    with ExitStack() as stack:
        models = {}
        for number in sorted({work.number for own in works for work in own}):
            models[number] = _packed(parts[number], stack)
        yield tuple(tuple(replace(work, model=models[work.number]) for work in own) for own in works)


def _packed(part: Submodel, stack: ExitStack) -> bytes | str:
    if part.weight_bytes <= LARGEST:
        content: bytes = part.model.SerializeToString()
        return content
    path = stack.enter_context(scratch()) / "model.onnx"
    onnx.save(part.model, path, save_as_external_data=True, location="weights")
    return str(path)
