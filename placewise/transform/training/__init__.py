"""to_training: the graph of one training step, from the forward graph of a model."""

from placewise.transform.training.step import OPTIMIZERS, STEP, to_training

__all__ = ["OPTIMIZERS", "STEP", "to_training"]
