"""Which ONNX Runtime is installed: builds for different devices are different distributions of one module."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

MODULE = "onnxruntime"
BUILDS = tuple(
    f"{MODULE}{suffix}"
    for suffix in (
        "", "-gpu", "-openvino", "-directml", "-qnn", "-rocm", "-migraphx", "-windowsml", "-training", "-training-cpu",
        "-azure", "-cann", "-vitisai", "-webgpu",
    )
)  # fmt: skip
"""Distributions of the module; builds under other names are found by the module that they hold."""


@cache
def installed_release() -> str:
    """The installed version, as ``1.23.0`` or, for another build than that for CPUs, ``1.23.0 (onnxruntime-gpu)``.

    If several builds are installed, which overwrite each other's files, all are named. "" if there is none.
    """
    found = [name for name in BUILDS if _version(name)]
    found = found or sorted(set(packages_distributions().get(MODULE, ())))
    if not found:
        return ""
    versions = ", ".join(dict.fromkeys(_version(name) for name in found))
    return versions if found == [MODULE] else f"{versions} ({', '.join(found)})"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
