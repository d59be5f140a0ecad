"""to_training: the graph of one training step, from the forward graph of a model."""

from placewise.transform.training.step import OPTIMIZERS, is_training, planned_optimizer, to_training

__all__ = ["OPTIMIZERS", "is_training", "planned_optimizer", "to_training"]
