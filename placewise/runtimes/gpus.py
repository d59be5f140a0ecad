"""The GPUs that CUDA sees, in its order, as the driver's own libraries describe them: without PyTorch or ONNX Runtime.

A process that has used CUDA cannot be forked, so the libraries are loaded in a worker.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from uuid import UUID

from placewise.errors import RunError
from placewise.processes.worker import Worker

SECONDS = 60.0
"""Seconds that the driver may take to answer: it may have to start the GPUs."""
_NAME, _UUID, _VERSION = 256, 16, 96
"""Bytes of the texts that the driver writes."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its number in CUDA's order (that of ``cuda:0``), name, UUID and bytes of memory.

    `driver` is the version of the driver ("" if NVML does not say), `cuda` the newest version of CUDA that it supports.
    """

    number: int
    name: str
    uuid: str
    memory: int
    driver: str
    cuda: str

    def __str__(self) -> str:
        return f"{self.name} {self.uuid}; driver {self.driver or 'unknown'}, CUDA {self.cuda}"


def list_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine that CUDA_VISIBLE_DEVICES leaves. Raises RunError without a driver or a GPU."""
    with Worker("placewise.runtimes.gpus:GpuServer", name="the CUDA driver") as worker:
        gpus: tuple[Gpu, ...] = worker.ask("list", timeout=SECONDS)
    return gpus


class GpuServer:
    """Asks the driver."""

    def list(self) -> tuple[Gpu, ...]:
        """All GPUs. Raises RunError."""
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise RunError("there is no driver for NVIDIA GPUs here (libcuda.so.1)") from None
        _call(library, "cuInit", 0)
        count, version = ctypes.c_int(), ctypes.c_int()
        _call(library, "cuDriverGetVersion", ctypes.byref(version))
        _call(library, "cuDeviceGetCount", ctypes.byref(count))
        if not count.value:
            raise RunError("the driver sees no GPU: look at CUDA_VISIBLE_DEVICES")
        cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return tuple(_describe_gpu(library, number, _read_driver_version(), cuda) for number in range(count.value))


def _describe_gpu(library: ctypes.CDLL, number: int, driver: str, cuda: str) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name, uuid = ctypes.create_string_buffer(_NAME), ctypes.create_string_buffer(_UUID)
    _call(library, "cuDeviceGet", ctypes.byref(device), number)
    _call(library, "cuDeviceGetName", name, _NAME, device)
    _call(library, "cuDeviceGetUuid_v2" if hasattr(library, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid", uuid, device)
    _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    return Gpu(number, name.value.decode("utf-8", "replace"), f"GPU-{UUID(bytes=uuid.raw)}", memory.value, driver, cuda)


def _read_driver_version() -> str:
    """The version of the driver; "" without NVML."""
    text = ctypes.create_string_buffer(_VERSION)
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        _call(library, "nvmlInit_v2")
        _call(library, "nvmlSystemGetDriverVersion", text, _VERSION)
    except (OSError, RunError):
        return ""
    return text.value.decode("ascii", "replace")


def _call(library: ctypes.CDLL, name: str, *args: object) -> None:
    """Call a function of the driver. Raises RunError if it fails."""
    status = getattr(library, name)(*args)
    if status:
        raise RunError(f"the driver for NVIDIA GPUs does not work here ({name} gives error {status})")
