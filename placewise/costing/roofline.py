"""The roofline: an op takes as long as its arithmetic or its memory traffic, whichever is longer, plus overhead.

    seconds = max(flops / (peak[dtype] · efficiency[class]), bytes / (bandwidth · efficiency[memory])) + op_overhead

Williams, Waterman and Patterson (2009), with the fraction of each peak that programs reach. Views and constants are
free. Products between DequantizeLinear and QuantizeLinear run in int8 on devices with an int8 peak. If weights are
read anew in every run, as from a disk, their reading is added. A device without a peak for an element type uses that
of another type; a device without any peak is limited by its memory alone. Both are marked as assumed. Float32 takes the
place of TF32 without being assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from placewise.costing.op_instance import CLASSES
from placewise.costing.quantized import quantize_work
from placewise.costing.work import OpWork, count_weight_bytes, work_of
from placewise.errors import CostError
from placewise.model.cluster import Cluster, Device
from placewise.model.columns import Bools, Bytes8, Floats
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.dtypes import DTYPES, dtype_code
from placewise.model.graph import Graph
from placewise.model.quantized import fuses_quantized

SOURCES = ("roofline", "assumed")

_STAND_INS: Mapping[str, tuple[str, ...]] = {
    "float8_e4m3": ("float8_e5m2", "float16", "bfloat16"),
    "float8_e5m2": ("float8_e4m3", "float16", "bfloat16"),
    "float4_e2m1": ("float8_e4m3", "float16", "bfloat16"),
    "uint8": ("int8",),
    "int4": ("int8",), "uint4": ("int8",), "int2": ("int8",), "uint2": ("int8",),
    "complex128": ("float64",),
}  # fmt: skip
"""Element types to try before float32 if a device has no peak for a type."""
_TF32_CLASSES: Mapping[str, tuple[str, ...]] = {
    "products": ("conv", "matmul", "attention"), "convolutions": ("conv",), "nothing": (),
}  # fmt: skip
"""Which classes of float32 ops run in TF32, by what a runtime allows."""


def allow_tf32(work: OpWork, what: str) -> OpWork:
    """Return the work with TF32 in place of float32 for "products" (also convolutions), "convolutions" or "nothing"."""
    classes = np.isin(work.op_class.codes, [CLASSES.index(name) for name in _TF32_CLASSES[what]])
    rounded = classes & (work.dtype == dtype_code("float32")) & (work.flops > 0)
    return replace(work, dtype=np.where(rounded, np.int8(dtype_code("tf32")), work.dtype)) if rounded.any() else work


def find_stand_in(device: Device, dtype: str) -> str:
    """The element type in which a device computes what is of type `dtype`; "" if no peak of the usual ones is known."""
    candidates = (dtype, *_STAND_INS.get(dtype, ()), "float32")
    return next((name for name in candidates if name in device.peak_flops), "")


def cost_table(graph: Graph, cluster: Cluster, *, work: OpWork | None = None) -> CostTable:
    """Return the seconds of every op on every device and of every tensor on every link; `work` avoids counting it
    again.

    Raises ModelFileError for a required shape that is unknown, CostError for a device with neither a peak speed nor a
    memory bandwidth.
    """
    as_written = work_of(graph) if work is None else work
    seconds, source = device_seconds(graph, cluster, as_written)
    _add_weight_reads(seconds, graph, cluster)
    if graph.phases:
        seconds *= graph.op_repeats[:, None]
    return CostTable(seconds, transfer_seconds_of(graph, cluster), source, SOURCES, SOURCES[0])


def device_seconds(
    graph: Graph, cluster: Cluster, work: OpWork, share: Floats | None = None, traffic: Floats | None = None
) -> tuple[Floats, Bytes8]:
    """Seconds [n_ops, n_devices] of one run of every op, and the codes of their sources.

    `share` and `traffic` [n_ops] are the fractions of FLOPs and bytes of ops that several devices compute together.
    """
    quantized = quantize_work(graph, work)
    if share is not None and traffic is not None:
        work = replace(work, flops=work.flops * share, bytes=work.bytes * traffic)
        quantized = replace(quantized, flops=quantized.flops * share, bytes=quantized.bytes * traffic)
    plain = [device.without_names() for device in cluster]
    like = [plain.index(device) for device in plain]
    columns = {}
    for first in sorted(set(like)):
        device = cluster.devices[first]
        columns[first] = _cost_column(device, quantized if fuses_quantized(device) else work)
    seconds = np.stack([columns[first][0] for first in like], axis=1)
    return seconds, np.stack([columns[first][1] for first in like], axis=1)


def _cost_column(device: Device, work: OpWork) -> tuple[Floats, Bytes8]:
    """Seconds of every op on one device, and the codes of their sources."""
    arithmetic = work.flops > 0
    rate, assumed = _find_flop_rates(device, np.unique(work.dtype[arithmetic]).tolist())
    bandwidth = device.memory_bandwidth * device.efficiency.get("memory", 1.0)
    with np.errstate(over="ignore"):  # a rate of next to nothing: the device cannot run what needs it
        compute = work.flops / rate[work.dtype, work.op_class.codes]
        seconds = np.maximum(compute, work.bytes / bandwidth) + device.op_overhead
    seconds[work.op_class.equals("free")] = 0.0
    return seconds, (~work.known | (assumed[work.dtype] & arithmetic)).astype(np.int8)


def _add_weight_reads(seconds: Floats, graph: Graph, cluster: Cluster) -> None:
    """Add the time to read the weights of every op on devices that do not keep them between runs."""
    bandwidth = np.array([device.weight_bandwidth for device in cluster])
    slow = np.flatnonzero(np.isfinite(bandwidth))
    if not len(slow):
        return
    seconds[:, slow] += count_weight_bytes(graph)[:, None] / bandwidth[slow]


def _find_flop_rates(device: Device, needed: list[int]) -> tuple[Floats, Bools]:
    """FLOP/s [n_dtypes, n_classes] that the device reaches, and the element types [n_dtypes] with a stand-in."""
    peak = np.full(len(DTYPES), math.inf)
    assumed = np.zeros(len(DTYPES), np.bool_)
    for code in needed:
        dtype = DTYPES[code]
        stand_in = find_stand_in(device, dtype)
        if not device.peak_flops and not math.isfinite(device.memory_bandwidth):
            raise CostError(
                "it has no peak speed and no memory bandwidth",
                where=f"device {device.name!r}",
                remedy="give peak_flops or memory_bandwidth in the cluster file; measured costs override them",
            )
        peak[code] = device.peak_flops[stand_in] if stand_in else min(device.peak_flops.values(), default=math.inf)
        assumed[code] = stand_in not in (dtype, "float32" if dtype == "tf32" else dtype)
    share = np.array([device.efficiency.get(name, 1.0) for name in CLASSES])
    return peak[:, None] * share, assumed
