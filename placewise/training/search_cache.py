"""What was found by searching problems of a corpus, kept beside a checkpoint: to search again would find the same."""

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
from placewise.placers.learned.corpus.messages import BestKnown

FOLDER = "answers"
DAMAGED = (OSError, EOFError, KeyError, TypeError, ValueError, BadZipFile, zlib.error)
"""What reading a file raises that is none, or not whole."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Searched problems of a `teacher`, one small file each, in a `folder`; where that does not exist, none are kept.

    Files of other corpora may lie there too: a problem is known by all that its price depends on. Copy the folder to
    another training to spare the search.
    """

    folder: str
    teacher: str

    def find(self, problem: Problem) -> BestKnown | None:
        """What is known of a problem; None if it was not searched, or its file is damaged."""
        try:
            with self._path(problem).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                found = BestKnown(file["best"].astype(np.int32), float(file["value"]), float(file["scale"]))
        except DAMAGED:
            return None
        return found if found.best.shape == (problem.n_ops,) else None

    def keep(self, problem: Problem, known: BestKnown) -> None:
        """Keep what is known of a problem before anything is learned, where there is room."""
        if Path(self.folder).is_dir():
            with suppress(OutputError), atomic_write(self._path(problem), "wb") as file:
                np.savez_compressed(file, best=known.best, value=known.value, scale=known.scale)

    def _path(self, problem: Problem) -> Path:
        digest = hashlib.sha256((problem_digest(problem) + self.teacher).encode()).hexdigest()
        return Path(self.folder) / f"{digest[:24]}.npz"
