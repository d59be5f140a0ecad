"""Rewards of the tests of workers: picklable, light to import; their workers leave a trace, hang or die."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.simulate import Evaluator


@dataclass(frozen=True)
class Reward:
    """The judge, with `pause` seconds per placement; called to make what a worker asks.

    Every worker leaves its number in `folder`, and what it measured: one line per placement. `hangs` and `dies` are
    the devices of the first op at which it does so; it also dies once it has measured `most` placements.
    """

    problem: Problem
    folder: str
    pause: float = 0.0
    hangs: int = -1
    dies: int = -1
    most: int = 1 << 30
    refuses: bool = False

    def __call__(self) -> Measure:
        if self.refuses:
            raise ValueError("there is no such runtime")
        return Measure(self)


class Measure:
    """What a worker asks."""

    failure = "it was too good"

    def __init__(self, reward: Reward) -> None:
        self._reward, self._judge = reward, Evaluator(reward.problem, threads=1)
        self._trace, self._count = Path(reward.folder) / str(os.getpid()), 0
        self._trace.touch()

    def __call__(self, placements: Ints) -> Floats:
        first = int(placements[0, 0])
        if first == self._reward.dies or self._count >= self._reward.most:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000 if first == self._reward.hangs else self._reward.pause)
        self._count += 1
        with self._trace.open("a") as file:
            print(*placements[0].tolist(), file=file)
        return self._judge(placements)


def workers(folder: Path) -> list[int]:
    """The numbers of the workers that ever began."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def measured(folder: Path) -> list[tuple[int, ...]]:
    """All placements that were measured to the end, by whomever."""
    lines = [line for pid in workers(folder) for line in (folder / str(pid)).read_text().splitlines()]
    return [tuple(map(int, line.split())) for line in lines]
