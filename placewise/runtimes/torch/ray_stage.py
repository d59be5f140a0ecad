"""The object in the actor of a stage: a part of a program, which comes with it, since nodes share no files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from placewise.errors import PlacewiseError
from placewise.runtimes.torch.payload import Payload

Values = Mapping[str, npt.NDArray[Any]]


class RayStage:
    """Stage number `stage` of the program in `archive`, on `device`. Errors of ours are returned as text."""

    def __init__(self, payload: Payload, archive: bytes, stage: int, device: str) -> None:
        self._failure = ""
        try:
            self._load(payload, archive, stage, device)
        except (PlacewiseError, ValueError) as error:
            self._failure = str(error)

    def _load(self, payload: Payload, archive: bytes, stage: int, device: str) -> None:
        import torch

        from placewise.readers.torch.cutting import build_stage
        from placewise.runtimes.torch.split_program import load_program, set_tf32

        torch.set_grad_enabled(False)
        set_tf32(payload.tf32)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.pt2")
            path.write_bytes(archive)
            program = load_program(replace(payload, path=str(path)))
        self._device, self._piece = torch.device(device), build_stage(program, payload.device, stage, device=device)

    def start(self) -> str:
        """Why the stage cannot run; "" if it can."""
        return self._failure

    def process(self) -> int:
        """The number of the process on its node."""
        return os.getpid()

    def run(self, values: Values) -> Values:
        """The results of this stage for those of the previous stage, or for the inputs of the program."""
        import torch

        from placewise.runtimes.torch.arrays import array_of, tensors_of

        with torch.no_grad():
            given = tensors_of(self._piece.reads, values)
            results = self._piece.module(*(value.to(self._device) for value in given))
        return {name: array_of(value.cpu()) for name, value in zip(self._piece.makes, results, strict=True)}
