"""to_training: the graph of one training step, from the forward graph of a model."""

from placewise.transform.training.optimizers import OPTIMIZERS
from placewise.transform.training.step import STEP, to_training

__all__ = ["OPTIMIZERS", "STEP", "to_training"]
