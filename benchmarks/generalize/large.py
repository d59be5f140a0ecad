"""A graph of over 50,000 ops in seconds: `python benchmarks/generalize/large.py [--only NAME] [--seconds 30]`.

GNMT-8 in training (65,479 ops) on eight P100s and a CPU: the whole of `placewise place`, from the start of the program
to the plan that is written, with every import. Methods: the untrained policy (`updates=0`), METIS and the expert, each
with the same limit, and `auto` to compare. Peak memory is what the kernel says of the process. Writes
results/generalize_large.md and results/generalize/large.json; the exit code is 1 where the policy takes 30 s or 8 GiB,
or is not better than METIS.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
MODEL, CLUSTER = "zoo:gnmt-8", HERE / "clusters" / "8xP100.toml"
ASKED = ("--graph", "training", "--optimizer", "sgd", "--execution", "operator")
METHODS: dict[str, tuple[str, ...]] = {
    "gdp, untrained": ("--placer", "gdp", "--option", "updates=0"),
    "metis": ("--placer", "metis"),
    "expert": ("--placer", "expert"),
    "auto": ("--placer", "auto"),
}
MAX_SECONDS, MAX_BYTES = 30.0, 8 << 30

Found = dict[str, Any]


def run(name: str, seconds: float) -> Found:
    """The plan of one method, and what it took; no value where it found none."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        told = (*METHODS[name], "--time-limit", f"{seconds:g}")
        command = ["placewise", "place", MODEL, "-d", str(CLUSTER.relative_to(HERE.parents[1])), *ASKED, *told]
        started = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", *command, "-o", str(plan)], cwd=HERE.parents[1],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        said = child.stderr.read().decode() if child.stderr else ""
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        spent = time.perf_counter() - started
        value = json.loads(plan.read_text())["value"] if plan.exists() else None
    return {
        "command": " ".join(command), "exit": child.returncode, "wall": round(spent, 2),
        "cpu": round(used.ru_utime + used.ru_stime, 2),
        "peak_bytes": used.ru_maxrss << 10, "load": round(os.getloadavg()[0], 1),
        "value": value, "said": said.strip()[-300:] if value is None else "",
    }  # fmt: skip


def faults(rows: Mapping[str, Found]) -> list[str]:
    """What the policy misses."""
    mine = rows.get("gdp, untrained")
    if mine is None:
        return []
    if mine["value"] is None:
        return [f"gdp found nothing: {mine['said']}"]
    wrong = [f"gdp takes {mine['wall']:.1f} s, not under {MAX_SECONDS:g}"] if mine["wall"] >= MAX_SECONDS else []
    if mine["peak_bytes"] >= MAX_BYTES:
        wrong.append(f"gdp takes {mine['peak_bytes'] / 2**30:.1f} GiB")
    theirs = rows.get("metis", {}).get("value")
    if theirs is not None and mine["value"] >= theirs:
        wrong.append(f"gdp: {mine['value']:.4g} s, metis: {theirs:.4g} s")
    return wrong


def text(rows: Mapping[str, Found], wrong: Sequence[str], command: str) -> str:
    """The rows as Markdown."""
    lines = [
        "# GNMT-8 in training, 65,479 ops, on eight P100s",
        "",
        f"`{command}`; milliseconds of a step. Wall time, time of a core and peak memory are of the whole command, "
        "imports too; *load*: how many programs wanted the two cores then.",
        "",
        "| method | step, ms | seconds | of a core | peak memory | load |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, row in rows.items():
        value = "none" if row["value"] is None else f"{row['value'] * 1e3:.1f}"
        cells = (value, f"{row['wall']:.1f}", f"{row['cpu']:.1f}", f"{row['peak_bytes'] / 2**30:.2f} GiB", row["load"])
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    left = [name for name in METHODS if name not in rows]
    said = [*(f"- {fault}" for fault in wrong), *([f"- not run: {', '.join(left)}"] if left else [])]
    return "\n".join([*lines, *(["", *said] if said else [])]) + "\n"


def main() -> int:
    """Run what is asked for, write, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(METHODS), action="append", help="this method; may be repeated")
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help="limit of every method")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.results / "generalize" / "large.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text())["rows"] if path.exists() else {}
    for name in options.only or METHODS:
        known[name] = run(name, options.seconds)
        print(f"{name}: {known[name]}", flush=True)
    rows = {name: known[name] for name in METHODS if name in known}
    command, wrong = "python benchmarks/generalize/large.py", faults(rows)
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    record = {"command": command, "date": time.strftime("%Y-%m-%d"), "machine": machine, "rows": rows}
    path.write_text(json.dumps(record, indent=1) + "\n")
    (options.results / "generalize_large.md").write_text(text(rows, wrong, command))
    print(text(rows, wrong, command))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
