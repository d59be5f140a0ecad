"""place and compare: a model and devices in, plans out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from placewise.analysis.compare import compare as run_all
from placewise.analysis.compare import parse_placers
from placewise.analysis.fit.fit_model import fit_model
from placewise.analysis.progress import listening
from placewise.api.results import Fit, Leaderboard, Plan
from placewise.core.build import Devices, build, start_of
from placewise.core.open_model import Model
from placewise.core.options import ProblemKeywords, options_from
from placewise.core.place import place as place_problem
from placewise.core.search_limits import budget_from
from placewise.core.target_rules import check_options
from placewise.model.placement import Placement
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress, Placer
from placewise.targets.place_for import place_for
from placewise.targets.smaller_weights import advise_precision


def place(
    model: Model,
    devices: Devices | None = None,
    *,
    target: str | None = None,
    placer: str | Placer = "auto",
    options: Mapping[str, Any] | None = None,
    start: str | os.PathLike[str] | Placement | None = None,
    time_limit: float | str | None = None,
    gap: float | str = 0.0,
    seed: int = 0,
    threads: int | None = None,
    budget: Budget | float | str | None = None,
    example_inputs: Any = None,
    on_progress: OnProgress | None = None,
    **problem_options: Unpack[ProblemKeywords],
) -> Plan:
    """Place a model: decide which device runs each op, and prove how good that is.

    Parameters
    ----------
    model : path, "zoo:NAME", "hf:NAME", Graph, Problem, torch.nn.Module or torch.export.ExportedProgram
        Files: ONNX, torch.export, OpenVINO, TensorFlow, a Hugging Face configuration, a published workload, a PipeDream
        profile, a graph or problem file.
    devices : str, path, mapping or Cluster
        A line such as ``"2xA100-80GB,cpu"``, ``"this"``, a TOML file, or memory by device. Not needed where the model
        brings its devices.
    target : str
        The tool that will run the plan, such as "vllm" or "device-map": only what it can express is searched, as it
        runs it (docs/export.md). Default: none.
    placer : str or Placer
        Name of the placer, or an object of your own with `info`, `supports` and `propose`; "auto" picks.
        Default: "auto".
    options : mapping of str to value
        Options of the placer (docs/placers.md).
    start : path or Placement
        A plan, a published split or a placement to start from.
    time_limit : float or str
        Seconds, also as "60s". Default: no limit; each placer ends by itself.
    gap : float or str
        Stop where (value − lower bound) / value is at most this, also as "1%". Default: 0.
    seed : int
        Same seed, same answer, where no time limit ends the search. Default: 0.
    threads : int
        The most threads that search at a time. Default: one per core.
    budget : Budget, float or str
        All limits in one object, also in iterations or evaluations; limits above replace its own.
    example_inputs : tuple or mapping
        Example arguments of a PyTorch module.
    on_progress : callable
        Called with a `Progress` now and then. Default: in a notebook a line and a bar, elsewhere nothing.
    **problem_options
        What is asked of the problem: `objective`, `dims`, `pins` and the other fields of `ProblemOptions`.

    Returns
    -------
    Plan
        An infeasible problem is a plan whose `status` says so.

    Raises
    ------
    InputError
        If a file, an option or an argument is wrong; every other PlacewiseError with it.

    Examples
    --------
    >>> import placewise as pw
    >>> plan = pw.place("zoo:random-layered", "2xL4,cpu", objective="throughput", dims={"n_ops": 12}, time_limit="5s")
    >>> plan.status
    'optimal'

    """
    limits = budget_from(time_limit, gap, seed, threads, budget)
    parsed_options = options_from(problem_options)
    if target is not None:
        check_options(target, parsed_options)
    search = place_problem if target is None else partial(place_for, target=target)
    with listening(on_progress, limits.seconds) as listener:
        problem = build(model, devices, parsed_options, example_inputs=example_inputs)
        hints = NO_HINTS if start is None else Hints((start_of(start, problem),))
        result = search(problem, placer=placer, budget=limits, options=options, hints=hints, on_progress=listener)
        return Plan(advise_precision(result))


def compare(
    model: Model,
    devices: Devices | None = None,
    *,
    placers: str | Sequence[str] = "all",
    expert: str | os.PathLike[str] | Placement | None = None,
    time_limit: float | str | None = None,
    gap: float | str = 0.0,
    seed: int = 0,
    threads: int | None = None,
    budget: Budget | float | str | None = None,
    example_inputs: Any = None,
    on_progress: OnProgress | None = None,
    **problem_options: Unpack[ProblemKeywords],
) -> Leaderboard:
    """Run several placers on one problem, the same limits for each.

    Parameters
    ----------
    model, devices, example_inputs, on_progress, **problem_options
        As in `place`.
    placers : str or sequence of str
        Names, also in one text with commas, or "all". Default: "all".
    expert : path or Placement
        A human's plan or published split; only the placer `expert` takes it.
    time_limit, gap, seed, threads, budget
        As in `place`, for each placer by itself.

    Returns
    -------
    Leaderboard
        An entry per placer, the best first.

    Raises
    ------
    PlacewiseError
        As `place` does. A placer that cannot take the problem is an entry with the reason.

    Examples
    --------
    >>> import placewise as pw
    >>> board = pw.compare("zoo:random-layered", "2xL4,cpu", placers="single,heft", dims={"n_ops": 20})
    >>> len(board.entries)
    2

    """
    names = parse_placers(placers)
    limits = budget_from(time_limit, gap, seed, threads, budget)
    with listening(on_progress) as listener:
        problem = build(model, devices, options_from(problem_options), example_inputs=example_inputs)
        human = None if expert is None else start_of(expert, problem)
        return Leaderboard(run_all(problem, names, limits, expert=human, on_progress=listener))


def fit(
    model: Model,
    devices: Devices | None = None,
    *,
    target: str = "llama.cpp",
    measure: bool = False,
    time_limit: float | str = "10s",
    gap: float | str = 0.0,
    seed: int = 0,
    threads: int | None = None,
    budget: Budget | None = None,
    on_progress: OnProgress | None = None,
    **problem_options: Unpack[ProblemKeywords],
) -> Fit:
    """Find the command that runs a language model on given devices, its speed, and what would make it faster.

    Without a `precision`, the model's own, int8 and int4 are placed, and the widest is chosen that generates 10 tokens
    per second, about as fast as people read; else the fastest. Where llama.cpp copies weights from host memory several
    times for a prompt, larger micro-batches are tried. Then one accelerator more of every model is.

    Parameters
    ----------
    model, on_progress, **problem_options
        As in `place`; the model generates text. Of the options: `dims`, `precision`, `cache_type`, `cache`,
        `costs`, `headroom`, `max_memory` and `exclude`.
    devices : str, path, mapping or Cluster
        As in `place`. Default: this machine.
    target : {"llama.cpp", "vllm"}
        What runs the model. Default: "llama.cpp".
    measure : bool
        Run the command of the plan on this machine, in turns with that of llama.cpp's own placement (``--fit``) on the
        same devices, and return the faster one; `fitted.measured` has the seconds of both. It takes llama-server and a
        GGUF file. Default: False.
    time_limit : float or str
        Seconds of each search. Default: "10s".
    gap, seed, threads, budget
        Of each search, as in `place`.

    Returns
    -------
    Fit
        The command, the expected speed, the plan, and in `fitted` what limits it and what was tried.

    Raises
    ------
    InputError
        If the model generates no text, or the target is started by no command; with `measure`, if the model is no GGUF
        file, or has several sequences.
    RunError
        With `measure`, if llama-server is not installed, an RPC server does not answer, or neither command runs.

    Examples
    --------
    >>> import placewise as pw
    >>> answer = pw.fit("hf:gpt2", "RTX3060,cpu", precision="int8", dims={"prompt": 16, "tokens": 8})
    >>> answer.command.partition(" -m ")[0]
    'llama-server'

    """
    limits = budget_from(None if budget is not None else time_limit, gap, seed, threads, budget)
    with listening(on_progress, limits.seconds) as listener:
        options = options_from(problem_options)
        return Fit(
            fit_model(model, devices, options, target=target, measure=measure, budget=limits, on_progress=listener)
        )
