"""A process that writes every kind of file over and over in children of its own, and ends them at random moments.

``python interrupted_writers.py FOLDER ROUNDS`` prints a line of JSON: kind → how often a whole file was found
afterwards, and whether torn ones would have been noticed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from placewise.analysis.report import write_page
from placewise.catalog import read_cluster
from placewise.catalog.write import format_cluster
from placewise.errors import InputError
from placewise.exporters.base import Exported, ExportInfo
from placewise.exporters.writing import write_files
from placewise.files import atomic
from placewise.files.atomic import atomic_write
from placewise.files.columns import read_columns
from placewise.files.costs_file import CostsHeader, save_costs
from placewise.files.graph_file import load_graph, save_graph
from placewise.files.plan_file import PlanFile, load_plan, save_plan
from placewise.files.policy_file import PolicyFile, load_policy, save_policy
from placewise.files.problem_file import load_problem, save_problem
from placewise.files.profile_file import ProfileFile, load_profile, save_profile
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.profiling.profile_cache import CachedProfile, ProfileCache
from placewise.training.search_cache import SearchCache
from placewise.training.workers.messages import BestKnown as Answer

ROWS = 2_000
FILES_WORTH = 3
"""A writer is ended within the time of this many files, as its first one took."""
CLUSTER = read_cluster("2xL4,cpu")
ONE = Cluster((Device("cpu", "cpu"),), ())
FOLDER = ExportInfo("folder", "files", "nobody", "text only", "anything")
FILES = ("a.json", "inner/b.txt", "c.bin")


class Kind(NamedTuple):
    """How a version of a file is written, and how whole versions are told: their number, or an error."""

    write: Callable[[Path, int], Any]
    version: Callable[[Path], int]


def graph(number: int) -> Graph:
    builder = GraphBuilder()
    for row in range(ROWS):
        builder.add_op(f"{number}:{row}", "Add", state_bytes=number)
    return builder.build()


def problem(number: int) -> Problem:
    made = graph(number)
    costs = CostTable.given(np.full((ROWS, 1), float(number)), np.zeros((0, 1)))
    return Problem(made, ONE, costs, Objective("latency"))


def one(numbers: Any) -> int:
    """The number that all of these are. Raises ValueError where they are several."""
    (number,) = set(numbers)
    return int(float(number))


def plan(number: int) -> PlanFile:
    return PlanFile.model_validate({"notes": [str(number)] * ROWS, "assignment": {"a": "cpu"}})


def profile(number: int) -> ProfileFile:
    device = {"name": "cpu", "idle": {"ops": [float(number)] * ROWS}}
    return ProfileFile.model_validate({"runtime": "r", "ops": [str(row) for row in range(ROWS)], "devices": [device]})


def exported(number: int) -> Exported:
    return Exported(dict.fromkeys(FILES, f"{number}\n" * ROWS), Placement.on(0, 1))


def in_folders(path: Path) -> int:
    """Of folders that are written once each: every one that is there has all its files."""
    made = [folder for folder in path.parent.iterdir() if folder.name.startswith(f"{path.name}-")]
    return max(one([*(folder / name).read_text().split(), folder.name.rpartition("-")[2]])
               for folder in made for name in FILES)  # fmt: skip


def kept(path: Path, number: int) -> None:
    path.mkdir(exist_ok=True)
    SearchCache(str(path), "t").keep(problem(0), Answer(np.full(ROWS, number, np.int32), float(number), 1.0))


def found(path: Path) -> int:
    answer = SearchCache(str(path), "t").find(problem(0))
    assert answer is not None
    return one([*answer.best.tolist(), answer.value])


def shelved(number: int) -> CachedProfile:
    return CachedProfile({str(row): (float(number), "k", ()) for row in range(ROWS)}, float(number), {})


def cluster_file(path: Path, number: int) -> None:
    with atomic_write(path) as file:
        file.write(format_cluster(CLUSTER, (str(number),) * ROWS))


def cluster_version(path: Path) -> int:
    assert read_cluster(path).names == CLUSTER.names
    return one(line[2:] for line in path.read_text().splitlines() if line.startswith("# "))


def in_a_folder(path: Path) -> int:
    """Of a folder that is written again and again: every file that is there is whole."""
    return max(one((path / name).read_text().split()) for name in FILES if (path / name).exists())


def checkpoint_version(path: Path) -> int:
    header, tensors = load_policy(path)
    return one([*tensors["x"].tolist(), header.updates])


def checkpoint(path: Path, number: int) -> None:
    save_policy(PolicyFile(policy="p", devices=("d",), updates=number), {"x": np.full(50_000, number)}, path)


KINDS = MappingProxyType({
    "plan": Kind(lambda path, k: save_plan(plan(k), path), lambda path: one(load_plan(path).notes)),
    "page": Kind(lambda path, k: write_page(f"{k}\n" * ROWS, path), lambda path: one(path.read_text().split())),
    "cluster": Kind(cluster_file, cluster_version),
    "profile": Kind(lambda path, k: save_profile(profile(k), path),
                    lambda path: one(load_profile(path).devices[0].idle.ops)),
    "graph": Kind(lambda path, k: save_graph(graph(k), path), lambda path: one(load_graph(path).ops.state_bytes)),
    "problem": Kind(lambda path, k: save_problem(problem(k), path),
                    lambda path: one(load_problem(path).costs.op_seconds[:, 0])),
    "costs": Kind(lambda path, k: save_costs(problem(k).costs, problem(k).graph, ONE, path),
                  lambda path: one(read_columns(path, CostsHeader)[1].take("op_seconds", np.float64, ROWS, 1)[:, 0])),
    "export into a folder": Kind(lambda path, k: write_files(exported(k), FOLDER, path), in_a_folder),
    "new folders": Kind(
        lambda path, k: write_files(exported(k), FOLDER, path.with_name(f"{path.name}-{k}")), in_folders),
    "cache": Kind(lambda path, k: ProfileCache(path).write(shelved(k), "about"),
                  lambda path: one(seconds for seconds, *_ in ProfileCache(path).read("about").ops.values())),
    "answers": Kind(kept, found),
    "checkpoint": Kind(checkpoint, checkpoint_version),
})  # fmt: skip


def killed(kind: Kind, path: Path, rounds: int) -> int:
    """How often a whole version was there after the writer was ended; raises what reading raises where one was not."""
    rng, whole = random.Random(0), 0
    for turn in range(rounds):
        ready, told = os.pipe()
        began = time.perf_counter()
        pid = os.fork()
        if not pid:
            written(kind, path, turn, told)
        os.close(told)
        os.read(ready, 1)
        time.sleep(rng.uniform(0, FILES_WORTH * (time.perf_counter() - began)))
        ending = (signal.SIGKILL, signal.SIGINT)[turn % 2]
        os.kill(pid, ending)
        os.waitpid(pid, 0)
        os.close(ready)
        kind.version(path)
        whole += 1
        left = [*path.parent.glob("**/.placewise-*")]
        assert not left or ending == signal.SIGKILL, left
        for hidden in left:
            shutil.rmtree(hidden) if hidden.is_dir() else hidden.unlink(missing_ok=True)
    return whole


def written(kind: Kind, path: Path, turn: int, told: int) -> None:
    """Write version after version until the end comes; never returns. What a writer still holds goes with the error."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in range(turn * 1_000, (turn + 1) * 1_000):
            kind.write(path, number)
            if number % 1_000 == 0:
                os.write(told, b"1")
    except KeyboardInterrupt:
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def main(folder: Path, rounds: int) -> None:
    counts = {}
    for name, kind in KINDS.items():
        place = folder / name
        place.mkdir()
        counts[name] = killed(kind, place / "file.json", rounds)
    print(json.dumps({**counts, "noticed": noticed(folder / "torn.npz")}))


def noticed(path: Path) -> bool:
    """Whether the same kills leave broken files where nothing is written aside first."""
    atomic._open_replacing = atomic._open_direct
    try:
        killed(KINDS["graph"], path, rounds=60)
    except (InputError, ValueError):
        return True
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
