"""The registry of targets: names → classes, imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from placewise.errors import ExportError, MissingExtraError
from placewise.exporters.base import Exporter, ExportInfo, OptionValue, OptionValues

_TARGETS: dict[str, str] = {
    "deepspeed": "placewise.exporters.deepspeed:DeepspeedExporter",
    "device-map": "placewise.exporters.device_map:DeviceMapExporter",
    "dot": "placewise.exporters.dot:DotExporter",
    "llama.cpp": "placewise.exporters.llama_cpp.exporter:LlamaCppExporter",
    "megatron": "placewise.exporters.megatron:MegatronExporter",
    "onnx": "placewise.exporters.onnx:OnnxExporter",
    "onnx-annotated": "placewise.exporters.onnx_annotated:AnnotatedOnnxExporter",
    "openvino": "placewise.exporters.openvino:OpenvinoExporter",
    "pipelining": "placewise.exporters.pipelining:PipeliningExporter",
    "tensorflow": "placewise.exporters.tensorflow:TensorflowExporter",
    "torch": "placewise.exporters.torch_parallel:TorchExporter",
    "trace": "placewise.exporters.trace:TraceExporter",
    "vllm": "placewise.exporters.vllm:VllmExporter",
}


def names() -> tuple[str, ...]:
    """The names of all targets, sorted."""
    return tuple(sorted(_TARGETS))


def create_exporter(name: str) -> Exporter:
    """The exporter of a target. Raises ExportError for an unknown name."""
    if name not in _TARGETS:
        raise ExportError(f"there is no target {name!r}", remedy=f"choose from {', '.join(names())}")
    module, attribute = _TARGETS[name].split(":")
    return cast("Exporter", getattr(import_module(module), attribute)())


def require_library(info: ExportInfo) -> None:
    """Raise MissingExtraError if the library that a target needs is not installed."""
    if info.library and find_spec(info.library) is None:
        raise MissingExtraError(f"the target {info.name!r} ({info.library})", info.extra)


def complete_options(info: ExportInfo, given: Mapping[str, OptionValue]) -> OptionValues:
    """Every option of a target, as given or by default. Raises ExportError for an unknown name or a wrong type."""
    if not isinstance(given, Mapping):
        raise ExportError(f"options are {given!r:.60}", remedy="give names and values, like {'most': 100}")
    unknown = next((name for name in given if name not in info.options), None)
    if unknown is not None:
        offered = f"it has {', '.join(info.options)}" if info.options else "it has none"
        raise ExportError(f"the target {info.name!r} has no option {unknown!r}", remedy=offered)
    for name, value in given.items():
        default = info.options[name].default
        fits = isinstance(value, type(default)) or (isinstance(default, float) and type(value) is int)
        if not fits or (isinstance(value, bool) and not isinstance(default, bool)):
            meaning = info.options[name].meaning
            raise ExportError(f"the option {name!r} of {info.name!r} is {value!r}", remedy=f"it is {meaning}")
    return {name: given.get(name, option.default) for name, option in info.options.items()}
