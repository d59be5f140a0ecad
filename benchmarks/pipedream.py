"""PipeDream's profiles as training pipelines: `python benchmarks/pipedream.py`.

Reads the nine profiles from PLACEWISE_WORKLOADS (the folder that holds `pipedream/`). Every profile is placed on 2,
4, 8 and 16 devices of 16 GB, each joined to host memory by links of 10 and of 100 Gb/s, with `blocking` and with
`overlap`, without replicas and with any number of them (one minibatch per replica and synchronization), for the
throughput of contiguous training pipelines; memory is counted by sum. Prints a Markdown table with the value, bound,
gap and seconds of `dp` beside `dpl`, `pipedream` and `balanced`, writes every figure to `results/pipedream.json` and
the table to `results/pipedream.md`. Exits with 1 if another placer beats `dp`, if replicas or more devices make a value
of `dp` worse, or if one got worse than in the committed results. `--time-limit` (seconds, default 60) holds for each
placer and row.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from placewise.core.build import ProblemOptions, build
from placewise.core.place import place
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.problem import Problem
from placewise.placers.base import Budget

RESULTS = Path(__file__).parent / "results" / "pipedream.json"
COUNTS, GIGABITS, MODES = (2, 4, 8, 16), (10, 100), ("blocking", "overlap")
REPLICAS = (1, 0)
"""The most devices per stage, 0 for any number."""
MEMORY = 16e9
BESIDE = ("dpl", "pipedream", "balanced")


def main() -> int:
    """Run everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--only", default="", help="only profiles whose name contains this; others keep their rows")
    options = parser.parse_args()
    folder = Path(os.environ.get("PLACEWISE_WORKLOADS", "")) / "pipedream"
    profiles = sorted(path for path in folder.glob("*.txt") if path.stem != "LICENSE" and options.only in path.stem)
    if not profiles:
        print("set PLACEWISE_WORKLOADS to the folder that holds pipedream/", file=sys.stderr)
        return 2
    command = f"python benchmarks/pipedream.py --time-limit {options.time_limit:g}"
    command += f" --only {options.only}" if options.only else ""
    before = {_key(row): row for row in (json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else [])}
    after, faults = dict(before), list[str]()
    print(_HEAD)
    for path, count, gigabits, mode, replicas in product(profiles, COUNTS, GIGABITS, MODES, REPLICAS):
        row = {**_row(path, count, gigabits, mode, replicas, options.time_limit), "command": command}
        after[_key(row)] = row
        faults += _faults(row, before.get(_key(row)))
        faults += [] if replicas else _faults_of_sharing(row, after[*_key(row)[:4], 1])
        print(_line(row), flush=True)
    rows = sorted(after.values(), key=_place)
    faults += _faults_of_devices(rows)
    summary = _summary(rows)
    print("\n".join(["", summary, *faults]))
    about = {"unit": "ms per minibatch; seconds of wall time", "load": os.getloadavg()}
    lines = ",\n".join(json.dumps(row) for row in rows)
    RESULTS.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n')
    commands = "`, `".join(dict.fromkeys(row["command"] for row in rows))
    table = "\n".join([_HEAD, *map(_line, rows)])
    RESULTS.with_suffix(".md").write_text(f"Made by `{commands}`; milliseconds per minibatch. {summary}\n\n{table}\n")
    return 1 if faults else 0


def problem_of(path: Path, count: int, gigabits: float, mode: str, replicas: int = 1) -> Problem:
    """The training pipeline of a profile on equal devices that talk through host memory."""
    devices = tuple(Device(f"acc{number}", memory=MEMORY) for number in range(count))
    ends = [pair for device in devices for pair in ((device.name, HOST), (HOST, device.name))]
    cluster = Cluster(devices, tuple(Link(*pair, gigabits * 1e9 / 8) for pair in ends), "staged")
    problem_options = ProblemOptions(
        "throughput", communication=mode, memory="sum", graph="training", replicas=replicas
    )
    return build(path, cluster, problem_options)


def _row(path: Path, count: int, gigabits: int, mode: str, replicas: int, limit: float) -> dict[str, Any]:
    problem = problem_of(path, count, gigabits, mode, replicas)
    row: dict[str, Any] = {
        "profile": path.stem, "devices": count, "gigabits": gigabits, "mode": mode, "replicas": replicas,
    }  # fmt: skip
    for placer in ("dp", *BESIDE):
        started = time.perf_counter()
        result = place(problem, placer, Budget(limit))
        seconds = round(time.perf_counter() - started, 3)
        value = result.value * 1e3 if result.placement is not None else None
        row[placer] = {"value": value, "seconds": seconds}
        if placer == "dp":
            row["notes"] = [*result.notes, *([result.unmet] if result.unmet else [])]
            row["bound"], row["gap"], row["status"] = result.lower_bound * 1e3, result.gap, str(result.status)
            row["optimal"] = str(result.status.outcome) == "optimal"
            uses = result.judgement.devices if result.judgement is not None else ()
            row["stages"] = sorted((use.replicas for use in uses if use.ops and not use.repeats), reverse=True)
    return row


def _faults(row: dict[str, Any], before: dict[str, Any] | None) -> Iterator[str]:
    own = row["dp"]["value"]
    for placer in BESIDE:
        other = row[placer]["value"]
        if other is not None and (own is None or own > other * (1 + 1e-9)):
            yield f"{_key(row)}: {placer} reaches {other}, dp {own}"
    was = before["dp"]["value"] if before else None
    if was is not None and (own is None or own > was * (1 + 1e-6)):
        yield f"{_key(row)}: dp got worse, {own} after {was}"


def _faults_of_sharing(row: dict[str, Any], alone: dict[str, Any]) -> Iterator[str]:
    """What is wrong if replicas are allowed and the value is worse than with one device per stage."""
    own, other = row["dp"]["value"], alone["dp"]["value"]
    if other is not None and (own is None or own > other * (1 + 1e-6)):
        yield f"{_key(row)}: dp reaches {own}, and {other} without replicas"


def _faults_of_devices(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong if a value is worse than with fewer devices, which the same plan may leave unused."""
    fewer: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=_place):
        profile, _, *others = _key(row)
        one = fewer.setdefault((profile, *others), row)
        own, other = row["dp"]["value"], one["dp"]["value"]
        if other is not None and (own is None or own > other * (1 + 1e-9)):
            yield f"{_key(row)}: dp reaches {own}, and {other} with {one['devices']} devices"
        else:
            fewer[profile, *others] = row


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Where a row stands in the table: without replicas first."""
    *others, replicas = _key(row)
    return *others, REPLICAS.index(replicas)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["profile"], row["devices"], row["gigabits"], row["mode"], row.get("replicas", 1)


def _summary(rows: list[dict[str, Any]]) -> str:
    proved = {most: [row["optimal"] for row in rows if row["replicas"] == most] for most in REPLICAS}
    seconds = [row["dp"]["seconds"] for row in rows]
    return (
        f"Without replicas {sum(proved[1])} of {len(proved[1])} optima proved, with replicas {sum(proved[0])} of "
        f"{len(proved[0])}; dp took {sum(seconds):.1f} s in all, at most {max(seconds):.1f} s "
        f"for one row, in half of them less than {sorted(seconds)[len(seconds) // 2]:.2f} s."
    )


_HEAD = (
    "| profile | devices | Gb/s | mode | replicas | dp | bound | gap | seconds | proof | devices per stage | dpl | "
    "pipedream | balanced |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def _line(row: dict[str, Any]) -> str:
    proof = "optimal" if row["optimal"] else f"not proved: {'; '.join(row['notes']) or row['status']}"
    values = {placer: _value(row[placer]) for placer in ("dp", *BESIDE)}
    cells = [
        row["profile"], str(row["devices"]), str(row["gigabits"]), row["mode"], "any" if row["replicas"] == 0 else "1",
        values["dp"], f"{row['bound']:.3f}", f"{row['gap']:.2%}", f"{row['dp']['seconds']:.2f}", proof,
        " ".join(map(str, row["stages"])), *(values[placer] for placer in BESIDE),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _value(figures: dict[str, Any]) -> str:
    return "none found" if figures["value"] is None else f"{figures['value']:.3f}"


if __name__ == "__main__":
    raise SystemExit(main())
