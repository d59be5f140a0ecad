"""What is known about a graph's values before it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx

from placewise.readers.onnx.sequences import Elements
from placewise.readers.onnx.types import Types
from placewise.readers.onnx.values import Value


@dataclass(slots=True)
class Known:
    """Types by name, short constants, the elements of sequences; `borrowed` names what is taken from notes."""

    types: Types
    values: dict[str, Value] = field(default_factory=dict)
    elements: Elements = field(default_factory=dict)
    borrowed: list[str] = field(default_factory=list)


Infer = Callable[[onnx.ModelProto], Known]
"""What is known about every value of a model. Raises ModelFileError for nodes that do not fit together."""
