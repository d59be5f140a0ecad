"""A report of 50,000 ops: how big the page is, and how long it takes to open. `python benchmarks/report.py`.

Needs Chromium and playwright. Two plans for latency on four GPUs, by HEFT: a random layered graph of 50,000 ops
and GNMT with eight layers in training, 65,000 ops. *Open* is from the navigation to the
first picture after the page has drawn itself, in a browser that runs already; *works* is what the page's own thread
computed in that time, which does not depend on what else the machine does; *unfold* is from a click on "Unfold more" to
its picture. Medians of `--repeat` pages. Targets: under 10 MB and 3 s. Writes results/report.json with the machine's
load; exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import placewise as pw
from placewise.analysis.report import make_view, render_page
from placewise.files.plan_file import plan_of
from placewise.zoo.random import random_graph

RESULTS = Path(__file__).parent / "results" / "report.json"
LARGEST, LONGEST = 10e6, 3.0
DEVICES, N_OPS = "4xP100,cpu", 50_000
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
UNFOLD = """() => new Promise((done) => {
  const begun = performance.now();
  [...document.querySelectorAll('button')].find((button) => button.textContent === 'Unfold more').click();
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begun)));
})"""


def models() -> dict[str, Any]:
    """What is placed: a name, and the arguments of `pw.place`."""
    return {
        "layered, 50,000 ops": (random_graph("layered", N_OPS), {}),
        "gnmt-8, training": ("zoo:gnmt-8", {"graph": "training"}),
    }


def main() -> int:
    """Make the pages, open them, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    measured, missed = {}, False
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, problem_options) in models().items():
            page = Path(folder) / "page.html"
            found = _written(model, problem_options, page) | _opened(page, options.repeat)
            missed |= found["bytes"] > LARGEST or found["open"] > LONGEST
            measured[name] = found
            print(f"{name:20} {found['ops']:6,} ops: {found['bytes'] / 1e6:.1f} MB, made in {found['make']:.2f} s")
            print(
                f"{'':20} opens in {found['open']:.2f} s, of which it works {found['works']:.2f} s; "
                f"unfolds in {found['unfold']:.2f} s"
            )
    print(f"targets: {LARGEST / 1e6:g} MB, {LONGEST:g} s")
    command = f"python benchmarks/report.py --repeat {options.repeat}"
    RESULTS.write_text(json.dumps({"command": command, "load": os.getloadavg(), "measured": measured}, indent=1) + "\n")
    return int(missed)


def _written(model: Any, problem_options: dict[str, Any], page: Path) -> dict[str, Any]:
    """Place a model and write its page; what it took without the placing."""
    plan = pw.place(model, devices=DEVICES, placer="heft", budget="60s", **problem_options)
    result = plan.result
    started = time.perf_counter()
    shown = make_view(plan_of(result), "benchmark", result.problem, result.placement, result.judgement)
    page.write_text(render_page(shown), encoding="utf-8")
    return {"ops": result.problem.n_ops, "bytes": page.stat().st_size, "make": time.perf_counter() - started}


def _opened(page: Path, repeat: int) -> dict[str, Any]:
    """Seconds to open and to unfold, each in a fresh context of one browser; the first one warms it up."""
    opens, works, unfolds = [], [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(repeat + 1):
            context = browser.new_context(viewport={"width": 1366, "height": 768})
            tab = context.new_page()
            tools = context.new_cdp_session(tab)
            tools.send("Performance.enable", {"timeDomain": "threadTicks"})
            tab.goto(page.as_uri())
            opens.append(tab.evaluate(DRAWN) / 1e3)
            figures = {row["name"]: row["value"] for row in tools.send("Performance.getMetrics")["metrics"]}
            works.append(figures["TaskDuration"])
            unfolds.append(tab.evaluate(UNFOLD) / 1e3)
            context.close()
        version = browser.version
        browser.close()
    return {
        "open": statistics.median(opens[1:]), "opens": opens[1:], "works": statistics.median(works[1:]),
        "unfold": statistics.median(unfolds[1:]), "unfolds": unfolds[1:], "browser": f"Chromium {version}",
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
