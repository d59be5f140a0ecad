"""The zoo: the workloads of the placement literature as generators, unrolled at the level of ops."""

from placewise.zoo.registry import describe, generate, names

__all__ = ["describe", "generate", "names"]
