"""placewise devices: what the catalogue knows, or what a cluster description means."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewise.cli import options as opt
from placewise.cli.command import guarded, listen, show, show_json
from placewise.cli.run import Bind

if TYPE_CHECKING:
    from placewise.model.cluster import Cluster
    from placewise.profiling.calibrate import Calibration, RooflineFit
    from placewise.profiling.links import Figure, Links


_CLASSES = ("matmul", "conv", "attention", "reduction", "elementwise", "memory")


@guarded
def devices(
    cluster: Annotated[
        str | None, typer.Argument(help="'2xA100-80GB,cpu', 'this', a TOML file, or memory per device as JSON.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure memory, calls and hand-overs on the cores of this machine.")
    ] = False,
    bind: Bind = None,
    fit: Annotated[
        list[Path] | None, typer.Option(help="Fit efficiencies to this profile of the devices; may be repeated.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the cluster here, as TOML.")] = None,
    as_json: opt.Json = False,
) -> None:
    """List known devices, links and this machine; or show a cluster description with all defaults filled in.

    --measure and --fit replace figures of the catalogue by those of this machine.
    """
    from placewise.catalog import known_devices, known_links, read_cluster, this_machine
    from placewise.core.op_names import check_op_names

    listen(quiet=False)
    if measure or fit or output is not None:
        _show_measured(read_cluster(cluster or "cores"), measure, opt.bindings(bind), fit or [], output, as_json)
        return
    if cluster is not None:
        described = read_cluster(cluster)
        check_op_names(described)
        _show_cluster(described, as_json)
        return
    known, here, links = known_devices(), this_machine(), known_links()
    if as_json:
        listed = {"known": [asdict(device) for device in known], "links": [asdict(link) for link in links]}
        this = {key: sorted(value) if isinstance(value, frozenset) else value for key, value in asdict(here).items()}
        show_json({**listed, "this": this})
        return
    from placewise._util.units import format_bytes, format_seconds
    from placewise.reporting.console import rows_table

    rows = [(d.name, d.kind, *_figures(d.memory, d.memory_bandwidth, dict(d.peak_flops)), d.title) for d in known]
    speeds = _figures(here.memory, here.memory_bandwidth, dict(here.peak_flops))
    rows.append(("this", here.kind, *speeds, "this machine"))
    show(rows_table(("name", "kind", "memory ", "bandwidth ", "float32 ", "float16 ", ""), rows), "")
    ways = [(x.name, f"{format_bytes(x.bandwidth)}/s", format_seconds(x.latency), x.title) for x in links]
    show(rows_table(("link", "each way ", "latency ", ""), ways), "")
    show(*(f"note: this: {note}" for note in here.notes))


def _show_measured(
    cluster: Cluster, measure: bool, bind: dict[str, str], fit: list[Path], output: Path | None, as_json: bool
) -> None:
    from placewise.catalog.write import format_cluster
    from placewise.files.atomic import atomic_write, ensure_writable
    from placewise.files.cluster_record import cluster_to_dict
    from placewise.files.profile_file import load_profile
    from placewise.profiling.calibrate import fit_cluster
    from placewise.profiling.links import apply_links, measure_links
    from placewise.runtimes.binding import bind as bound

    if output is not None:
        ensure_writable(output)
    shown: list[Any] = []
    if measure:
        links = measure_links(cluster, bound(cluster, bind))
        cluster = apply_links(cluster, links)
        shown += _links_view(links)
    if fit:
        calibration = fit_cluster(cluster, [load_profile(path) for path in fit])
        cluster = calibration.cluster
        shown += _fit_view(calibration)
    if as_json:
        show_json(cluster_to_dict(cluster))
    elif shown:
        show(*shown)
    else:
        _show_cluster(cluster, as_json=False)
    if output is not None:
        with atomic_write(output) as file:
            file.write(format_cluster(cluster, ("written by placewise devices; -d reads it",)))
        if not as_json:
            show(f"wrote {output}")


def _links_view(links: Links) -> list[Any]:
    from placewise._util.units import format_bytes, format_seconds
    from placewise.reporting.console import rows_table

    def rate(figure: Figure) -> str:
        return f"{format_bytes(figure.value)}/s ± {figure.spread / 2:.0%}"

    def took(figure: Figure | None) -> str:
        return "–" if figure is None else f"{format_seconds(figure.value)} ± {figure.spread / 2:.0%}"

    head: tuple[str, ...] = ("device", "memory, alone ", "memory, all at once ", "a call ")
    rows = [
        (name, rate(alone), rate(links.all[name]), took(links.call.get(name))) for name, alone in links.alone.items()
    ]
    shown: list[Any] = [rows_table(head, rows)]
    if links.latency:
        head = ("from", "to", "in memory: seen after ", "and read at ", "in the runtime: ", "and ")
        pairs = [
            (
                *pair, took(latency), rate(links.bandwidth[pair]), took(links.hop_latency.get(pair)),
                rate(links.hop_bandwidth[pair]) if pair in links.hop_bandwidth else "–",
            )
            for pair, latency in links.latency.items()
        ]  # fmt: skip
        shown += ["", rows_table(head, pairs)]
    if links.skipped:
        shown.append(f"not measured, figures as they were: {', '.join(links.skipped)}")
    return [*shown, *(f"note: {note}" for note in links.notes)]


def _fit_view(calibration: Calibration) -> list[Any]:
    from placewise.reporting.console import rows_table

    def said(fit: RooflineFit | None) -> tuple[str, str]:
        return ("–", "–") if fit is None else (f"{fit.error:.1%}", f"{fit.rank:.3f}")

    head = ("device", "kernels", "error before ", "rank ", "after ", "rank ", "model left out ", "rank ")
    rows = [
        (name, str(after.kernels), *said(calibration.before[name]), *said(after), *said(calibration.left_out.get(name)))
        for name, after in calibration.after.items()
    ]
    shares = [(d.name, *(f"{d.efficiency[name]:.3g}" for name in _CLASSES)) for d in calibration.cluster]
    return ["", rows_table(head, rows), "", rows_table(("efficiency", *(f"{name} " for name in _CLASSES)), shares)]


def _show_cluster(cluster: Cluster, as_json: bool) -> None:
    from placewise._util.units import format_bytes, format_seconds
    from placewise.files.cluster_record import cluster_to_dict
    from placewise.reporting.console import rows_table

    if as_json:
        show_json(cluster_to_dict(cluster))
        return
    rows = [(d.name, d.kind, *_figures(d.memory, d.memory_bandwidth, dict(d.peak_flops))) for d in cluster]
    nodes = (("node", *(device.node for device in cluster)),) if any(cluster.nodes) else ()
    head = ("device", "kind", "memory ", "bandwidth ", "float32 ", "float16 ")
    table = [(cells[0], *column, *cells[1:]) for cells, *column in zip((head, *rows), *nodes, strict=True)]
    show(rows_table(table[0], table[1:]), "")
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
    from placewise._util.units import format_bytes, format_count

    speeds = [f"{format_count(peak[dtype])}FLOP/s" if dtype in peak else "–" for dtype in ("float32", "float16")]
    return format_bytes(memory), f"{format_bytes(bandwidth)}/s", speeds[0], speeds[1]
