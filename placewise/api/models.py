"""Models, placers and measured costs: read_model, inspect, list_placers, profile."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

from placewise.analysis.inspect import Inspection, price_model
from placewise.analysis.inspect import inspect as inspect_graph
from placewise.core.build import Devices, build
from placewise.core.open_model import Model, open_model
from placewise.core.options import ProblemKeywords, options_from
from placewise.errors import MissingExtraError
from placewise.files.profile_file import ProfileFile, save_profile
from placewise.model.graph import Graph
from placewise.placers import registry
from placewise.placers.base import PlacerInfo
from placewise.profiling.profile import Profiling
from placewise.profiling.profile import profile as measure
from placewise.profiling.profile_cache import ProfileCache


def read_model(model: Model, *, example_inputs: Any = None, **options: Unpack[ProblemKeywords]) -> Graph:
    """Read a model as a computation graph.

    Parameters
    ----------
    model, example_inputs
        As in `place`.
    **options
        Those of `ProblemOptions` that matter to a graph: `dims`, `view`, `graph`, `optimizer`, `freeze`,
        `precision`, `cache`.

    Returns
    -------
    Graph
        Ops in a topological order, tensors and weights, as read-only columns.

    Raises
    ------
    ModelFileError
        If the file cannot be read, or a size that is needed stays unknown.

    Examples
    --------
    >>> import placewise as pw
    >>> pw.read_model("zoo:random-layered", dims={"n_ops": 20}).n_ops
    20

    """
    return open_model(model, options_from(options), example_inputs).graph


def inspect(
    model: Model,
    devices: Devices | None = None,
    *,
    depth: int = 2,
    example_inputs: Any = None,
    **options: Unpack[ProblemKeywords],
) -> Inspection:
    """Count ops, tensors, FLOPs and weights of a model, by kind and by scope; with devices, find what takes longest.

    Parameters
    ----------
    model, example_inputs, **options
        As in `read_model`; with devices also `costs`, `supported` and `unsupported`.
    devices : str, path, mapping or Cluster
        Price every op on them. Default: none.
    depth : int
        How many parts of a scope tell its ops apart. Default: 2.

    Returns
    -------
    Inspection
        Totals, and rows by kind and by scope; bytes and FLOPs of one sample. With devices, `slowest_ops` and
        `slowest_modules`: the ten that take longest, each with its seconds per sample on every device.

    Raises
    ------
    ModelFileError
        As `read_model` does.
    InputError
        For devices that cannot be read, or costs without devices.

    Examples
    --------
    >>> import placewise as pw
    >>> pw.inspect("zoo:random-layered", dims={"n_ops": 20}).ops
    20
    >>> found = pw.inspect("zoo:bert-base", "A100,cpu")
    >>> found.slowest_modules[0].module, sorted(found.slowest_modules[0].by_device)
    ('layer.*.feed_forward.inner', ['cpu', 'cuda:0'])

    """
    problem_options = options_from(options)
    imported = open_model(model, problem_options, example_inputs)
    return inspect_graph(imported, depth=depth, problem=price_model(imported, model, devices, problem_options))


def list_placers() -> dict[str, PlacerInfo]:
    """List the placers by name.

    Returns
    -------
    dict of str to PlacerInfo
        Names as `place(placer=…)` takes them. Placers whose extra is not installed are left out.

    Examples
    --------
    >>> import placewise as pw
    >>> pw.list_placers()["heft"].objectives == {"latency", "throughput"}
    True

    """
    found = {}
    for name in registry.known_names():
        try:
            found[name] = registry.create(name).info
        except MissingExtraError:
            continue
    return found


def profile(
    model: Model,
    devices: Devices = "cores",
    path: str | os.PathLike[str] | None = None,
    *,
    runtime: str = "",
    bind: Mapping[str, str] | None = None,
    repeats: int = 20,
    loaded: bool = False,
    pilots: int = 5,
    afresh: bool = False,
    trust_model: bool = False,
    seed: int = 0,
    **options: Unpack[ProblemKeywords],
) -> ProfileFile:
    """Measure every op of a model on the devices of this machine, for `costs`.

    Parameters
    ----------
    model : path
        A model file that the runtime takes.
    devices : str, path, mapping or Cluster
        Default: "cores", every core of this machine.
    path : path
        Where the profile is written, if anywhere.
    runtime : {"onnxruntime", "openvino", "torch", "pipelining", "llama.cpp"}
        Default: by the model's format. Of llama.cpp, prompts and tokens are timed, and ops by the rates fitted to them.
    bind : mapping of str to str
        Where devices are, as in `run`.
    repeats : int
        How often the model runs on each device, at least. Default: 20.
    loaded : bool
        Measure also while all devices run the same. Default: False.
    pilots : int
        Placements to run on several devices, to measure what borders between pieces cost; then plans that the costs
        choose are run, to see what the costs miss. Default: 5.
    afresh : bool
        Measure what is kept again. Default: False.
    trust_model : bool
        As in `run`. Default: False.
    seed : int
        Of the random inputs. Default: 0.
    **options
        Those of `ProblemOptions`, such as `dims`; with ``cache=False`` no times are kept, and none that were kept used.

    Returns
    -------
    ProfileFile
        Seconds of every op on every device.

    Raises
    ------
    PlacewiseError
        If a device is not here, or the model does not run.

    Examples
    --------
    >>> import placewise as pw
    >>> measured = pw.profile("examples/models/mlp.onnx", "this", dims={"batch": 1}, repeats=3)  # doctest: +SKIP

    """
    problem_options = options_from(options)
    problem = build(model, devices, problem_options)
    cache = None if problem_options.cache is False else ProfileCache()
    how = Profiling(
        runtime, dict(bind or {}), repeats, loaded, cache, afresh, seed, trust_model=trust_model, pilots=pilots
    )
    made = measure(problem, how)
    if path is not None:
        save_profile(made, path)
    return made
