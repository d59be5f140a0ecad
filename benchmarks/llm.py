"""Large language models from their configurations to placed plans. `python benchmarks/llm.py`.

Each case is one command line in a process of its own: wall seconds with all imports, peak memory of that process,
and what the plan says. Target: Llama-3 70B on 8 A100 under 90 s and 4 GiB, for both objectives. Writes
results/llm.json and results/llm.md; exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "results"
DIMS = ("batch=1", "prompt=2048", "tokens=256")
CASES = {
    "llama-3-8b": ("2xA100-80GB,cpu", "latency"),
    "llama-3-70b": ("8xA100-80GB,cpu", "latency"),
    "llama-3-70b, throughput": ("8xA100-80GB,cpu", "throughput"),
    "llama-3-405b": ("16xA100-80GB,cpu", "latency"),
    "llama-3-405b, throughput": ("16xA100-80GB,cpu", "throughput"),
    "mixtral-8x22b": ("8xA100-80GB,cpu", "latency"),
    "deepseek-v3": ("24xA100-80GB,cpu", "latency"),
    "deepseek-v3, throughput": ("24xA100-80GB,cpu", "throughput"),
}
TARGETS = {"llama-3-70b": (90.0, 4 << 30), "llama-3-70b, throughput": (90.0, 4 << 30)}


def command_of(case: str, limit: str) -> list[str]:
    """The command line of a case."""
    devices, objective = CASES[case]
    name = case.partition(",")[0]
    dims = [part for dim in DIMS for part in ("--dim", dim)]
    return [
        "place",
        f"hf:{name}",
        "-d",
        devices,
        "--objective",
        objective,
        *dims,
        "--time-limit",
        limit,
        "--json",
        "-q",
    ]


def run(case: str, limit: str) -> dict[str, Any]:
    """Run one case; what it took and what it found."""
    command = command_of(case, limit)
    started = time.perf_counter()
    script = [sys.executable, __file__, "--only", json.dumps(command)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 4):
        raise SystemExit(f"{case}: {done.stderr.strip()}")
    plan, _, peak = done.stdout.rpartition("\npeak ")
    found = json.loads(plan)
    return {
        "command": "placewise " + " ".join(command),
        "seconds": seconds,
        "peak_bytes": int(peak),
        "load": os.getloadavg()[0],
        "ops": len(found["assignment"] or {}),
        "value": found["value"],
        "lower_bound": found["lower_bound"],
        "gap": found["gap"],
        "placer": found.get("placer"),
    }


def only(command: list[str]) -> int:
    """One command line in this process, then its peak memory."""
    from placewise.cli.app import app

    status = 0
    try:
        app(command)
    except SystemExit as end:
        status = int(end.code or 0)
    print(f"\npeak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}")
    return status


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results as a table in Markdown."""
    rows = [
        f"| {case} | {CASES[case][0]} | {found['ops']:,} | {found['value']:.3f} s | {found['lower_bound']:.3f} s "
        f"| {found['gap']:.1%} | {found['seconds']:.1f} s | {found['peak_bytes'] / 2**30:.2f} GiB "
        f"| {found['load']:.1f} |"
        for case, found in results.items()
    ]
    head = "| model | devices | ops | value | bound | gap | wall time | peak memory | load |"
    return "\n".join([head, "|---" * 9 + "|", *rows])


def main() -> int:
    """Run all cases, or those that are named; write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", default="45s", help="for the placer (default: 45s)")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this one; may be repeated")
    parser.add_argument("--only", help="used by the script itself")
    options = parser.parse_args()
    if options.only:
        return only(json.loads(options.only))
    results, missed = {}, False
    for case in options.case or CASES:
        found = results[case] = run(case, options.time_limit)
        seconds, peak = TARGETS.get(case, (float("inf"), float("inf")))
        missed |= found["seconds"] > seconds or found["peak_bytes"] > peak
        print(f"{case:26} {found['seconds']:6.1f} s  {found['peak_bytes'] / 2**30:5.2f} GiB  {found['value']:.4g} s")
    command = f"python benchmarks/llm.py --time-limit {options.time_limit}"
    if not options.case:
        HERE.joinpath("llm.json").write_text(json.dumps({"command": command, "cases": results}, indent=1) + "\n")
        said = f"Made by `{command}` on 2 shared cores; {', '.join(DIMS)}; wall time with all imports."
        HERE.joinpath("llm.md").write_text(f"{said}\n\n{table(results)}\n")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
