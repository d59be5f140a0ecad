"""The zoo: generators for the workloads of the placement literature, unrolled to single ops."""

from placewise.zoo.registry import describe, generate, names

__all__ = ["describe", "generate", "names"]
