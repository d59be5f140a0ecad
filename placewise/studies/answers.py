"""What was found by searching problems of a corpus, kept beside a checkpoint: to search again would find the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

import numpy as np

from placewise.files.atomic import atomic_write
from placewise.files.policy_file import header_of
from placewise.placers.learned.checkpoint import problem_digest
from placewise.placers.learned.corpus.messages import Known
from placewise.studies.corpus import Corpus

FOLDER = "answers"


class Answered:
    """Searched problems of a teacher, one small file each, in the folder `answers` beside the checkpoint.

    Files of other corpora may lie there too: a problem is known by all that its price depends on. Copy the folder to
    another training to spare the search.
    """

    def __init__(self, checkpoint: str | PathLike[str] | None, teacher: str) -> None:
        self._folder = None if checkpoint is None else header_of(checkpoint).parent / FOLDER
        self._teacher = teacher
        self._kept: set[int] = set()

    def of(self, corpus: Corpus, numbers: Iterable[int]) -> dict[int, Known]:
        """What is known of some problems."""
        if self._folder is None or not self._folder.is_dir():
            return {}
        found = {}
        for number in numbers:
            path = self._path(corpus, number)
            try:
                with np.load(path, allow_pickle=False) as file:
                    found[number] = Known(file["best"], float(file["value"]), float(file["scale"]))
            except (OSError, KeyError, ValueError):
                continue
        self._kept |= found.keys()
        return found

    def keep(self, corpus: Corpus, known: Mapping[int, Known]) -> None:
        """Keep what is known, before anything was learned."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for number in known.keys() - self._kept:
            one = known[number]
            with atomic_write(self._path(corpus, number), "wb") as file:
                np.savez_compressed(file, best=one.best, value=one.value, scale=one.scale)
            self._kept.add(number)

    def _path(self, corpus: Corpus, number: int) -> Path:
        assert self._folder is not None
        digest = problem_digest(corpus.problem(number)) + self._teacher
        return self._folder / f"{hashlib.sha256(digest.encode()).hexdigest()[:24]}.npz"
