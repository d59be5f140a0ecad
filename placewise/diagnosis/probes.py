"""The object in the worker that asks libraries about themselves: a broken library ends this process alone."""

from __future__ import annotations

from typing import Any

COPY = 64 << 20
"""Bytes of a copy from or to a GPU."""
REPEATS = 10


class LibraryProbe:
    """Imports a library when it is asked about it."""

    def onnxruntime(self) -> list[str]:
        """The execution providers of ONNX Runtime."""
        import onnxruntime

        return list(onnxruntime.get_available_providers())

    def openvino(self) -> list[str]:
        """The devices of OpenVINO with their full names."""
        import openvino

        core = openvino.Core()
        return [f"{name} ({core.get_property(name, 'FULL_DEVICE_NAME')})" for name in core.available_devices]

    def torch(self) -> tuple[str, str, int, tuple[str, ...]]:
        """PyTorch's version, the CUDA that it is built for ("" for none), its GPUs, and its back ends between ranks."""
        import torch
        import torch.distributed as dist

        ends = [name for name in ("gloo", "nccl") if getattr(dist, f"is_{name}_available")()]
        return str(torch.__version__), str(torch.version.cuda or ""), int(torch.cuda.device_count()), tuple(ends)

    def write_program(self, path: str, width: int, layers: int) -> None:
        """Write a program of so many linear layers, with an activation behind each."""
        import torch

        torch.manual_seed(0)
        parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        program = torch.export.export(torch.nn.Sequential(*parts).eval(), (torch.randn(width, width),))
        torch.export.save(program, path)

    def copies(self, numbers: list[int]) -> dict[str, float]:
        """Bytes/s of copies of pinned memory to and from each GPU and between two, and whether these may be direct."""
        import torch

        cuda: Any = torch.cuda
        host = torch.ones(COPY // 4, pin_memory=True)
        on_gpu = {number: torch.ones(COPY // 4, device=f"cuda:{number}") for number in numbers}
        pairs = [(f"host to cuda:{n}", host, value, n) for n, value in on_gpu.items()]
        pairs += [(f"cuda:{n} to host", value, host, n) for n, value in on_gpu.items()]
        for one, source in on_gpu.items():
            pairs += [
                (f"cuda:{one} to cuda:{other}", source, target, one) for other, target in on_gpu.items() if other != one
            ]
        rates: dict[str, float] = {}
        for name, source, target, number in pairs:
            with cuda.device(number):
                target.copy_(source, non_blocking=True)
                begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
                begin.record()
                for _ in range(REPEATS):
                    target.copy_(source, non_blocking=True)
                end.record()
                end.synchronize()
                rates[name] = REPEATS * COPY / (begin.elapsed_time(end) * 1e-3)
        for one in numbers:
            for other in numbers:
                if one != other:
                    rates[f"direct access {one} to {other}"] = float(cuda.can_device_access_peer(one, other))
        return rates

    def memory(self, number: int) -> tuple[int, int, int]:
        """Bytes that a tensor of `COPY` bytes adds to what PyTorch counts on a GPU, at most and after it is gone."""
        import torch

        cuda: Any = torch.cuda
        device = f"cuda:{number}"
        before = cuda.memory_allocated(device)
        cuda.reset_peak_memory_stats(device)
        value = torch.ones(COPY // 4, device=device)
        held = cuda.memory_allocated(device) - before
        most = cuda.max_memory_allocated(device) - before
        del value
        return int(held), int(most), int(cuda.memory_allocated(device) - before)
