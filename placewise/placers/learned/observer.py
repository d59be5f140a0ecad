"""What may be done around a training besides: keep it, log it, begin where another ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewise.model.result import Reason

if TYPE_CHECKING:
    from placewise.placers.learned.trainer import Trainer, Update


class Observer:
    """Told of a training as it goes; this one does nothing."""

    def begin(self, trainer: Trainer) -> bool:
        """Before the first update. Whether it set the trainer to where another was, so that it need not begin."""
        return False

    def update(self, trainer: Trainer, update: Update) -> None:
        """After every update."""

    def end(self, trainer: Trainer, reason: Reason) -> None:
        """After the last update, why ever it was the last."""
