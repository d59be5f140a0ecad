"""The TensorBoard log of a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from placewise.errors import MissingExtraError, OutputError

if TYPE_CHECKING:
    from placewise.placers.learned.trainer import Update


class TrainingLog:
    """Scalars per update in a folder; an existing log continues after `start` updates.

    Raises MissingExtraError without TensorBoard, and OutputError if the folder cannot be written.
    """

    def __init__(self, folder: str | PathLike[str], start: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("a log for TensorBoard", "learn") from None
        try:
            self._writer: Any = SummaryWriter(str(folder), purge_step=start + 1 if start else None)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise OutputError(f"cannot be written ({reason})", where=str(folder), remedy="give a folder") from None
        self._last: tuple[float, int, int] | None = None

    def add(self, update: Update) -> None:
        """Log the figures of an update."""
        stats = update.stats
        figures = {
            "reward/mean": stats.reward,
            "reward/baseline": stats.baseline,
            "policy/entropy": stats.entropy,
            "policy/gradient_norm": stats.norm,
            "policy/loss": stats.loss,
            "time/best_seconds": update.best,
            "speed/samples_per_second": 0.0,
            "speed/evaluations_per_second": 0.0,
        }
        if self._last is not None and update.seconds > self._last[0]:
            seconds = update.seconds - self._last[0]
            figures["speed/samples_per_second"] = (update.asked - self._last[1]) / seconds
            figures["speed/evaluations_per_second"] = (update.evaluations - self._last[2]) / seconds
        self._last = update.seconds, update.asked, update.evaluations
        self.scalars(figures, update.number)

    def scalars(self, figures: Mapping[str, float], number: int) -> None:
        """Log figures by name at update `number`; figures that are not finite are skipped."""
        for name, value in figures.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, number)

    def close(self) -> None:
        """Flush and close the log."""
        self._writer.close()
