"""Every workload that there is, as named problems: the published ones, PipeDream's profiles, and the zoo in training.

free/LayerGraphs/bert24_inference          throughput, any sets of ops (Tarnawski et al. 2020)
contiguous/LayerGraphs/bert24_inference    the same as a chain of stages
latency/OperatorGraphs/bert_l-3_inference  one sample, subgraph execution (Tarnawski et al. 2020)
pipedream/vgg16                            a training pipeline, eight devices (Narayanan et al. 2019)
zoo-latency/gnmt-4                         a training step, operator execution, on P100s and the host
zoo-contiguous/gnmt-4, zoo-free/gnmt-4     its throughput, with and without a chain of stages
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from pinned_devices import read_pinned
from pipedream import problem_of

from placewise.core.build import ProblemOptions, build
from placewise.files.split_file import read_placement
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Problem
from placewise.readers.workload import read_workload
from placewise.zoo import names

HERE = Path(__file__).parent
DEVICES = {"2": "2xP100,cpu", "8": "8xP100,cpu"}
"""By the number at the end of a workload's name, which counts its layers; 4xP100,cpu for all others."""
KINDS = ("zoo-latency", "zoo-contiguous", "zoo-free")


def workloads() -> Path | None:
    """The folder of the published workloads, if PLACEWISE_WORKLOADS names one."""
    folder = Path(os.environ.get("PLACEWISE_WORKLOADS") or "/nonexistent")
    return folder if (folder / "dnn-partitioning").is_dir() else None


def rows(only: str = "") -> Iterator[str]:
    """The names of all problems that can be made here, those that contain `only`."""
    published, folder = json.loads((HERE / "published.json").read_text()), workloads()
    found: list[str] = []
    if folder is not None:
        found += [f"{kind}/{name}" for kind in ("free", "contiguous") for name in published["throughput"]]
        found += [f"latency/{name}" for name in published["latency"]]
        profiles = sorted(path.stem for path in (folder / "pipedream").glob("*.txt") if path.stem != "LICENSE")
        found += [f"pipedream/{name}" for name in profiles]
    found += [f"{kind}/{name}" for kind in KINDS for name in names() if "random" not in name]
    return (name for name in found if only in name)


def problem(name: str) -> Problem:
    """The problem of that name."""
    kind, _, rest = name.partition("/")
    folder = workloads()
    if kind.startswith("zoo"):
        return _zoo(kind, rest)
    assert folder is not None, "set PLACEWISE_WORKLOADS to the folder that holds dnn-partitioning/"
    if kind == "pipedream":
        return problem_of(folder / "pipedream" / f"{rest}.txt", 8, 10, "blocking")
    objective = "latency" if kind == "latency" else "throughput"
    read = read_workload(folder / "dnn-partitioning" / objective / f"{rest}.json", objective=objective).problem
    assert read is not None
    return read.with_(constraints=Constraints(contiguous=kind == "contiguous"))


def experts_split(name: str, problem_: Problem) -> Placement | None:
    """The published split of a human expert, where there is one."""
    kind, _, rest = name.partition("/")
    folder = workloads()
    if folder is None or kind not in ("free", "contiguous"):
        return None
    path = folder / "dnn-partitioning" / "human-experts" / f"{Path(rest).name}_expert.json"
    if not rest.startswith("LayerGraphs") or not path.exists():
        return None
    extended, placement = read_placement(path, problem_)
    return placement if extended is problem_ else None


def _zoo(kind: str, name: str) -> Problem:
    devices = DEVICES.get(name.rpartition("-")[2], "4xP100,cpu")
    objective = "latency" if kind == "zoo-latency" else "throughput"
    options = ProblemOptions(
        objective, graph="training", contiguous=kind == "zoo-contiguous" if objective != "latency" else None
    )
    return build(f"zoo:{name}", read_pinned(devices), options)
