"""What is installed and which devices are here."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from placewise._util.cores import pinnable_cores
from placewise._util.units import format_bytes
from placewise.catalog.detect import processor_title, this_machine
from placewise.diagnosis.checks import Check, NotHere
from placewise.errors import RunError
from placewise.processes.worker import Worker
from placewise.runtimes.gpus import Gpu, list_gpus
from placewise.runtimes.onnxruntime.installed import installed_release

_PROBE = "placewise.diagnosis.probes:LibraryProbe"
SECONDS = 60.0
"""Seconds that a library may take to be imported and to answer."""
Found = tuple[str, dict[str, Any]]


class Machine:
    """The machine that this process runs on, asked once about each thing."""

    @cached_property
    def cores(self) -> list[int]:
        """The processors that this process may use."""
        return list(pinnable_cores())

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of CUDA; none without a driver."""
        try:
            return list_gpus()
        except RunError as error:
            self.why_no_gpu = str(error)
            return ()

    @cached_property
    def openvino(self) -> list[str]:
        """The devices of OpenVINO with their full names; none without it."""
        return self.ask("openvino") if find_spec("openvino") else []

    why_no_gpu = ""

    def ask(self, method: str, *args: Any) -> Any:
        """The answer of a library in a process of its own. Raises RunError."""
        with Worker(_PROBE, name=method) as worker:
            return worker.ask(method, *args, timeout=SECONDS)


def list_machine_checks(machine: Machine) -> Iterator[Check]:
    """Versions and devices."""
    yield Check("versions", "placewise", lambda: _describe_placewise())
    yield Check("versions", "native kernels", lambda: _describe_kernels())
    yield Check("versions", "torch", lambda: _describe_torch(machine))
    yield Check("versions", "onnxruntime", lambda: _describe_onnxruntime(machine))
    yield Check("versions", "openvino", lambda: _describe_openvino(machine))
    yield Check("versions", "ray", lambda: _describe_ray())
    yield Check("devices", "cores", lambda: _describe_cores(machine))
    yield Check("devices", "CUDA", lambda: _describe_gpus(machine))


def require_library(name: str) -> None:
    """Raise NotHere unless a library is installed."""
    if find_spec(name) is None:
        raise NotHere(f"{name} is not installed")


def _describe_placewise() -> Found:
    return f"{version('placewise')}, Python {platform.python_version()}, {platform.system()} {platform.machine()}", {}


def _describe_kernels() -> Found:
    from placewise import _native

    return Path(str(_native.__file__)).name, {}


def _describe_torch(machine: Machine) -> Found:
    require_library("torch")
    release, cuda, gpus, ends = machine.ask("torch")
    built = f"built for CUDA {cuda}, sees {gpus} GPUs" if cuda else "built without CUDA"
    return f"{release}, {built}; between processes: {', '.join(ends) or 'nothing'}", {"gpus": gpus}


def _describe_onnxruntime(machine: Machine) -> Found:
    require_library("onnxruntime")
    return f"{installed_release()}: {', '.join(machine.ask('onnxruntime'))}", {}


def _describe_openvino(machine: Machine) -> Found:
    require_library("openvino")
    devices = machine.openvino
    if not devices:
        raise RunError(f"OpenVINO {version('openvino')} finds no device here")
    return f"{version('openvino')}: {', '.join(devices)}", {}


def _describe_ray() -> Found:
    try:
        return version("ray"), {}
    except PackageNotFoundError:
        raise NotHere("ray is not installed") from None


def _describe_cores(machine: Machine) -> Found:
    cores, memory = machine.cores, this_machine().memory
    text = f"{len(cores)} processors ({processor_title()}), {format_bytes(memory)} of memory"
    return text, {"processors": len(cores), "bytes": memory}


def _describe_gpus(machine: Machine) -> Found:
    if not machine.gpus:
        raise NotHere(machine.why_no_gpu)
    said = "; ".join(f"cuda:{gpu.number} {gpu}, {format_bytes(gpu.memory)}" for gpu in machine.gpus)
    return said, {f"cuda:{gpu.number}": gpu.memory for gpu in machine.gpus}
