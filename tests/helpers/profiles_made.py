"""Profiles in which every op takes what a roofline says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.files.profile_file import DeviceProfile, Figures, ProfileFile
from placewise.model.cluster import Device
from placewise.profiling.calibrate import collect_kernels, predict_seconds

CATALOGUED = {"matmul": 0.6, "conv": 0.8, "attention": 0.5, "reduction": 0.06, "elementwise": 0.06, "memory": 0.8}


CPU = Device("cpu", "cpu", 8e9, 0.0, {"float32": 1e11}, 2e10, 1e-6, efficiency=CATALOGUED)


TRUE = replace(
    CPU, op_overhead=7e-6, efficiency={**CATALOGUED, "matmul": 0.45, "conv": 0.3, "elementwise": 0.02, "memory": 0.5}
)


def profile_of(device: Device, *, n: int = 60, seed: int = 0, noise: float = 0.0, fused=()) -> ProfileFile:
    """A profile in which every op takes exactly (or about) what a device's roofline says."""
    rng = np.random.default_rng(seed)
    classes = tuple(rng.choice(["matmul", "conv", "elementwise", "movement"], n).tolist())
    flops = tuple(0.0 if name == "movement" else float(10 ** rng.uniform(5, 9)) for name in classes)
    moved = tuple(float(10 ** rng.uniform(3, 7)) for _ in classes)
    found = ProfileFile(
        runtime="onnxruntime", ops=tuple(f"op{k}" for k in range(n)), flops=flops, bytes=moved, classes=classes,
        dtypes=("float32",) * n, devices=(DeviceProfile(name="cpu", fused=fused, idle=Figures(ops=(1.0,) * n)),),
    )  # fmt: skip
    exact = predict_seconds(device, collect_kernels(found, found.devices[0], device)) * np.exp(
        noise * rng.standard_normal(n)
    )
    return found.model_copy(
        update={"devices": (DeviceProfile(name="cpu", fused=fused, idle=Figures(ops=tuple(exact.tolist()))),)}
    )
