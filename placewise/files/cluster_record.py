"""The record of a cluster with all its figures, as stored in problem and plan files."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

from placewise.files.records import Amount, Record, Whole
from placewise.model.cluster import Cluster, Device, Link

MAX_DEVICES = 4096
"""Files with more devices are refused: a cluster's tables grow quadratically."""

_Names = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str])]


class DeviceRecord(Record):
    """One device; `null` is unlimited."""

    name: str
    kind: str = Field("accelerator", description='"cpu" and "disk": works in host memory')
    memory: Amount = Field(math.inf, description="bytes")
    reserved: Amount = Field(0.0, description="bytes that placements may not use")
    peak_flops: dict[str, Amount] = Field({}, description="FLOP/s by element type")
    memory_bandwidth: Amount = Field(math.inf, description="bytes per second")
    op_overhead: Amount = Field(0.0, description="seconds per op")
    call_overhead: Amount = Field(0.0, description="seconds per call")
    efficiency: dict[str, Amount] = Field({}, description="achieved fraction of the peak by class of op")
    streams: Whole = Field(1, description="ops that run concurrently")
    weight_bandwidth: Amount = Field(math.inf, description="bytes per second at which weights are read in every run")
    unsupported: _Names = Field(frozenset(), description="op kinds that the device cannot run")
    supported: Annotated[_Names | None, Field(description="the only op kinds that it runs; null: all")] = None
    available: bool = Field(True, description="false: the device is not used")
    error: Amount = Field(0.0, description="relative error of times by these figures; 0: not measured")
    notes: tuple[str, ...] = Field((), description="assumed defaults")
    node: str = Field("", description="the machine that holds the device")


class LinkRecord(Record):
    """A directed link between two devices, or a device and the host."""

    source: str = Field(description='device name or "host"')
    target: str = Field(description='device name or "host"')
    bandwidth: Amount = Field(description="bytes per second")
    latency: Amount = Field(0.0, description="seconds")
    shared: str = Field("", description="links with the same name share one physical link")


class ClusterRecord(Record):
    """Devices and links, in order. Derived tables are not stored."""

    format: Literal["placewise-cluster"] = "placewise-cluster"
    version: Literal[1] = 1
    transfers: Literal["direct", "staged"] = Field(
        description="direct: devices send to each other; staged: transfers go through host memory"
    )
    devices: tuple[DeviceRecord, ...] = Field(min_length=1, max_length=MAX_DEVICES)
    links: tuple[LinkRecord, ...] = ()


def cluster_record(cluster: Cluster) -> ClusterRecord:
    """The record of a cluster."""
    return ClusterRecord.model_validate(cluster)


def cluster_of(record: ClusterRecord) -> Cluster:
    """The cluster of a record. Raises ClusterError."""
    devices = tuple(Device(**dict(device)) for device in record.devices)
    return Cluster(devices, tuple(Link(**dict(link)) for link in record.links), record.transfers)


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """A cluster as plain JSON values; None is unlimited."""
    return cluster_record(cluster).model_dump(mode="json")
