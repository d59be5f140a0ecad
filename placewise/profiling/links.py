"""measure_links(): memory and hand-overs of this machine's cores, and a cluster with these figures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import permutations

import numpy as np

from placewise.catalog.device_specs import add_notes
from placewise.errors import InputError
from placewise.model.cluster import Cluster, Device, Link
from placewise.processes.arena import Arena
from placewise.processes.scratch import scratch
from placewise.processes.worker import Worker
from placewise.profiling.hops import chain, hops
from placewise.profiling.servers.memory import BOARD
from placewise.profiling.servers.window import Window
from placewise.runtimes.binding import Place

LARGE = 64 << 20
"""Bytes of a copy that no cache holds."""
SMALL, MIDDLE = 64, 1 << 20
"""Bytes of a tensor that is there with its first cache line, and of one that a layer hands on."""
HANDED, COPIES, CALLS = 300, 7, 300
LEAD = 0.1
_SERVED = "placewise.profiling.servers.memory:MemoryServer"
_CALLED = "placewise.profiling.servers.onnxruntime:OnnxRuntimeServer"


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
    """What was measured of the devices that are cores, by name: bytes/s of memory that one of them copies `alone` and
    with `all` of them at it; seconds of a runtime's `call` that does nothing; and by (from, to) the seconds (`latency`)
    and the bytes/s (`bandwidth`) that it costs that a tensor comes from another core, in the memory alone, and in the
    runtime (`hop_latency`, `hop_bandwidth`). `skipped` are devices not measured.
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
    """Measure the devices that are on cores, two and two; `seconds` is how long any one answer may take.

    Raises InputError if none is, RunError if a worker fails.
    """
    here = [place for place in places if place.kind == "cores"]
    if not here:
        raise InputError("none of these devices is on cores of this machine", remedy="give 'cores', or --bind")
    names = [place.device for place in here]
    with ExitStack() as stack:
        arena = Arena(BOARD + MIDDLE)
        stack.callback(arena.close)
        workers = [
            stack.enter_context(
                Worker(_SERVED, arena.fd, MIDDLE, name=str(place), cores=place.cores, fds=(arena.fd,), start=seconds)
            )
            for place in here
        ]
        alone = [_rate(LARGE, worker.ask("copies", LARGE, Window(COPIES), timeout=seconds)) for worker in workers]
        longest = max(2 * LARGE / figure.low for figure in alone)
        window = Window(COPIES, time.monotonic() + LEAD, 2 * COPIES * longest)
        for worker in workers:
            worker.tell("copies", LARGE, window)
        together = [_rate(LARGE, worker.answer(seconds)) for worker in workers]
        latency, bandwidth = {}, {}
        for one, other in permutations(range(len(here)), 2):
            pair = names[one], names[other]
            latency[pair] = _figure([first for first, _ in _handed(workers[one], workers[other], SMALL, seconds)])
            read = [second for _, second in _handed(workers[one], workers[other], MIDDLE, seconds)]
            bandwidth[pair] = _figure([MIDDLE / found for found in read if found > 0])
    skipped, notes = tuple(name for name in cluster.names if name not in names), tuple[str, ...]()
    call, hop = dict[str, Figure](), dict[tuple[str, str], tuple[list[float], list[float]]]()
    if find_spec("onnxruntime") is None:
        notes = ("ONNX Runtime is not installed: what its calls and hand-overs cost was not measured",)
    else:
        call = _calls(here, seconds)
        hop = hops(cluster, places, {name: found.value for name, found in call.items()}, seconds=seconds)
    return Links(
        dict(zip(names, alone, strict=True)), dict(zip(names, together, strict=True)), call, latency, bandwidth,
        {pair: _figure(late) for pair, (late, _) in hop.items()},
        {pair: _figure(rate) for pair, (_, rate) in hop.items()}, skipped, notes,
    )  # fmt: skip


def measured_cluster(cluster: Cluster, links: Links) -> Cluster:
    """The cluster with the measured figures, and notes that say so.

    Cores that work in host memory itself (kind ``cpu``) have no links between them; cores that are devices with a
    memory of their own have, and hand over what they make.
    """
    devices = tuple(_measured(device, links) for device in cluster)
    ends, rates = {device.name for device in cluster if not device.is_host}, (links.bandwidth, links.hop_bandwidth)
    latency = {**links.latency, **links.hop_latency}
    found = {
        pair: Link(*pair, min(each[pair].value for each in rates if pair in each), latency[pair].value)
        for pair in latency
        if ends.issuperset(pair)
    }
    kept = [link for link in cluster.links if (link.source, link.target) not in found]
    return Cluster(devices, (*kept, *found.values()), "direct" if found else cluster.transfers)


def _measured(device: Device, links: Links) -> Device:
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


def _handed(writer: Worker, reader: Worker, size: int, seconds: float) -> list[tuple[float, float]]:
    reader.tell("read", size, HANDED)
    found: list[tuple[float, float]] = writer.ask("write", size, HANDED, timeout=seconds)
    reader.answer(seconds)
    return found[HANDED // 10 :]


def _calls(places: Sequence[Place], seconds: float) -> dict[str, Figure]:
    """What a call costs in ONNX Runtime, by device."""
    found = {}
    with scratch() as folder:
        path = chain(folder / "tiny.onnx", 1, ops=1)
        for place in places:
            with Worker(_CALLED, path, {}, place, name=str(place), cores=place.cores, start=seconds) as worker:
                found[place.device] = _figure(worker.ask("call_seconds", CALLS, timeout=seconds))
    return found


def _rate(size: int, times: Sequence[float]) -> Figure:
    """Bytes/s read and written by copies of `size` bytes."""
    return _figure([2 * size / seconds for seconds in times])


def _figure(values: Sequence[float]) -> Figure:
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return Figure(middle, low, high)
