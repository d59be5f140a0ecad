"""A workload of the zoo: its name, source, hyper-parameters and builder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from placewise.errors import InputError
from placewise.model.graph import Graph
from placewise.zoo.net import MAX_OPS, NetBuilder

MAX_SIZE = 10**9
"""The largest hyper-parameter; smaller values fail later if a tensor or the number of ops becomes excessive."""
UNROLLED = (("layers", "steps"), ("layers", "source_steps"), ("layers", "target_steps"), ("cells",))
"""Hyper-parameters whose product counts parts of at least `OPS_PER_PART` ops: excessive products fail early."""
OPS_PER_PART = 8

Sizes = Mapping[str, int]
Build = Callable[[NetBuilder, Sizes], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload. `dims` are its hyper-parameters with their defaults; those in `zero` may be 0.

    `build` adds the ops to a net, or `graph` makes the whole graph (for families without layers).
    """

    name: str
    summary: str
    paper: str
    dims: Sizes
    build: Build | None = None
    graph: Callable[[Sizes, str], Graph] | None = None
    zero: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {value}" for name, value in self.dims.items())
        return f"{self.name}: {self.summary} [{self.paper}]; {sizes}"

    def sizes(self, requested: Mapping[str, int]) -> dict[str, int]:
        """All hyper-parameters, with the requested ones replaced. Raises InputError."""
        for name, value in requested.items():
            if name not in self.dims:
                known = ", ".join(self.dims)
                raise InputError(f"has no dimension {name!r}", where=f"zoo:{self.name}", remedy=f"it has {known}")
            least = 0 if name in self.zero else 1
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_SIZE:
                remedy = f"give a whole number from {least} to {MAX_SIZE:,}"
                raise InputError(f"dimension {name} is {value!r}", where=f"zoo:{self.name}", remedy=remedy)
        sizes = {**self.dims, **requested}
        for parts in UNROLLED:
            present = {name: sizes[name] for name in parts if name in sizes}
            if math.prod(present.values()) * OPS_PER_PART > MAX_OPS:
                problem = f"{' × '.join(f'{n:,} {name}' for name, n in present.items())} give more than {MAX_OPS:,} ops"
                raise InputError(problem, where=f"zoo:{self.name}", remedy="choose fewer")
        return sizes
