"""Write the tables of the catalogue into docs/catalogue.md: `python scripts/write_device_tables.py`."""

from __future__ import annotations

import re
from pathlib import Path

from placewise._util.units import format_count, format_seconds
from placewise.catalog import known_links
from placewise.catalog.entries import FITTED_CORES, DeviceEntry, catalog
from placewise.catalog.prices import list_prices

PAGE = Path(__file__).parent.parent / "docs" / "catalogue.md"
TYPES = {
    "float32": "float32",
    "tf32": "TF32",
    "float16": "float16",
    "float8_e4m3": "float8",
    "int8": "int8",
    "int4": "int4",
}
"""Peaks that are listed, and the heads of their columns."""
HEADS = ("name", "also", *TYPES.values(), "memory", "bandwidth", "to the host", "to its equals")
KINDS = {
    "cuda": "GPUs of NVIDIA",
    "amd_gpu": "GPUs of AMD",
    "intel_gpu": "GPUs of Intel",
    "apple_gpu": "GPUs of Apple",
    "apple_cpu": "Processors of Apple",
    "npu": "NPUs",
    "tensor_processor": "Tensor processors",
    "cpu": "CPUs",
}
"""Behaviours in the order of the page, and what devices have them."""


def devices() -> list[str]:
    """A table per behaviour, a row per device: name, other names, peaks, memory, bandwidth, links; no empty columns."""
    lines: list[str] = []
    for behaviour, title in KINDS.items():
        rows = [HEADS, *(device_row(n, e) for n, e in catalog().devices.items() if e.behaviour == behaviour)]
        shown = [k for k in range(len(HEADS)) if any(row[k] != "–" for row in rows[1:])]
        table = [f"| {' | '.join(row[k] for k in shown)} |" for row in rows]
        lines += [f"### {title} (`{behaviour}`)", "", table[0], "|---" * len(shown) + "|", *table[1:], ""]
    return lines[:-1]


def device_row(name: str, entry: DeviceEntry) -> tuple[str, ...]:
    """The cells of a device, its name a link to the source of its figures, – where there is nothing."""
    rates = {**entry.peak_flops, "float16": entry.peak_flops.get("float16", entry.peak_flops.get("bfloat16"))}
    peaks = (format_count(rate) if (rate := rates.get(t)) else "–" for t in TYPES)
    memory, speed = (f"{format_count(x)}B" for x in (entry.memory, entry.memory_bandwidth))
    links = (entry.host_link or "–", entry.peer_link or "–")
    return (f"[{name}]({entry.url})", ", ".join(entry.aliases) or "–", *peaks, memory, f"{speed}/s", *links)


def links() -> list[str]:
    """One row per link: name, what it is, bytes/s in one direction, the share reached, latency, source."""
    rows = [
        "| name | also | what | published, each way | reached | latency | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for link in known_links():
        speed = f"{format_count(link.bandwidth)}B/s" if link.bandwidth < float("inf") else "no time"
        cells = (link.name, ", ".join(link.aliases) or "–", link.title, speed, f"{link.efficiency:.0%}")
        rows.append(f"| {' | '.join((*cells, format_seconds(link.latency), link.source))} |")
    return rows


def disks() -> list[str]:
    """One row per disk: name, what it is, bytes/s, the share reached, source."""
    rows = ["| name | what | published | reached | source |", "|---|---|---|---|---|"]
    for name, entry in catalog().disks.items():
        speed, share = f"{format_count(entry.bandwidth)}B/s", f"{entry.efficiency:.0%}"
        rows.append(f"| {' | '.join((name, entry.title, speed, share, entry.source))} |")
    return rows


def prices() -> list[str]:
    """One row per list price: device, USD per hour, source with its date."""
    rows = ["| name | USD per hour | list price of |", "|---|---|---|"]
    for name, price in list_prices().items():
        rows.append(f"| {name} | {price.per_hour:g} | [{price.source}]({price.url}), {price.date} |")
    return rows


def efficiencies() -> list[str]:
    """One row per behaviour: the share reached by class of op, and seconds per op."""
    classes = list(catalog().behaviour["cpu"].efficiency)
    rows = [f"| | {' | '.join(classes)} | per op |", "|---" * (len(classes) + 2) + "|"]
    counts = {name: (1, 2, 4, 8, 16) if entry.scaling < 1 else (0,) for name, entry in catalog().behaviour.items()}
    for name, entry in catalog().behaviour.items():
        for cores in counts[name]:
            shares = " | ".join(f"{entry.efficiency_on(cores)[word]:.2g}" for word in classes)
            title = f"{name}, {cores} core{'s'[: cores > 1]}{' and more' * (cores == FITTED_CORES)}" if cores else name
            rows.append(f"| {title} | {shares} | {format_seconds(entry.overhead_on(cores))} |")
    return rows


def assumed() -> list[str]:
    """One item per clause, or parenthesis in it, of a source that assumes something, with its devices."""
    found: dict[str, list[str]] = {}
    for name, entry in catalog().devices.items():
        for clause in split_clauses(entry.source.rstrip(".")):
            if "assumed" in clause:
                inner = re.search(r"\((assumed: .*)\)$", clause)
                found.setdefault(inner[1] if inner else clause, []).append(name)
    return [f"- {clause} – {', '.join(names)}." for clause, names in found.items()]


def behaviours() -> list[str]:
    """One item per behaviour, with its source."""
    return [f"- **{name}**: {entry.source.rstrip('.')}." for name, entry in catalog().behaviour.items()]


def split_clauses(source: str) -> list[str]:
    """The clauses of a source, which semicolons outside parentheses part."""
    depth, found = 0, [""]
    for letter in source:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        found[-1] += letter if letter != ";" or depth else ""
        found += [""] if letter == ";" and not depth else []
    return [clause.strip() for clause in found]


TABLES = {
    "devices": devices,
    "links": links,
    "disks": disks,
    "prices": prices,
    "efficiencies": efficiencies,
    "assumed": assumed,
    "behaviours": behaviours,
}


def written(page: str) -> str:
    """The page with every table, which stands between two comments, as the catalogue has it now."""
    for name, rows in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, found, rest = page.partition(start)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise SystemExit(f"{PAGE} has no place for {name}")
        page = "\n".join((before + start, "", *rows(), "", end + after))
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
