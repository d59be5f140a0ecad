"""CostTable: what every op costs on every device, and every tensor on every kind of link."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from placewise.errors import CostError
from placewise.model.cluster import Cluster
from placewise.model.columns import Bools, Bytes8, Floats, Ints, frozen
from placewise.model.graph import Graph

LARGEST_TIME = 1e300
"""Seconds: the sum of the times of a hundred million ops is still a number."""


@dataclass(frozen=True, slots=True)
class MachineRuns:
    """What whole runs on this machine say beside the costs that were measured on it (`placewise profile`).

    `own_threads` are the seconds of the whole model with the runtime's own threads on `cores` cores, with the relative
    error `own_threads_error`; inf if that was not measured. `plans` counts the plans that were chosen by these costs
    and then run: they took `longer` than the costs say, as a share, with a relative error of `error` around it. A plan
    is chosen for being fast by the costs, so that what the costs miss in its favour is chosen with it.
    """

    own_threads: float = float("inf")
    own_threads_error: float = 0.0
    cores: int = 0
    longer: float = 0.0
    error: float = 0.0
    plans: int = 0

    def describe_plans(self) -> str:
        """The plans that were run, in words: ``3 plans that these costs chose``."""
        return f"{self.plans} plan{'s' if self.plans > 1 else ''} that these costs chose"


NO_RUNS = MachineRuns()


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """Seconds of every op on every device and of every tensor on every link class.

    All are seconds per sample: what a phase of the graph repeats counts every time.
    `op_seconds` [n_ops, n_devices], inf where a device cannot run the op; `transfer_seconds`
    [n_tensors, n_link_classes], column 0 (the same memory) zero; `op_source` [n_ops, n_devices] indexes
    `sources` and says where each op's figure comes from ("given", "roofline", "measured", "assumed");
    `transfer_source` says the same of the transfers. `spread` is the relative spread (interquartile range / median)
    of what was measured, 0 where none is recorded. `runs` says what runs of whole plans add to that.
    """

    op_seconds: Floats
    transfer_seconds: Floats
    op_source: Bytes8
    sources: tuple[str, ...] = ("given",)
    transfer_source: str = "given"
    spread: float = 0.0
    runs: MachineRuns = NO_RUNS

    def __post_init__(self) -> None:
        for name, dtype in (("op_seconds", np.float64), ("transfer_seconds", np.float64), ("op_source", np.int8)):
            object.__setattr__(self, name, frozen(getattr(self, name), dtype))

    def __repr__(self) -> str:
        ops, devices = self.op_seconds.shape
        return f"CostTable({ops} ops on {devices} devices; {', '.join(self.sources)})"

    @classmethod
    def given(cls, op_seconds: Floats, transfer_seconds: Floats) -> CostTable:
        """A table whose figures all come from the user."""
        return cls(op_seconds, transfer_seconds, np.zeros(np.shape(op_seconds), np.int8))

    def is_from(self, sources: Collection[str]) -> Bools:
        """Which op times [n_ops, n_devices] come from one of some sources."""
        codes = [code for code, name in enumerate(self.sources) if name in sources]
        found: Bools = np.isin(self.op_source, codes)
        return found

    def seconds_on(self, device: Ints) -> Floats:
        """Seconds per sample of every op on its `device` [n_ops]; 0 without one (−1), or where it cannot run."""
        seconds = self.op_seconds[np.arange(len(self.op_seconds)), np.maximum(device, 0)]
        return np.where((device >= 0) & np.isfinite(seconds), seconds, 0.0)

    def validate(self, graph: Graph, cluster: Cluster) -> None:
        """Raise CostError, naming op or tensor and device, if a figure is missing, NaN, negative or absurdly large."""
        expected = (graph.n_ops, len(cluster))
        if self.op_seconds.shape != expected or self.op_source.shape != expected:
            raise CostError(f"op_seconds has shape {self.op_seconds.shape} instead of {expected}")
        if self.op_source.size and not 0 <= self.op_source.min() <= self.op_source.max() < len(self.sources):
            raise CostError("op_source holds a code outside sources")
        expected = (graph.n_tensors, len(cluster.class_bandwidth))
        if self.transfer_seconds.shape != expected:
            raise CostError(f"transfer_seconds has shape {self.transfer_seconds.shape} instead of {expected}")
        bad = ~((self.op_seconds >= 0) & ((self.op_seconds <= LARGEST_TIME) | (self.op_seconds == np.inf)))
        if bad.any():
            op, device = np.argwhere(bad)[0]
            raise CostError(
                f"the time of op {graph.ops.name[op]!r} on {cluster.names[device]} is {self.op_seconds[op, device]}",
                remedy=f"give seconds from 0 to {LARGEST_TIME:g}, or inf where the device cannot run it",
            )
        bad = ~((self.transfer_seconds >= 0) & (self.transfer_seconds <= LARGEST_TIME))
        if bad.any():
            tensor, kind = np.argwhere(bad)[0]
            raise CostError(
                f"the transfer time of tensor {graph.tensors.name[tensor]!r} is {self.transfer_seconds[tensor, kind]}",
                remedy=f"give seconds from 0 to {LARGEST_TIME:g}",
            )
        if self.transfer_seconds[:, :1].any():
            raise CostError("link class 0 is the same memory and must cost nothing")


def transfer_seconds_of(graph: Graph, cluster: Cluster) -> Floats:
    """Transfer times [n_tensors, n_link_classes] from bytes: latency + bytes / bandwidth.

    What a phase repeats is paid every time. Tensors of unknown size that no op reads and nobody asks for cost
    nothing; others raise CostError.
    """
    unknown = graph.tensors.bytes < 0
    if unknown.any():
        needed = unknown & ((np.diff(graph.consumer_offsets) > 0) | graph.tensors.output)
        if needed.any():
            name = graph.tensors.name[int(np.argmax(needed))]
            raise CostError(
                f"the size of tensor {name!r} is unknown", remedy="give its shape, or its symbolic dimensions"
            )
    size = np.maximum(graph.tensors.bytes, 0)[:, None].astype(np.float64)
    with np.errstate(over="ignore"):
        seconds = cluster.class_latency + size / cluster.class_bandwidth
        if graph.phases:
            seconds *= graph.tensor_repeats[:, None]
    seconds[:, 0] = 0.0
    return seconds
