"""`auto` in ten seconds against the best values known, and against the methods of the literature.

    PLACEWISE_WORKLOADS=... python benchmarks/quality.py [--only NAME] [--afresh] [--placers NAMES]

Every problem of benchmarks/instances.py is placed by `auto` and by each method of the literature, all under the same
time limit (`--time-limit`, 10 s) and seed; a row is saved as soon as it is done and run again only with `--afresh`.
The best known are those of best_known.py, which looks for better ones; every run of this file adds to them. Writes
results/quality.json and quality.md; under a limit of 60 s, quality_60s.json and quality_60s.md. Exits with 1 if `auto`
is more than 1 % above the best known or worse than a method of the literature, or if such a method got weaker than in
the committed results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from best_known import read_known, remember
from instances import experts_split, problem, rows

from placewise.core.place import place
from placewise.errors import PlacewiseError
from placewise.placers import registry
from placewise.placers.base import NO_HINTS, Budget, Hints

HERE = Path(__file__).parent
RESULTS, SECONDS = HERE / "results", 10.0
LITERATURE = ("expert", "topo", "etf", "sct", "heft", "critical_path", "metis", "mincut", "pipedream", "single")
"""Who is compared with auto; `single` is the best device alone."""
WITHIN, WEAKER = 1.01, 1.02
"""How far auto may be from the best known, and a method of the literature from its committed value."""

Rows = dict[str, dict[str, Any]]


def main() -> int:
    """Run what is asked for, save it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only problems whose name contains this")
    parser.add_argument("--placers", default=",".join(("auto", *LITERATURE)), help="names with commas")
    parser.add_argument("--time-limit", type=float, default=SECONDS, help="seconds for each placer and problem")
    parser.add_argument("--afresh", action="store_true", help="run again what is saved")
    options = parser.parse_args()
    placers = options.placers.split(",")
    path = RESULTS / ("quality.json" if options.time_limit == SECONDS else f"quality_{options.time_limit:g}s.json")
    before: Rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    done: Rows = {name: dict(row) for name, row in before.items()}
    for name in rows(options.only):
        row = done.setdefault(name, {})
        for placer in placers:
            if options.afresh or row.get(placer, {}).get("limit") != options.time_limit:
                row[placer] = _figures(name, placer, options.time_limit)
        print(_line(name, row), flush=True)
        _save(done, path, options.time_limit)
    faults = [*_faults(done), *_weaker(before, done)]
    print("\n".join([_text(done, options.time_limit), *faults]))
    return 1 if faults else 0


def _placed(name: str, placer: str, limit: float) -> Any:
    """A result, or the words why there is none."""
    posed = problem(name)
    split = experts_split(name, posed) if placer == "expert" else None
    try:
        refusal = registry.create(placer).supports(posed)
        if refusal is not None:
            return refusal
        return place(posed, placer, Budget(limit), hints=Hints((split,)) if split is not None else NO_HINTS)
    except PlacewiseError as error:
        return str(error)


def _figures(name: str, placer: str, limit: float) -> dict[str, Any]:
    """One placer on one problem; what it found goes into the list of the best known."""
    result = _placed(name, placer, limit)
    if isinstance(result, str):
        return {"value": None, "why": result, "limit": limit}
    value = result.value if result.placement is not None else None
    command = f"python benchmarks/quality.py --afresh --time-limit {limit:g} --placers {placer} --only {name}"
    remember(name, result, command)
    said = result.unmet or "; ".join(result.notes)
    return {
        "value": value, "bound": result.lower_bound, "seconds": round(result.seconds, 2),
        "status": str(result.status), "limit": limit,
        "load": round(os.getloadavg()[0], 1), "why": said if value is None else "", "notes": list(result.notes[:1]),
        "history": [[round(step.seconds, 2), step.value, step.placer] for step in result.history[-20:]],
    }  # fmt: skip


def _faults(done: Rows) -> Iterator[str]:
    """Where auto misses what it must reach."""
    best = read_known()
    published = json.loads((HERE / "published.json").read_text())["throughput"]
    for name, row in done.items():
        own = row.get("auto", {}).get("value") or math.inf
        if own > best[name]["value"] * WITHIN:
            yield f"{name}: auto {own:.6g} s, {own / best[name]['value'] - 1:.2%} above the best known"
        for placer in LITERATURE:
            other = row.get(placer, {}).get("value")
            if other is not None and own > other * (1 + 1e-9):
                yield f"{name}: auto {own:.6g} s, {placer} {other:.6g} s"
        kind, _, rest = name.partition("/")
        search = published.get(rest, {}).get("local_search", {}).get("value") if kind == "free" else None
        if search is not None and own > search * 1e-3 * (1 + 1e-5):
            yield f"{name}: auto {own:.6g} s, published local search {search * 1e-3:.6g} s"


def _weaker(before: Rows, done: Rows) -> Iterator[str]:
    for name, row in before.items():
        for placer in LITERATURE:
            was, now = row.get(placer, {}).get("value"), done[name].get(placer, {}).get("value")
            if was is not None and (now is None or now > was * WEAKER):
                yield f"{name}: {placer} got weaker, {now} after {was}"


def _save(done: Rows, path: Path, limit: float) -> None:
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in done.items())
    about = {"command": f"python benchmarks/quality.py --time-limit {limit:g}", "unit": "seconds", "seed": 0}
    path.write_text(f'{json.dumps(about)[:-1]}, "rows": {{\n{lines}\n}}}}\n')
    path.with_suffix(".md").write_text(_text(done, limit) + "\n")


def _text(done: Rows, limit: float) -> str:
    """The table and what it comes to, as Markdown."""
    best = read_known()
    head = f"| problem | auto, ms | took, s | gap | best known, ms | auto / best | {' | '.join(LITERATURE)} |"
    lines = [head, "|---|" + "--:|" * (5 + len(LITERATURE))]
    lines += [_line(name, row) for name, row in done.items()]
    ratios = {name: row["auto"]["value"] / best[name]["value"] for name, row in done.items() if _value(row, "auto")}
    close = sum(ratio <= WITHIN for ratio in ratios.values())
    summary = [f"`auto` is within 1 % of the best known on {close} of {len(done)} problems.", ""]
    for placer in LITERATURE:
        gains = [row[placer]["value"] / row["auto"]["value"] for row in done.values() if _value(row, placer, "auto")]
        if gains:
            worse = sum(gain < 1 - 1e-9 for gain in gains)
            summary.append(
                f"- against `{placer}`: {statistics.geometric_mean(gains):.3f}× as fast in the geometric mean of "
                f"{len(gains)} problems that both solve; worse on {worse}"
            )
    command = f"python benchmarks/quality.py --time-limit {limit:g}"
    made = f"Made by `{command}`: milliseconds; other columns are a method's value / auto's."
    return "\n".join(["# Quality", "", made, "", *summary, "", *lines])


def _value(row: dict[str, Any], *placers: str) -> bool:
    return all(row.get(placer, {}).get("value") for placer in placers)


def _line(name: str, row: dict[str, Any]) -> str:
    auto, best = row.get("auto", {}), read_known().get(name, {}).get("value", math.nan)
    own = auto.get("value") or math.inf
    gap = f"{1 - auto['bound'] / own:.2%}" if own < math.inf else "–"
    others = [f"{row[other]['value'] / own:.3f}" if _value(row, other) else "–" for other in LITERATURE]
    cells = [name, f"{own * 1e3:.4f}", f"{auto.get('seconds', math.nan):.1f}", gap, f"{best * 1e3:.4f}"]
    return f"| {' | '.join([*cells, f'{own / best:.4f}', *others])} |"


if __name__ == "__main__":
    sys.exit(main())
