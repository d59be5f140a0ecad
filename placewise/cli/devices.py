"""placewise devices: what the catalogue knows, or what a cluster description means."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.run import guarded, listen, show, show_json

if TYPE_CHECKING:
    from placewise.model.cluster import Cluster


@guarded
def devices(
    cluster: Annotated[
        str | None, typer.Argument(help="'2xA100-80GB,cpu', 'this', a TOML file, or memory per device as JSON.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """List the known devices and this machine; or show what a cluster description means, with every default taken."""
    from placewise.catalog import known_devices, read_cluster, this_machine

    listen(quiet=False)
    if cluster is not None:
        _show_cluster(read_cluster(cluster), as_json)
        return
    known, here = known_devices(), this_machine()
    if as_json:
        show_json({"known": [asdict(device) for device in known], "this": _plain(asdict(here))})
        return
    from placewise.report.console import rows_table

    rows = [(d.name, d.kind, *_figures(d.memory, d.memory_bandwidth, dict(d.peak_flops)), d.title) for d in known]
    speeds = _figures(here.memory, here.memory_bandwidth, dict(here.peak_flops))
    rows.append(("this", here.kind, *speeds, "this machine"))
    show(rows_table(("name", "kind", "memory ", "bandwidth ", "float32 ", "float16 ", ""), rows))
    show(*(f"note: this: {note}" for note in here.notes))


def _show_cluster(cluster: Cluster, as_json: bool) -> None:
    from placewise.files.cluster_file import cluster_to_dict
    from placewise.report.console import rows_table
    from placewise.units import format_bytes, format_seconds

    if as_json:
        show_json(cluster_to_dict(cluster))
        return
    rows = [(d.name, d.kind, *_figures(d.memory, d.memory_bandwidth, dict(d.peak_flops))) for d in cluster]
    show(rows_table(("device", "kind", "memory ", "bandwidth ", "float32 ", "float16 "), rows), "")
    links = [
        (link.source, link.target, f"{format_bytes(link.bandwidth)}/s", format_seconds(link.latency), link.shared)
        for link in cluster.links
    ]
    show(rows_table(("from", "to", "bandwidth ", "latency ", "shared wire"), links))
    show(f"transfers: {cluster.transfers}")
    for device in cluster:
        for note in device.notes:
            show(f"note: {device.name}: {note}")


def _figures(memory: float, bandwidth: float, peak: dict[str, float]) -> tuple[str, str, str, str]:
    from placewise.units import format_bytes, format_count

    speeds = [f"{format_count(peak[dtype])}FLOP/s" if dtype in peak else "–" for dtype in ("float32", "float16")]
    return format_bytes(memory), f"{format_bytes(bandwidth)}/s", speeds[0], speeds[1]


def _plain(document: dict[str, object]) -> dict[str, object]:
    return {key: sorted(value) if isinstance(value, frozenset) else value for key, value in document.items()}
