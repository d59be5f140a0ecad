"""Ways to split, repeat and recompute units of ops, as columns of a problem file and a part of its header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from placewise.errors import ModelFileError
from placewise.files.columns import Array, ColumnReader, string_arrays
from placewise.files.records import Record, Whole
from placewise.model.ways import LARGEST_MICROBATCHES, LARGEST_SYNC, Ways

_WAYS: Mapping[str, type[np.generic]] = {
    "way_unit": np.int32, "degree": np.int32, "recompute": np.bool_, "gradient_bytes": np.float64,
    "bytes_in_flight": np.float64,
}  # fmt: skip
"""Columns [n_ways]."""


class WaysHeader(Record):
    """How the ops of a problem may be split. Arrays are named ways/…."""

    parts: tuple[str, ...] = Field(description="names of the columns of ways/held_bytes")
    microbatches: Whole = Field(ge=1, le=LARGEST_MICROBATCHES, description="per step")
    passes: Whole = Field(ge=1, description="how often a tensor between stages crosses per micro-batch")
    gradient_factor: float = Field(ge=0, allow_inf_nan=False, description="of the gradients of replicas; 0: inference")
    in_flight: Literal["1f1b", "gpipe", "one"] = Field(description="rule for micro-batches in flight")
    named: bool = Field(False, description="whether units have names")


def encode_ways(ways: Ways) -> tuple[WaysHeader, dict[str, Array]]:
    """The header and the arrays of ways."""
    header = WaysHeader(
        parts=ways.parts,
        microbatches=ways.microbatches,
        passes=ways.passes,
        gradient_factor=ways.gradient_factor,
        in_flight=ways.in_flight,  # type: ignore[arg-type]
        named=bool(ways.unit_names),
    )
    way, tensor = np.nonzero(ways.sync_bytes)
    arrays: dict[str, Array] = {
        "unit": ways.unit,
        **{name: getattr(ways, name) for name in _WAYS},
        **string_arrays("name", ways.name),
        "seconds": ways.seconds,
        "collective_seconds": ways.collective_seconds,
        "held_bytes": ways.held_bytes,
        "tensor_unit": ways.tensor_unit,
        "tensor_bytes": ways.tensor_bytes,
        "reader": ways.reader,
        "reader_offsets": ways.reader_offsets,
        "sync.way": way.astype(np.int32),
        "sync.tensor": tensor.astype(np.int32),
        "sync.bytes": ways.sync_bytes[way, tensor],
        "device_class": ways.device_class,
        "node": ways.node,
        "workspace": ways.workspace,
    }
    if ways.unit_names:
        arrays |= string_arrays("unit_names", ways.unit_names)
    return header, arrays


def decode_ways(header: WaysHeader, arrays: ColumnReader, n_ops: int, n_devices: int) -> Ways:
    """The ways in header and arrays. Raises ModelFileError or CostError."""
    device_class = arrays.take("device_class", np.int32, n_devices)
    way_unit = arrays.take("way_unit", np.int32, None)
    tensor_unit = arrays.take("tensor_unit", np.int32, None)
    n_ways, n_tensors, n_classes = len(way_unit), len(tensor_unit), int(device_class.max(initial=-1)) + 1
    return Ways(
        unit=arrays.take("unit", np.int32, n_ops),
        **{name: arrays.take(name, dtype, n_ways) for name, dtype in _WAYS.items()},
        name=arrays.strings("name", n_ways),
        seconds=arrays.take("seconds", np.float64, n_ways, n_classes),
        collective_seconds=arrays.take("collective_seconds", np.float64, n_ways, n_classes),
        held_bytes=arrays.take("held_bytes", np.float64, n_ways, len(header.parts)),
        parts=header.parts,
        tensor_unit=tensor_unit,
        tensor_bytes=arrays.take("tensor_bytes", np.float64, n_tensors),
        reader=arrays.take("reader", np.int32, None),
        reader_offsets=arrays.take("reader_offsets", np.int64, n_tensors + 1),
        sync_bytes=_read_sync(arrays, n_ways, n_tensors),
        device_class=device_class,
        node=arrays.take("node", np.int32, n_devices),
        microbatches=header.microbatches,
        passes=header.passes,
        gradient_factor=header.gradient_factor,
        in_flight=header.in_flight,
        unit_names=arrays.strings("unit_names", None) if header.named else (),
        workspace=arrays.take("workspace", np.float64, None),
    )


def _read_sync(arrays: ColumnReader, n_ways: int, n_tensors: int) -> Array:
    amount = arrays.take("sync.bytes", np.float64, None)
    way, tensor = (arrays.take(f"sync.{name}", np.int32, len(amount)) for name in ("way", "tensor"))
    for name, column, end in (("way", way, n_ways), ("tensor", tensor, n_tensors)):
        if len(column) and not 0 <= column.min() <= column.max() < end:
            raise ModelFileError(f"'ways/sync.{name}' names one that does not exist", remedy="make the file again")
    if n_ways * n_tensors > LARGEST_SYNC:
        raise ModelFileError(f"has {n_ways:,} ways and {n_tensors:,} tensors, too many", remedy="use larger units")
    sync = np.zeros((n_ways, n_tensors))
    sync[way, tensor] = amount
    return sync
