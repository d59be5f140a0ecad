"""What crosses the borders of the stages of a program.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Value(NamedTuple):
    """A tensor between stages: its name, shape and type, and whether gradients come back."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    trains: bool

    def empty(self, device: torch.device) -> torch.Tensor:
        """A tensor like it."""
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.trains)
