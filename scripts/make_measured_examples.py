"""Write tests/data/measured: one small model in three formats, and what three profilers say of it.

    python scripts/make_measured_examples.py        (needs torch, onnxscript, onnxruntime, openvino; half a minute)

The model has what runtimes fuse: a convolution with normalization and activation, a sum behind another, an attention,
and layers with biases. Times are those of the machine that ran this.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

import onnxruntime
import openvino
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "measured"
RUNS = 6


class Small(nn.Module):
    """Images [1, 3, 32, 32] → scores [1, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(4)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide, self.narrow, self.scores = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(images)))
        x = self.pool(functional.relu(self.bn2(self.conv2(x)) + x))
        tokens = x.flatten(2).transpose(1, 2)
        query, key, value = self.qkv(self.norm(tokens)).reshape(1, 64, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(query @ key.transpose(-2, -1) * 0.35, -1)
        tokens = tokens + self.out((weights @ value).transpose(1, 2).reshape(1, 64, 16))
        tokens = tokens + self.narrow(functional.gelu(self.wide(tokens)))
        return torch.softmax(self.scores(tokens.mean(1)), -1)


def onnx_runtime(module: nn.Module, images: Tensor, folder: Path) -> None:
    """small.onnx and its profile over some runs, with one thread."""
    file = FOLDER / "small.onnx"
    torch.onnx.export(module, (images,), file, dynamo=True, verbose=False, input_names=["images"], external_data=False)
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.intra_op_num_threads = True, 1
    options.profile_file_prefix = str(folder / "ort")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    for _ in range(RUNS):
        session.run(None, {"images": images.numpy()})
    packed("onnxruntime.json", Path(session.end_profiling()))


def openvino_counters(module: nn.Module, images: Tensor, folder: Path) -> None:
    """small.xml, the reports of benchmark_app on it, and the graph that ran."""
    model = openvino.convert_model(module, example_input=images, input=list(images.shape))
    openvino.save_model(model, folder / "small.xml")
    packed("small.xml", folder / "small.xml")
    command = [str(Path(sys.executable).parent / "benchmark_app"), "-m", str(folder / "small.xml"), "-d", "CPU"]
    command += ["-hint", "none", "-api", "sync", "-niter", str(RUNS), "-nthreads", "1", "-pc"]
    command += ["-report_type", "detailed_counters", "-report_folder", str(folder)]
    for more in (["-exec_graph_path", str(folder / "execution.xml")], ["-json_stats"]):
        subprocess.run(command + more, check=True, capture_output=True)
    packed("execution.xml", folder / "execution.xml")
    for suffix in ("csv", "json"):
        packed(f"counters.{suffix}", folder / f"benchmark_detailed_counters_report.{suffix}")


def torch_profiler(module: nn.Module, images: Tensor, folder: Path) -> None:
    """small.pt2 and a trace of several steps."""
    torch.export.save(torch.export.export(module, (images,)), FOLDER / "small.pt2")
    trace = folder / "trace.json"
    steps = schedule(wait=0, warmup=1, active=RUNS)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=steps,
        on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
    ) as recorder:
        for _ in range(RUNS + 1):
            module(images)
            recorder.step()
    packed("torch.json", trace)


def packed(name: str, file: Path) -> None:
    text = file.read_bytes()
    (FOLDER / f"{name}.gz").write_bytes(gzip.compress(text, mtime=0))
    print(name, len(text), "bytes")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module, images = Small(), torch.randn(1, 3, 32, 32)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    module.eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for record in (onnx_runtime, openvino_counters, torch_profiler):
            record(module, images, Path(folder))


if __name__ == "__main__":
    main()
