"""Pydantic models of the tables of a cluster file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from placewise.catalog.device_specs import MAX_DEVICES
from placewise.catalog.entries import find_link
from placewise.catalog.fields import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Share, Table
from placewise.catalog.links import LinkSpeed, catalog_speed
from placewise.errors import ClusterError
from placewise.model.cluster import MAX_STREAMS, Transfers


class DeviceTable(Table):
    """``[[devices]]``: a `model` of the catalogue, explicit figures, or a model with some figures overridden."""

    model: str = ""
    name: str = ""
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_DEVICES)] = 1
    kind: str | None = None
    memory: Bytes | None = None
    reserved: Bytes | None = None
    peak_flops: Mapping[str, FlopsPerSecond] | None = None
    memory_bandwidth: BytesPerSecond | None = None
    efficiency: Mapping[str, Share] | None = None
    op_overhead: Seconds | None = None
    call_overhead: Seconds | None = None
    streams: Annotated[int, Field(strict=True, ge=1, le=MAX_STREAMS)] | None = None
    weight_bandwidth: BytesPerSecond | None = None
    unsupported: frozenset[str] | None = None
    supported: Annotated[frozenset[str], Field(min_length=1)] | None = None
    available: Annotated[bool, Field(strict=True)] | None = None
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    notes: tuple[str, ...] = ()
    node: str | None = None

    @model_validator(mode="after")
    def _takes_or_refuses(self) -> DeviceTable:
        both = (self.supported or frozenset()) & (self.unsupported or frozenset())
        if both:
            raise ValueError(f"{min(both)} is both supported and unsupported: take it out of one of the two lists")
        return self


class SpeedTable(Table):
    """``[default_link]``: all pairs without another link. `model` is a link of the catalogue."""

    model: str = ""
    bandwidth: BytesPerSecond | None = None
    latency: Seconds | None = None
    shared: str = ""

    @model_validator(mode="after")
    def _has_a_speed(self) -> SpeedTable:
        if not self.model and self.bandwidth is None:
            raise ValueError("the link has neither a model nor a bandwidth: give it one of the two")
        try:
            _ = self.speed
        except ClusterError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def speed(self) -> LinkSpeed:
        known = catalog_speed(find_link(self.model)) if self.model else LinkSpeed(self.bandwidth or 0.0)
        bandwidth = known.bandwidth if self.bandwidth is None else self.bandwidth
        return LinkSpeed(bandwidth, known.latency if self.latency is None else self.latency, self.shared)


class LinkTable(SpeedTable):
    """``[[links]]``: from `source` to `target`, and back unless a separate table gives the way back."""

    source: str
    target: str


class GroupTable(SpeedTable):
    """``[[groups]]``: every pair of `devices`, both ways."""

    devices: Annotated[tuple[str, ...], Field(min_length=2)]


class NodeTable(Table):
    """``[[nodes]]``: `count` equal nodes of devices or smaller nodes; `link` connects the devices of one node.

    Without a `name`, nodes are numbered.
    """

    name: str = ""
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_DEVICES)] = 1
    devices: Annotated[tuple[DeviceTable, ...], Field(max_length=MAX_DEVICES)] = ()
    nodes: Annotated[tuple[NodeTable, ...], Field(max_length=MAX_DEVICES)] = ()
    link: SpeedTable | None = None


class ClusterTable(Table):
    """A cluster file. `topology` is the path of a file with the output of ``nvidia-smi topo -m``, relative to it.

    `prices` are per hour, by model or name of a device; `placewise sweep` reads them.
    """

    devices: Annotated[tuple[DeviceTable, ...], Field(max_length=MAX_DEVICES)] = ()
    nodes: Annotated[tuple[NodeTable, ...], Field(max_length=MAX_DEVICES)] = ()
    links: tuple[LinkTable, ...] = ()
    groups: tuple[GroupTable, ...] = ()
    node_link: SpeedTable | None = None
    default_link: SpeedTable | None = None
    topology: str = ""
    transfers: Transfers | None = None
    prices: Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
