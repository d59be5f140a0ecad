"""A precision of the options: what it makes of a graph, and of the arithmetic on the devices of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from placewise.core.options import NO_OPTIONS, ProblemOptions, canonical_precision
from placewise.costing.roofline import allow_tf32, find_stand_in
from placewise.costing.work import OpWork, work_of
from placewise.errors import InputError
from placewise.model.cluster import Cluster
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph
from placewise.transform.precision import PRECISIONS, cast_floats, quantize_weights

_TF32_OF_FORMAT: Mapping[str, str] = {
    "onnx": "products",
    "tensorflow": "products",
    "torch-export": "convolutions",
    "torch-module": "convolutions",
    "torch-modules": "convolutions",
    "huggingface": "convolutions",
}
"""What the usual runtime of a format lets run in TF32 by default (docs/costs.md); nothing elsewhere."""
TOLERANCES: Mapping[str, float] = {
    "float64": 1e-6, "float32": 1e-3, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 5e-2,
}  # fmt: skip
"""The largest difference of an entry, relative to the largest absolute entry of the reference: kernels and orders of
summation differ. The lowest precision of any device applies."""
TRAINING_TOLERANCES: Mapping[str, float] = {"float32": 1e-5, "tf32": 1e-2}
"""How far losses, and gradients as a share of the largest entry, may be from those of one process."""


def recorded_precision(recorded: Mapping[str, Any]) -> str | None:
    """The precision that the options of a source name."""
    precision = recorded.get("precision") or recorded.get("dtype")
    return canonical_precision(str(precision)) if precision else None


def replay_precision(options: ProblemOptions, recorded: Mapping[str, Any]) -> str | None:
    """The precision of the options, else that of a source."""
    precision = recorded_precision(recorded)
    return options.precision or ("fp32" if precision == "tf32" and options.tf32 is False else precision)


def cast_graph(graph: Graph, options: ProblemOptions, *, is_cast: bool) -> Graph:
    """The graph with its floats in the precision of the options; `is_cast` if they were read so.

    Raises InputError for a precision that this graph cannot take.
    """
    name = _wanted_precision(graph, options)
    if not name:
        return graph
    _check_precision(graph, options, name)
    return graph if is_cast else cast_floats(graph, name)


def quantize_graph(graph: Graph, options: ProblemOptions) -> Graph:
    """The graph with its weights in the precision of the options, if that quantizes them. Raises InputError."""
    name = _wanted_precision(graph, options)
    return quantize_weights(graph, name) if name and PRECISIONS[name].matrices else graph


def note_precision(graph: Graph, options: ProblemOptions) -> Graph:
    """The graph with a source that says which precision was asked for."""
    choices = {"precision": options.precision, "tf32": options.tf32}
    noted = {key: value for key, value in choices.items() if value is not None}
    if graph.source is None or not noted:
        return graph
    return graph.with_source(replace(graph.source, options={**graph.source.options, **noted}))


def _wanted_precision(graph: Graph, options: ProblemOptions) -> str:
    """The precision to convert a graph to; "" if there is none, or it is in that precision already."""
    recorded = recorded_precision({} if graph.source is None else graph.source.options)
    return options.precision if options.precision is not None and options.precision != recorded else ""


def _check_precision(graph: Graph, options: ProblemOptions, name: str) -> None:
    where, recorded = (
        ("", None) if graph.source is None else (graph.source.path, recorded_precision(graph.source.options))
    )
    if recorded is not None and recorded in PRECISIONS and PRECISIONS[recorded].matrices:
        problem = f"the weights of this graph are quantized already, as {recorded}"
        raise InputError(problem, where=where, remedy=f"leave out --precision {name}, or give the model itself")
    packed = "" if graph.source is None else str(graph.source.options.get("quantization", ""))
    if packed and PRECISIONS[name].matrices:
        problem = f"the weights of this model are quantized already ({packed})"
        raise InputError(problem, where=where, remedy=f"leave out --precision {name}")
    if graph.ops.backward.any():
        problem = "this is a training graph already, in one precision"
        raise InputError(problem, where=where, remedy=f"leave out --precision {name}")
    if PRECISIONS[name].matrices and options.graph == "training":
        problem = f"--precision {name} quantizes weights, and these are not trained"
        raise InputError(problem, where=where, remedy="give --precision bf16 or fp16")
    if PRECISIONS[name].matrices and graph.source is not None and options.view == graph.source.view == "raw":
        problem = f"--precision {name} quantizes the weights of the folded view"
        raise InputError(problem, where=where, remedy="give --view folded")


def work_in_precision(work: OpWork, graph: Graph, name: str, options: ProblemOptions) -> tuple[OpWork, str]:
    """The work with TF32 where the options, or the runtime of the model `name` by default, allow it.

    With it, what became TF32 by default: "products", "convolutions" or "" for nothing. Raises InputError for `tf32`
    where no product is of float32.
    """
    if options.tf32 is not None and allow_tf32(work, "products") is work:
        remedy = f"leave out {'--tf32' if options.tf32 else '--no-tf32'}"
        raise InputError("no product or convolution of the model computes in float32", where=name, remedy=remedy)
    what = _choose_tf32(graph, options)
    allowed = allow_tf32(work, what)
    return allowed, "" if allowed is work or options.tf32 is not None else what


def require_tf32(cluster: Cluster, options: ProblemOptions) -> None:
    """Raise InputError if `tf32` is asked for or ruled out, and no device of the cluster computes in TF32."""
    if options.tf32 is not None and not any(d.available and "tf32" in d.peak_flops for d in cluster):
        remedy = f"leave out {'--tf32' if options.tf32 else '--no-tf32'}"
        raise InputError("no device computes in TF32", where="devices", remedy=remedy)


def find_tf32(graph: Graph) -> str:
    """What of a graph is priced, and so has to run, in TF32 on GPUs: "products", "convolutions" or "nothing"."""
    return _choose_tf32(graph, NO_OPTIONS)


def product_precision(graph: Graph, *, on_gpus: bool) -> str:
    """What products of float32 are computed in: "tf32" where GPUs may round to it, else "float32"."""
    return "tf32" if on_gpus and find_tf32(graph) != "nothing" else "float32"


def computing_dtype(graph: Graph) -> str:
    """The element type of floats in which most FLOPs of a graph are, or most of its tensors if it has no FLOPs.

    float32 for a graph without floats; with quantized weights, the type of the floats around them.
    """
    floats = ("float32", "float16", "bfloat16")
    work, codes = work_of(graph), [DTYPES.index(name) for name in floats]
    spent = [float(work.flops[work.dtype == code].sum()) for code in codes]
    if not any(spent):
        spent = [float(np.count_nonzero(graph.tensors.dtype == code)) for code in codes]
    return floats[int(np.argmax(spent))]


def describe_stand_ins(cluster: Cluster, options: ProblemOptions, rounded: str = "") -> tuple[str, ...]:
    """A note about the devices that compute in another type than the precision that is asked for.

    `rounded` is what of the model is priced in TF32 though nobody asked for it: "products", "convolutions" or "".
    """
    if options.precision == "fp32" and rounded:
        able = ", ".join(d.name for d in cluster if d.available and "tf32" in d.peak_flops)
        why = "the default of the model's runtime; --no-tf32 prices them in float32"
        return (f"{able}: {rounded} are priced in TF32, {why}",) if able else ()
    if options.tf32 or options.precision == "tf32":
        precision = "tf32"
    elif options.precision is not None:
        precision = PRECISIONS[options.precision].matrices or PRECISIONS[options.precision].floats
        precision = precision if "float" in precision else PRECISIONS[options.precision].floats
    else:
        return ()
    names: dict[str, list[str]] = {}
    for device in cluster:
        stand_in = find_stand_in(device, precision)
        if device.available and device.peak_flops and stand_in != precision:
            names.setdefault(stand_in or "the type of its lowest peak", []).append(device.name)
    return tuple(
        f"{', '.join(devices)}: no peak for {precision} is known, so products are computed in {stand_in}"
        f"{'' if precision == 'tf32' else '; sizes in memory and in copies are those of ' + str(options.precision)}"
        for stand_in, devices in names.items()
    )


def _choose_tf32(graph: Graph, options: ProblemOptions) -> str:
    recorded: Mapping[str, Any] = {} if graph.source is None else graph.source.options
    precision = options.precision or recorded.get("precision")
    tf32 = recorded.get("tf32") if options.tf32 is None else options.tf32
    if tf32 or precision == "tf32":
        return "products"
    if tf32 is False:
        return "nothing"
    return _TF32_OF_FORMAT.get("" if graph.source is None else graph.source.format, "nothing")
