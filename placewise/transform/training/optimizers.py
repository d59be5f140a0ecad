"""What an optimizer keeps of every weight, and its kind of op."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from placewise.model.dtypes import bytes_of
from placewise.transform.training.values import GraphValue


class Optimizer(NamedTuple):
    """The kind of its update ops, and how many values it keeps per element of a weight."""

    kind: str
    moments: int


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {
        "adam": Optimizer("optimizer::Adam", 2),
        "momentum": Optimizer("optimizer::Momentum", 1),
        "sgd": Optimizer("optimizer::SGD", 0),
    }
)
"""By the name that users give: Adam (Kingma and Ba 2015) with both moments, SGD with and without momentum."""


def state_bytes_per_element(optimizer: Optimizer, weight: GraphValue, *, master_weights: bool) -> int:
    """Bytes per element that stay between steps: moments of at least 32 bits, and a 32-bit copy of 16-bit weights."""
    bits = 8 * bytes_of((1,), weight.dtype)
    wide = 8 if bits == 64 else 4
    return optimizer.moments * wide + (4 if master_weights and bits < 32 else 0)


def count_elements(weight: GraphValue) -> int:
    """Elements of a weight; of one with an unknown dimension, by its bytes."""
    if min(weight.shape, default=0) >= 0:
        return math.prod(weight.shape)
    return max(weight.nbytes, 0) // max(bytes_of((1,), weight.dtype), 1)
