"""A cache of search results for problems of a corpus, beside a checkpoint; searching again gives the same results."""

from __future__ import annotations

import hashlib
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from placewise.errors import OutputError
from placewise.files.atomic import atomic_write
from placewise.model.problem import Problem
from placewise.placers.learned.checkpoint import problem_digest
from placewise.training.workers.messages import BestKnown

FOLDER = "answers"
DAMAGED = (OSError, EOFError, KeyError, TypeError, ValueError, BadZipFile, zlib.error)
"""Errors of reading a damaged file."""


@dataclass(frozen=True, slots=True)
class SearchCache:
    """Search results of the placer `expert`, one small file per problem in `folder`.

    If the folder does not exist, nothing is cached. It may hold results of other corpora: the key of a problem covers
    everything that its cost depends on. Copy the folder to another training to skip its search.
    """

    folder: str
    expert: str

    def find(self, problem: Problem) -> BestKnown | None:
        """The result for a problem; None if it was not searched, or if its file is damaged."""
        try:
            with self._path(problem).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                found = BestKnown(file["best"].astype(np.int32), float(file["value"]), float(file["scale"]))
        except DAMAGED:
            return None
        return found if found.best.shape == (problem.n_ops,) else None

    def keep(self, problem: Problem, known: BestKnown) -> None:
        """Write the result for a problem, if the folder exists and can be written."""
        if Path(self.folder).is_dir():
            with suppress(OutputError), atomic_write(self._path(problem), "wb") as file:
                np.savez_compressed(file, best=known.best, value=known.value, scale=known.scale)

    def _path(self, problem: Problem) -> Path:
        digest = hashlib.sha256((problem_digest(problem) + self.expert).encode()).hexdigest()
        return Path(self.folder) / f"{digest[:24]}.npz"
