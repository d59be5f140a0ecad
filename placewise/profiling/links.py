"""measure_links(): measure the memory of this machine's cores and the transfers between them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import permutations
from typing import Any

import numpy as np

from placewise.catalog.device_specs import add_notes
from placewise.errors import InputError
from placewise.model.cluster import Cluster, Device, Link
from placewise.processes.scratch import scratch_folder
from placewise.processes.shared_memory import SharedMemory
from placewise.processes.worker import Worker
from placewise.profiling.hops import measure_hops, write_chain
from placewise.profiling.servers.memory import BOARD
from placewise.profiling.servers.window import TimeWindow
from placewise.runtimes.binding import Place, require_limits

LARGE = 64 << 20
"""Bytes of a copy that fits no cache."""
SMALL, MIDDLE = 64, 1 << 20
"""Bytes of a tensor of one cache line, and of the result of a layer."""
TRANSFERS, COPIES, CALLS = 300, 7, 300
LEAD = 0.1
_MEMORY_SERVER = "placewise.profiling.servers.memory:MemoryServer"
_CALL_SERVER = "placewise.profiling.servers.onnxruntime:OnnxRuntimeServer"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure: the median, and the quartiles around it."""

    value: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The distance between the quartiles as a share of the median."""
        return (self.high - self.low) / self.value if self.value else 0.0


@dataclass(frozen=True, slots=True)
class Links:
    """Measurements of the devices on cores.

    By device: bytes/s of memory copies by this device `alone` and by `all` devices at once, and the seconds of a `call`
    of ONNX Runtime. By (from, to): seconds (`latency`) and bytes/s (`bandwidth`) of a tensor from another core, in
    memory alone and in the runtime (`hop_latency`, `hop_bandwidth`). `skipped` are the devices that were not measured.
    """

    alone: Mapping[str, Figure]
    all: Mapping[str, Figure]
    call: Mapping[str, Figure]
    latency: Mapping[tuple[str, str], Figure]
    bandwidth: Mapping[tuple[str, str], Figure]
    hop_latency: Mapping[tuple[str, str], Figure]
    hop_bandwidth: Mapping[tuple[str, str], Figure]
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def measure_links(cluster: Cluster, places: Sequence[Place], *, seconds: float = 120.0) -> Links:
    """Measure the devices on cores, alone and in pairs; a worker that does not answer within `seconds` has failed.

    Raises InputError if no device is on cores, RunError if a worker fails.
    """
    on_cores = [place for place in places if place.kind == "cores"]
    if not on_cores:
        raise InputError("none of these devices is on cores of this machine", remedy="give 'cores', or --bind")
    require_limits(on_cores, "onnxruntime", ("quota",))
    names = [place.device for place in on_cores]
    with ExitStack() as stack:
        memory = SharedMemory(BOARD + MIDDLE)
        stack.callback(memory.close)
        workers = [
            stack.enter_context(
                Worker(
                    _MEMORY_SERVER,
                    memory.fd,
                    MIDDLE,
                    name=str(place),
                    cores=place.cores,
                    quota=place.quota,
                    fds=(memory.fd,),
                    start=seconds,
                )
            )
            for place in on_cores
        ]
        alone = [_rate(LARGE, worker.ask("copies", LARGE, TimeWindow(COPIES), timeout=seconds)) for worker in workers]
        longest = max(2 * LARGE / figure.low for figure in alone)
        window = TimeWindow(COPIES, time.monotonic() + LEAD, 2 * COPIES * longest)
        for worker in workers:
            worker.tell("copies", LARGE, window)
        together = [_rate(LARGE, worker.answer(seconds)) for worker in workers]
        latency, bandwidth = {}, {}
        for one, other in permutations(range(len(on_cores)), 2):
            pair = names[one], names[other]
            ends = workers[one], workers[other]
            latency[pair] = _figure([seen for seen, _ in _measure_transfers(*ends, SMALL, seconds)])
            reads = [read for _, read in _measure_transfers(*ends, MIDDLE, seconds)]
            bandwidth[pair] = _figure([MIDDLE / read for read in reads if read > 0])
    skipped, notes = tuple(name for name in cluster.names if name not in names), tuple[str, ...]()
    call, hops = dict[str, Figure](), dict[tuple[str, str], tuple[list[float], list[float]]]()
    if find_spec("onnxruntime") is None:
        notes = ("ONNX Runtime is not installed: what its calls and hand-overs cost was not measured",)
    else:
        call = _measure_calls(on_cores, seconds)
        hops = measure_hops(cluster, places, {name: figure.value for name, figure in call.items()}, seconds=seconds)
    return Links(
        dict(zip(names, alone, strict=True)), dict(zip(names, together, strict=True)), call, latency, bandwidth,
        {pair: _figure(latencies) for pair, (latencies, _) in hops.items()},
        {pair: _figure(rates) for pair, (_, rates) in hops.items()}, skipped, notes,
    )  # fmt: skip


def apply_links(cluster: Cluster, links: Links) -> Cluster:
    """The cluster with the measured figures, and notes on its devices.

    Cores that work in host memory (kind ``cpu``) have no links between them; cores with a memory of their own have.
    """
    devices = tuple(_apply_to_device(device, links) for device in cluster)
    ends, rates = {device.name for device in cluster if not device.is_host}, (links.bandwidth, links.hop_bandwidth)
    latency = {**links.latency, **links.hop_latency}
    measured = {
        pair: Link(*pair, min(each[pair].value for each in rates if pair in each), latency[pair].value)
        for pair in latency
        if ends.issuperset(pair)
    }
    kept = [link for link in cluster.links if (link.source, link.target) not in measured]
    return Cluster(devices, (*kept, *measured.values()), "direct" if measured else cluster.transfers)


def _apply_to_device(device: Device, links: Links) -> Device:
    if device.name not in links.alone:
        return device
    alone, every = links.alone[device.name], links.all[device.name]
    notes = [
        f"measured: memory {alone.value / 1e9:.3g} GB/s read and written by it alone (spread {alone.spread:.0%}), "
        f"{every.value / 1e9:.3g} GB/s with all {len(links.all)} devices at it"
    ]
    changes: dict[str, float] = {"memory_bandwidth": alone.value}
    if device.name in links.call:
        call = links.call[device.name]
        changes["call_overhead"] = call.value
        notes.append(f"measured: {call.value * 1e6:.3g} µs for a call of ONNX Runtime (spread {call.spread:.0%})")
    return add_notes(replace(device, **changes), *notes)  # type: ignore[arg-type]


def _measure_transfers(writer: Worker, reader: Worker, size: int, seconds: float) -> list[tuple[float, float]]:
    reader.tell("read", size, TRANSFERS)
    transfers: list[tuple[float, float]] = writer.ask("write", size, TRANSFERS, timeout=seconds)
    reader.answer(seconds)
    return transfers[TRANSFERS // 10 :]


def _measure_calls(places: Sequence[Place], seconds: float) -> dict[str, Figure]:
    """The seconds of a call of ONNX Runtime, by device."""
    calls = {}
    with scratch_folder() as folder:
        path = write_chain(folder / "tiny.onnx", 1, ops=1)
        for place in places:
            limits: dict[str, Any] = {"cores": place.cores, "quota": place.quota}
            with Worker(_CALL_SERVER, path, {}, place, name=str(place), start=seconds, **limits) as worker:
                calls[place.device] = _figure(worker.ask("call_seconds", CALLS, timeout=seconds))
    return calls


def _rate(size: int, times: Sequence[float]) -> Figure:
    """Bytes/s read and written by copies of `size` bytes, from their seconds."""
    return _figure([2 * size / seconds for seconds in times])


def _figure(values: Sequence[float]) -> Figure:
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return Figure(middle, low, high)
