"""Rows of tables that take hours: run in order of importance, saved one by one, and not run again.

A row is one method on one workload with one seed. A finished one goes to results/<folder>/<table>.json at once; the
next run goes on where this one stopped. A digest of the problem, the method's options and its budget guards against
rows of something else, which are run again. Every table's command has

    --only TEXT       rows whose workload and method, as "inception_v3 folded sequential/hsdag/0", contain this
    --evaluations N   distinct placements that a method may price (searches and policies alike)
    --seeds N         how many seeds, from 0
    --minutes N       begin no row after so many minutes; those that are left stay blank in the table
    --jobs N          rows at a time, each in a process of its own
    --afresh          forget saved rows
    --results FOLDER  where rows and tables go, for a try that must not mix with what is committed
    --table           run nothing, only write the table again
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from methods import Method, settings_of

from placewise.errors import ModelFileError, PlacewiseError
from placewise.model.problem import Problem

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SEEDS = 3
LATER: Mapping[str, Any] = {
    "spare": (), "ordered": False, "tensor_parallel": 1, "recompute": "auto", "microbatches": 0,
    "sequence_parallel": False,
}  # fmt: skip
"""Rules that came when rows were saved already, where they ask for nothing: no row knows them."""
WEAKER = 1.02
"""How far a method that does not learn may be from its committed value before the run fails."""

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one workload with one seed; `module` has the function `problem(workload)`."""

    module: str
    workload: str
    method: Method
    seed: int = 0

    @property
    def key(self) -> str:
        return f"{self.workload}/{self.method.name}/{self.seed}"


@dataclass(frozen=True, slots=True)
class Table:
    """A name, its rows in order of importance, and the functions that write it and say what it misses.

    `text` is given the rows that were run and the command that makes them. `folder`: of benchmarks/, where the command
    lies, and of its results.
    """

    name: str
    about: str
    rows: tuple[Row, ...]
    text: Callable[[Mapping[str, Found], str], str]
    faults: Callable[[Mapping[str, Found]], Iterable[str]] = field(default=lambda found: ())
    folder: str = "learned"


def arguments(about: str, *, evaluations: int) -> argparse.ArgumentParser:
    """What every table can be told."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose workload/method/seed contains this")
    parser.add_argument("--evaluations", type=int, default=evaluations, help="distinct placements per row")
    parser.set_defaults(usual=evaluations)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="rows of so many seeds, from 0")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after so many minutes")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--afresh", action="store_true", help="forget saved rows")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where rows and tables go")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    return parser


def run(table: Table, options: argparse.Namespace) -> int:
    """Run the rows that are missing, save each, write the table; the exit code."""
    path = options.results / table.folder / f"{table.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    before: dict[str, Found] = json.loads(path.read_text())["rows"] if path.exists() else {}
    done = {} if options.afresh and not options.only else dict(before)
    wanted = (
        [] if options.table else [row for row in table.rows if options.only in row.key and row.seed < options.seeds]
    )
    for row, found in _results(wanted, done, options):
        done[row.key] = found
        _save(path, table, done, options)
        print(f"{row.key}: {_said(found)}", flush=True)
    ordered = {row.key: done[row.key] for row in table.rows if row.key in done and fits(row, done[row.key])}
    wrong = [*_weaker(before, ordered), *table.faults(ordered)]
    missing = [row.key for row in table.rows if row.key not in ordered]
    told = table.text(ordered, command(table, ordered, options)).rstrip()
    parts = [told, *(["", *(f"- {fault}" for fault in wrong)] if wrong else [])]
    if missing:
        parts += [
            "",
            f"Not run yet, or since the problem or the method changed: {len(missing)} of {len(table.rows)} rows.",
        ]
    (options.results / f"{table.folder}_{table.name}.md").write_text("\n".join(parts) + "\n")
    print("\n".join(parts))
    return 1 if wrong else 0


def command(table: Table, found: Mapping[str, Found], options: argparse.Namespace) -> str:
    """The command that makes these rows, with the budget and the seeds that they have where those are not the usual.

    `options.usual` is the budget that the table has if nobody says otherwise.
    """
    seeds = 1 + max((row["seed"] for row in found.values()), default=SEEDS - 1)
    told = [f"python benchmarks/{table.folder}/{table.name}.py"]
    told += [f"--evaluations {options.evaluations}"] if options.evaluations != options.usual else []
    told += [f"--seeds {seeds}"] if seeds < SEEDS else []
    return " ".join(told)


def _results(rows: list[Row], done: Mapping[str, Found], options: argparse.Namespace) -> Iterator[tuple[Row, Found]]:
    """What the rows that are not done come to, as they finish; one that fails is told, and stays open."""
    until = time.monotonic() + 60 * options.minutes
    waiting = iter(rows)
    pool = ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) if options.jobs > 1 else None
    running: dict[Future[Found | None], Row] = {}
    with pool or nullcontext():
        while True:
            while len(running) < options.jobs and time.monotonic() < until and (row := next(waiting, None)):
                known = None if options.afresh else done.get(row.key, {}).get("digest")
                running[pool.submit(outcome, row, known) if pool else _at_once(row, known)] = row
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                row = running.pop(future)
                try:
                    found = future.result()
                except PlacewiseError as error:
                    print(f"{row.key}: failed: {error}", file=sys.stderr, flush=True)
                    continue
                if found is not None:
                    yield row, found


def _at_once(row: Row, known: str | None) -> Future[Found | None]:
    """A row run here and now."""
    future: Future[Found | None] = Future()
    try:
        future.set_result(outcome(row, known))
    except PlacewiseError as error:
        future.set_exception(error)
    return future


def outcome(row: Row, known: str | None) -> Found | None:
    """What a row comes to; None if its digest is the known one."""
    problem = _problem(row.module, row.workload)
    digest = digest_of(problem, row)
    if digest == known:
        return None
    return {
        "workload": row.workload,
        "method": row.method.name,
        "seed": row.seed,
        "digest": digest,
        "commit": _commit(),
        **row.method.run(problem, row.seed),
        "load": round(os.getloadavg()[0], 1),
    }


def digest_of(problem: Problem, row: Row) -> str:
    """Of everything that a row depends on but the code."""
    state = hashlib.blake2b(digest_size=8)
    for column in (problem.costs.op_seconds, problem.costs.transfer_seconds, problem.capacity, problem.block):
        state.update(column.tobytes())
    given = {field.name: getattr(problem.constraints, field.name) for field in fields(problem.constraints)}
    known = ", ".join(f"{name}={rule!r}" for name, rule in given.items() if LATER.get(name) != rule)
    rules = f"Constraints({known})"
    facts = (problem.graph.digest(), str(problem.objective), problem.objective.memory, rules)
    state.update(repr((facts, row.method.name, settings_of(row.method), row.seed)).encode())
    return state.hexdigest()


def fits(row: Row, found: Found) -> bool:
    """Whether a saved row answers the problem as it is now, by the method as it is now.

    A row of a trained policy that is not on this machine is believed.
    """
    try:
        return digest_of(_problem(row.module, row.workload), row) == found["digest"]
    except ModelFileError:
        return True


@cache
def _problem(module: str, workload: str) -> Problem:
    made: Problem = import_module(module).problem(workload)
    return made


@cache
def _commit() -> str:
    asked = subprocess.run(("git", "rev-parse", "--short", "HEAD"), cwd=HERE, capture_output=True, text=True)
    return asked.stdout.strip()


def _save(path: Path, table: Table, done: Mapping[str, Found], options: argparse.Namespace) -> None:
    about = {"command": command(table, done, options), "about": table.about, "unit": "seconds"}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(found)}" for key, found in sorted(done.items()))
    fresh = path.with_suffix(".new")
    fresh.write_text(f'{json.dumps(about)[:-1]}, "rows": {{\n{lines}\n}}}}\n')
    fresh.replace(path)


def _said(found: Found) -> str:
    value = "nothing" if found["value"] is None else f"{found['value']:.6g} s"
    return f"{value} in {found['seconds']:.1f} s, {found.get('evaluations', 0)} evaluations ({found['status']})"


def _weaker(before: Mapping[str, Found], now: Mapping[str, Found]) -> Iterator[str]:
    for key, found in now.items():
        was = before.get(key, {})
        if "updates" in found or was.get("digest") != found["digest"] or was["value"] is None:
            continue
        if found.get("measured"):  # no two measurements are the same
            continue
        if found["value"] is None or found["value"] > was["value"] * WEAKER:
            yield f"{key} got weaker: {found['value']} s after {was['value']} s"


def main_of(make: Callable[[argparse.Namespace], Table], parser: argparse.ArgumentParser) -> int:
    """The command line of a table."""
    options = parser.parse_args(sys.argv[1:])
    return run(make(options), options)
