"""The runtimes by name, imported on demand."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from placewise.errors import InputError
from placewise.runtimes.base import Runtime

_RUNTIMES = {
    "onnxruntime": "placewise.runtimes.onnxruntime.runtime:OnnxRuntime",
    "openvino": "placewise.runtimes.openvino.runtime:OpenVino",
    "torch": "placewise.runtimes.torch.runtime:Torch",
    "emulated": "placewise.runtimes.emulated.runtime:Emulated",
    "pipelining": "placewise.runtimes.torch.pipelining:Pipelining",
    "ray": "placewise.runtimes.torch.ray_pipeline:RayPipeline",
}
_BY_FORMAT = {"onnx": "onnxruntime", "openvino": "openvino", "torch-export": "torch", "torch-module": "torch"}


def names() -> tuple[str, ...]:
    """The names of all runtimes."""
    return tuple(_RUNTIMES)


def create(name: str) -> Runtime:
    """The runtime of this name. Raises InputError."""
    if name not in _RUNTIMES:
        raise InputError(f"there is no runtime {name!r}", remedy=f"choose from {', '.join(_RUNTIMES)}")
    module, _, runtime = _RUNTIMES[name].partition(":")
    return cast("Runtime", getattr(import_module(module), runtime)())


def choose_ray(
    runtime: str | None, address: str | None, options: Mapping[str, str]
) -> tuple[str | None, Mapping[str, str]]:
    """The runtime and its options, those of a Ray cluster if an address is given. Raises InputError for another one."""
    if address is None:
        return runtime, options
    if runtime not in (None, "ray"):
        raise InputError(f"the runtime {runtime!r} runs on this machine alone", remedy="leave out --runtime or --ray")
    return "ray", {**options, "address": address}


def default_for(source_format: str) -> str:
    """The default runtime of a model format. Raises InputError if no runtime runs it."""
    if source_format not in _BY_FORMAT:
        raise InputError(
            f"nothing here runs a model of the format {source_format!r}",
            remedy=f"give one of {', '.join(_BY_FORMAT)}",
        )
    return _BY_FORMAT[source_format]
