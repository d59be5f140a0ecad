"""What is done with a damaged file: all that a user would do who does not know that it is damaged."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import numpy as np

from fuzzing import external, names, option_matrix
from fuzzing.case_result import Unsound
from fuzzing.seeds import BEHIND, DEVICES, MODEL, Seed
from fuzzing.tokens import text
from placewise.analysis.inspect import inspect
from placewise.analysis.report import open_plan, render_page
from placewise.catalog import read_cluster
from placewise.core.build import build, build_for_plan
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.core.target_rules import run_on_target
from placewise.files.corpus_file import load_corpus
from placewise.files.plan_file import find_model, plan_of
from placewise.files.policy_file import load_policy
from placewise.files.sweep_file import load_sweep
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Reason
from placewise.placers.base import Budget
from placewise.reporting.console import judgement_view, result_view
from placewise.reporting.plain import plain
from placewise.reporting.sweep_page import render_sweep
from placewise.runtimes.inputs import load_inputs
from placewise.simulate import judge_placement

Journey = Callable[[Path, Seed, Random], None]
_MEASURED = {
    **dict.fromkeys(("counters.csv", "counters.json", "execution.xml"), "small.xml"),
    "onnxruntime.json": "small.onnx",
    "torch.json": "small.pt2",
}
_SIZES = (0, 1, 3, 1_000, 2**31, 2**40 - 1)


def model(path: Path, seed: Seed, rng: Random) -> None:
    """Look into it, price it on devices, judge a placement, and print what came of it."""
    dims = dict(seed.dims)
    if dims and rng.random() < 0.25:
        dims = {name: rng.choice(_SIZES) for name in dims if rng.random() < 0.8}
    options = ProblemOptions(
        dims=dims,
        objective=rng.choice((None, "latency", "throughput")),
        graph="training" if rng.random() < 0.1 else None,
        view="raw" if rng.random() < 0.1 else None,
        together=(rng.choice((r"layer\.\d+", text(rng))),) if rng.random() < 0.1 else None,
        pins=((text(rng), "cpu"),) if rng.random() < 0.05 else None,
    )
    if rng.random() < 0.2:
        inspect(open_model(str(path), options))
        return
    judged(build(str(path), DEVICES, options))


def with_hole(path: Path, seed: Seed, rng: Random) -> None:
    """A model whose weights, of any size, may be a hole in the file, which takes no disk; sometimes for llama.cpp."""
    if rng.random() < 0.3:
        os.truncate(path, 1 << rng.choice((36, 43)))
    if rng.random() < 0.7:
        model(path, seed, rng)
    else:
        judged(run_on_target(build(str(path), DEVICES, ProblemOptions()), "llama.cpp"))


def whole(path: Path, seed: Seed, rng: Random) -> None:
    """A problem that brings its devices."""
    judged(build(str(path), None, ProblemOptions(objective=rng.choice((None, "latency", "throughput")))))


def split(path: Path, seed: Seed, rng: Random) -> None:
    """A problem that brings its devices and ways to split its ops, with options about them."""
    options = ProblemOptions(
        objective=rng.choice((None, None, "throughput", "latency")),
        tensor_parallel=rng.choice((None, None, 1, 2, "any")),
        recompute=rng.choice((None, None, "never", "always")),
        microbatches=rng.choice((None, None, 1, 7, 64)),
        replicas=rng.choice((None, None, 1, 2)),
    )
    staged(build(str(path), None, options), rng.choice(("auto", "auto", "uniform", "parallel_dp")))


def staged(problem: Problem, placer: str = "auto") -> None:
    """Place it for a moment, print the plan, and write it."""
    result = place(problem, placer, Budget(0.3))
    if result.placement is None and not (result.unmet or result.notes or result.status.reason is Reason.TIME_LIMIT):
        raise Unsound("there is no placement, and nothing says why")
    if result.placement is not None:
        _checked(problem, result.placement)
    _printed(plain(result_view(result)))
    plan_of(result).model_dump_json()


def cluster(path: Path, seed: Seed, rng: Random) -> None:
    """A small model on these devices, which must cost something and take no time that is none."""
    judged(build(MODEL, path, ProblemOptions(dims={"batch": 2})))


def line(path: Path, seed: Seed, rng: Random) -> None:
    """The same, of devices in a line or as a text of JSON."""
    text = path.read_bytes().decode("utf-8", "replace")
    judged(build(MODEL, read_cluster(text), ProblemOptions(dims={"batch": 2})))


def topology(path: Path, seed: Seed, rng: Random) -> None:
    """Links between the GPUs of a line of devices; a model of four of them, or another one."""
    devices = rng.choice(("4xV100-16GB,cpu", "4xA100-80GB", "2xL4,cpu", "8xH100-80GB"))
    judged(build(MODEL, read_cluster(f"{devices},topology={path}"), ProblemOptions(dims={"batch": 2})))


def plan(path: Path, seed: Seed, rng: Random) -> None:
    """Its model is read again, by the name that it gives or another, and the placement judged."""
    given = BEHIND.get(seed.name, MODEL)
    behind = find_model(path, None if rng.random() < 0.3 and seed.name != "made" else given)
    problem, placement = build_for_plan(behind, path)
    _printed(plain(judgement_view(problem, _checked(problem, placement))))
    if rng.random() < 0.3:
        render_page(open_plan(path, behind))


def costs(path: Path, seed: Seed, rng: Random) -> None:
    """Over the costs of the model that it is of."""
    small = _MEASURED.get(seed.name, MODEL)
    device = "" if small == MODEL else "cpu="
    if rng.random() < 0.2:
        device = rng.choice(("", "cuda:0=", "cpu=", "*="))
    dims = {"batch": 2} if small == MODEL else {}
    judged(build(small, DEVICES, ProblemOptions(dims=dims, costs=(f"{device}{path}",))))


def judged(problem: Problem) -> None:
    """Every op on the first device, and on the last one, by the judge; stages where ops may be split."""
    if problem.ways is not None:
        staged(problem)
        return
    for device in (0, problem.n_devices - 1):
        judgement = _checked(problem, Placement.on(device, problem.n_ops))
    _printed(plain(judgement_view(problem, judgement)))


def _checked(problem: Problem, placement: Placement) -> Judgement:
    found = judge_placement(problem, placement)
    if math.isnan(found.value) or found.value < 0 or np.isnan(problem.costs.op_seconds).any():
        raise Unsound(f"the value is {found.value}")
    return found


def sweep(path: Path, seed: Seed, rng: Random) -> None:
    """Read, and shown in every way."""
    found = load_sweep(path)
    for form in ("table", "csv", "json", "page"):
        _printed(render_sweep(found, form).replace("\t", " "))


def _printed(text: str) -> None:
    if any((ord(letter) < 0x20 and letter != "\n") or 0x7F <= ord(letter) < 0xA0 for letter in text):
        raise Unsound(f"control characters are printed: {text!r:.500}")
    text.encode()


JOURNEYS: Mapping[str, Journey] = {
    **dict.fromkeys(("onnx", "openvino", "tensorflow", "tensorflow text"), model),
    **dict.fromkeys(("torch", "hugging face", "pipedream", "graph"), model),
    "gguf": with_hole,
    "workload": whole,
    "piper": split,
    "external": external.journey,
    "names": names.journey,
    "options": option_matrix.journey,
    "problem": whole,
    "cluster": cluster,
    "cluster line": line,
    "topology": topology,
    "plan": plan,
    "split": plan,
    "profile": costs,
    "times": costs,
    "corpus": lambda path, seed, rng: load_corpus(path) and None,
    "policy": lambda path, seed, rng: load_policy(path) and None,
    "sweep": sweep,
    "inputs": lambda path, seed, rng: load_inputs(path) and None,
}  # fmt: skip
