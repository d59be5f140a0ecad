"""The output of ``nvidia-smi topo -m`` → the links between the GPUs of one machine.

The output is a matrix with a code per pair (see the legend of the command): NV# means # NVLinks; PIX and PXB, a route
over PCIe bridges without a host bridge; PHB, NODE and SYS (formerly SOC), a route over the host. NVLinks and PCIe
bridges become direct links; routes over the host go through host memory. Columns of network cards and affinities are
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from placewise._util.safe_open import read_regular
from placewise.catalog.device_specs import DeviceSpec, add_notes
from placewise.catalog.entries import catalog
from placewise.catalog.links import LinkSpeed, Pair, catalog_speed
from placewise.errors import ClusterError

MAX_FILE = 1 << 20
"""Bytes."""

_ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU, _NVLINKS = re.compile(r"GPU(\d+)"), re.compile(r"NV(\d{1,3})")
_BRIDGES, _HOST = ("PIX", "PXB"), ("PHB", "NODE", "SYS", "SOC")
_REMEDY = "give the text that `nvidia-smi topo -m` prints"


def read_topology(path: Path) -> dict[tuple[int, int], str]:
    """The code of every ordered pair of GPU numbers. Raises ClusterError, naming the file."""
    where = str(path)
    try:
        text = read_regular(path, MAX_FILE).decode("utf-8", "replace")
    except OSError as error:
        raise ClusterError(f"cannot be read ({error.strerror})", where=where) from None
    try:
        return _parse_matrix([_ANSI_COLOUR.sub("", line).split() for line in text.splitlines()])
    except ClusterError as error:
        raise error.at(where) from None


def apply_topology(specs: Sequence[DeviceSpec], path: Path) -> tuple[tuple[DeviceSpec, ...], dict[Pair, LinkSpeed]]:
    """The devices with notes about the topology, and the links between them; ``cuda:N`` is GPU N of the topology.

    Raises ClusterError for devices missing in the topology, and for NVLinks between models without NVLink.
    """
    codes = read_topology(path)
    gpus = {int(match[1]): spec for spec in specs if (match := re.fullmatch(r"cuda:(\d{1,9})", spec.device.name))}
    known = {gpu for gpu, _ in codes}
    missing = [f"cuda:{gpu}" for gpu in gpus if gpu not in known]
    if missing or not gpus:
        mismatch = f"{missing[0]} is not one of them" if gpus else "the cluster has no cuda:0, cuda:1, …"
        remedy = "name at most as many NVIDIA devices as the topology has"
        raise ClusterError(f"describes {len(known)} GPUs, and {mismatch}", where=str(path), remedy=remedy)
    speeds: dict[Pair, LinkSpeed] = {}
    for (one, other), code in codes.items():
        if one != other and one in gpus and other in gpus:
            speed = _link_speed(code, gpus[one], gpus[other], str(path))
            if speed is not None:
                speeds[gpus[one].device.name, gpus[other].device.name] = speed
    notes_by_device = {spec.device.name: _describe_links(gpu, codes, gpus, path) for gpu, spec in gpus.items()}
    return tuple(
        replace(spec, device=add_notes(spec.device, notes_by_device[spec.device.name]), peer_link="")
        if spec.device.name in notes_by_device else spec
        for spec in specs
    ), speeds  # fmt: skip


def _link_speed(code: str, one: DeviceSpec, other: DeviceSpec, where: str) -> LinkSpeed | None:
    """The link between two GPUs; None for a route over the host."""
    links = catalog().links
    if code in _HOST:
        return None
    if code in _BRIDGES:
        routes = [catalog_speed(links[spec.host_link or catalog().defaults.link]) for spec in (one, other)]
        return min(routes, key=lambda speed: speed.bandwidth)
    match, names = _NVLINKS.fullmatch(code), {one.nvlink, other.nvlink}
    if match is None or len(names) > 1 or "" in names:
        pair = f"{one.device.name} and {other.device.name}"
        raise ClusterError(
            f"{pair} are connected by {code}, and the generation of that NVLink is unknown", where=where,
            remedy="name a model with NVLink, such as 8xA100-80GB, or give the links in a cluster file",
        )  # fmt: skip
    entry = links[one.nvlink]
    return LinkSpeed(int(match[1]) * entry.brick * entry.efficiency, entry.latency)


def _describe_links(gpu: int, codes: Mapping[tuple[int, int], str], gpus: Mapping[int, DeviceSpec], path: Path) -> str:
    routes: dict[str, list[str]] = {}
    for other, spec in gpus.items():
        if other != gpu:
            routes.setdefault(codes[gpu, other], []).append(spec.device.name)
    described = "; ".join(f"{code} to {', '.join(names)}" for code, names in routes.items())
    return f"links of {path.name}: {described or 'none'}; {', '.join(_HOST[:3])} go through host memory"


def _parse_matrix(lines: Sequence[Sequence[str]]) -> dict[tuple[int, int], str]:
    """The codes by pair of GPUs. The matrix has a header line and a row per GPU, with an X on the diagonal."""
    gpu_lines = [words for words in lines if words and _GPU.fullmatch(words[0])]
    head = next((words for words in gpu_lines if "X" not in words), ())
    columns = {place: gpu for place, word in enumerate(head) if (gpu := _gpu_number(word)) is not None}
    rows = {_gpu_number(words[0]): words[1:] for words in gpu_lines if "X" in words}
    if not columns or set(columns.values()) != set(rows) or len(rows) < len(columns):
        raise ClusterError("this is not a matrix with a row and a column per GPU", remedy=_REMEDY)
    codes = {
        (one, other): words[place] if place < len(words) else ""
        for one, words in rows.items() if one is not None
        for place, other in columns.items()
    }  # fmt: skip
    for (one, other), code in codes.items():
        if not (code == "X" if one == other else code in (*_BRIDGES, *_HOST) or _NVLINKS.fullmatch(code)):
            problem = f"the code {code[:20]!r} between GPU{one} and GPU{other} is unknown"
            raise ClusterError(problem, remedy="known: X for itself, NV1, NV2, …, PIX, PXB, PHB, NODE, SYS")
        if codes[other, one] != code:
            problem = f"GPU{one} is connected to GPU{other} by {code}, and back by {codes[other, one][:20]!r}"
            raise ClusterError(problem, remedy=_REMEDY)
    return codes


def _gpu_number(word: str) -> int | None:
    match = _GPU.fullmatch(word)
    return int(match[1]) if match and len(word) < 8 else None
