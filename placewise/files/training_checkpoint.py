"""Checkpoints of a training run: a folder with a file per process, and the file that says which step they are of."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field

from placewise.errors import InputError, ModelFileError, OutputError
from placewise.files.atomic import atomic_write
from placewise.files.records import Record, Whole, describe_os_error, read_record, write_record

HEADER, WEIGHTS = "checkpoint.json", "weights.pt"
ANEW = "begin anew in another folder, without --resume"
"""What is left where a checkpoint cannot be read."""


class TrainingHeader(Record):
    """What a checkpoint of a training run is of; its folder holds ``rank-N.pt`` of every process of a replica."""

    format: Literal["placewise-training"] = "placewise-training"
    version: Literal[1] = 1
    step: Whole = Field(description="steps that were completed")
    folder: str = Field(description="folder of the files of this step, beside this file")
    ranks: Whole = Field(description="number of files")
    run: str = Field(description="sha256 of the plan, the schedule, the optimizer and the data")
    losses: tuple[float, ...] = Field(description="the loss of every completed step")


class TrainingCheckpoint:
    """The checkpoints of a run in a folder: the last one that is whole, and the one that is being written.

    Raises InputError where the folder holds one and `resume` is False, OutputError where it cannot be written, and
    ModelFileError for one of another `run`.
    """

    def __init__(self, path: str | os.PathLike[str], run: str, ranks: int, *, resume: bool) -> None:
        self.path, self._run, self._ranks = Path(path), run, ranks
        self._header, self._new = self.path / HEADER, not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path / f".{HEADER}.probe"):
                pass
            (self.path / f".{HEADER}.probe").unlink()
        except OSError as error:
            raise OutputError(f"cannot be written ({describe_os_error(error)})", where=str(path)) from None
        self.last: TrainingHeader | None = None
        if self._header.exists():
            if not resume:
                remedy = "go on from it with --resume, or name another folder"
                raise InputError("holds a checkpoint already", where=str(path), remedy=remedy)
            self.last = self._read()

    def abandon(self) -> None:
        """Remove the folder if it was made for this run and nothing came of it."""
        if self._new and self.last is None:
            with suppress(OSError):
                self.path.rmdir()

    def files(self, step: int) -> list[str]:
        """Where the processes of a replica write their state after a step. Raises OutputError."""
        folder = self._folder(step)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot be written ({describe_os_error(error)})", where=str(folder)) from None
        return [str(folder / f"rank-{rank}.pt") for rank in range(self._ranks)]

    def commit(self, step: int, losses: list[float]) -> None:
        """Make the files of a step the checkpoint, and remove older ones."""
        header = TrainingHeader(
            step=step, folder=self._folder(step).name, ranks=self._ranks, run=self._run, losses=tuple(losses)
        )
        write_record(header, self._header)
        self.last = header
        for folder in self.path.glob("step-*"):
            if folder.name != header.folder:
                with suppress(OSError):
                    shutil.rmtree(folder)

    def _folder(self, step: int) -> Path:
        return self.path / f"step-{step:08d}"

    def _read(self) -> TrainingHeader:
        header = read_record(self._header, TrainingHeader)
        if header.run != self._run or header.ranks != self._ranks or len(header.losses) != header.step:
            remedy = "give the plan and the options that it was written with, or name another folder"
            raise ModelFileError("is the checkpoint of another training run", where=str(self.path), remedy=remedy)
        missing = next((name for name in self.files(header.step) if not Path(name).is_file()), None)
        if missing is not None:
            raise ModelFileError(f"lacks {Path(missing).name}", where=str(self.path), remedy=ANEW)
        return header
