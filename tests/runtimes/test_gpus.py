"""GPUs as a driver describes them, in the keys of measured times, and in what runtimes are told about precision."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from placewise.analysis.measure_placements import lowest_precision
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.precision import find_tf32
from placewise.errors import RunError
from placewise.model.placement import Placement
from placewise.profiling.profile import describe_processor
from placewise.runtimes.base import Job
from placewise.runtimes.binding import Place
from placewise.runtimes.equal import require_equal
from placewise.runtimes.gpus import Gpu, list_gpus
from placewise.runtimes.onnxruntime.installed import installed_release
from placewise.runtimes.onnxruntime.worker_specs import session_settings, with_tf32

DRIVER = r"""
#include <string.h>
#include <stddef.h>
int cuInit(unsigned flags) { return FAILS; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int number) { *device = number + 40; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, device == 40 ? "L4" : "T4", length); return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, device, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 24ul << 30; return 0; }
"""
NVML = r"""
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) { strncpy(version, "570.1", length); return 0; }
"""


def build_library(folder: Path, name: str, source: str, **defined: int) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / f"{name}.c").write_text(source)
    flags = [f"-D{key}={value}" for key, value in defined.items()]
    subprocess.run(
        [compiler, "-shared", "-fPIC", *flags, "-o", folder / name, folder / f"{name}.c"], check=True, timeout=300
    )


def test_gpus_are_those_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs in CUDA's order with names, UUIDs and memory, and the versions of the driver and of CUDA."""
    build_library(tmp_path, "libcuda.so.1", DRIVER, FAILS=0, COUNT=2)
    build_library(tmp_path, "libnvidia-ml.so.1", NVML)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    first, second = list_gpus()
    assert first == Gpu(0, "L4", "GPU-28282828-2828-2828-2828-282828282828", 24 << 30, "570.1", "12.8")
    assert (second.number, second.name) == (1, "T4") and second.uuid != first.uuid


@pytest.mark.parametrize(
    ("defined", "said"), [({"FAILS": 100, "COUNT": 1}, "error 100"), ({"FAILS": 0, "COUNT": 0}, "no GPU")]
)
def test_a_driver_without_gpus(
    defined: dict[str, int], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that does not start, or sees nothing, is an error in one sentence."""
    build_library(tmp_path, "libcuda.so.1", DRIVER, **defined)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(RunError, match=said):
        list_gpus()


def test_times_belong_to_one_gpu_and_its_driver() -> None:
    """Another card in the same slot, or another driver, is another processor to the cache of measured times."""
    cards = [("L4", "GPU-a", "570.1"), ("L4", "GPU-b", "570.1"), ("L4", "GPU-a", "580.0"), ("T4", "GPU-a", "570.1")]
    gpus = [Gpu(1, name, uuid, 1, driver, "12.8") for name, uuid, driver in cards]
    place = Place("cuda:1", "cuda", "1")
    said = [describe_processor(place, (Gpu(0, "A2", "GPU-0", 1, "", ""), gpu)) for gpu in gpus]
    assert len(set(said)) == 4 and all("cuda:1" in text and "A2" not in text for text in said)
    assert describe_processor(place, ()) not in said
    assert describe_processor(place, gpus[:1], "products") not in said


def test_any_build_of_onnx_runtime_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one for other devices, under whatever name; two at once are both named."""

    def release(installed: dict[str, str], modules: dict[str, Any] | None = None) -> str:
        def version(name: str) -> str:
            if name not in installed:
                raise metadata.PackageNotFoundError(name)
            return installed[name]

        module = "placewise.runtimes.onnxruntime.installed"
        monkeypatch.setattr(f"{module}.version", version)
        monkeypatch.setattr(f"{module}.packages_distributions", lambda: modules or {})
        installed_release.cache_clear()
        return installed_release()

    try:
        assert release({"onnxruntime": "1.31.1"}) == "1.31.1"
        assert release({"onnxruntime-gpu": "1.30.0"}) == "1.30.0 (onnxruntime-gpu)"
        assert (
            release({"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.30.0"})
            == "1.31.1, 1.30.0 (onnxruntime, onnxruntime-gpu)"
        )
        assert release({"ort-nightly-gpu": "1.40"}, {"onnxruntime": ["ort-nightly-gpu"]}) == "1.40 (ort-nightly-gpu)"
        assert release({}) == ""
    finally:
        installed_release.cache_clear()


CUDA, CORES = Place("cuda:0", "cuda", "0"), Place("cpu", "cores", cores=(0,))


@pytest.mark.parametrize(
    ("options", "what", "wanted"),
    [({}, "products", "1"), ({"tf32": False}, "nothing", "0"), ({"tf32": True}, "products", "1")],
)
def test_onnx_runtime_computes_as_priced(options: dict[str, bool], what: str, wanted: str, tmp_path: Path) -> None:
    """A plan's costs say whether its products are in TF32, the provider is told so, and outputs may differ as much."""
    nodes = [onnx.helper.make_node("MatMul", ["x", "x"], ["y"])]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 4]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    problem = build(tmp_path / "m.onnx", "A2,cpu", ProblemOptions(**options))
    assert find_tf32(problem.graph) == what
    _, told, _ = session_settings(with_tf32(CUDA, what))
    assert told == {"device_id": "0", "use_tf32": wanted}
    _, told, _ = session_settings(with_tf32(replace(CUDA, options={"use_tf32": "0"}), what))
    assert told["use_tf32"] == "0"
    assert with_tf32(CORES, what) == CORES
    assert lowest_precision(problem, (CORES,)) == ""
    assert lowest_precision(problem, (CUDA, CORES)) == ("tf32" if what == "products" else "")
    near = {"y": np.full((4, 4), 1.005, np.float32)}
    exact = {"y": np.ones((4, 4), np.float32)}
    assert require_equal(exact, near, who="a GPU", precision="tf32") == pytest.approx(0.5, rel=0.01)
    with pytest.raises(RunError, match=r"0\.001 is allowed"):
        require_equal(exact, near, who="a GPU")


def test_pytorch_computes_as_priced() -> None:
    """By default convolutions are in TF32 and products are not, as PyTorch has it and as they are priced."""
    torch = pytest.importorskip("torch")
    from placewise.runtimes.torch.job_payload import ProgramFile
    from placewise.runtimes.torch.split_program import set_tf32

    model, example = torch.nn.Linear(4, 4).eval(), {"input": torch.zeros(2, 4)}
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert before == (False, True)
    try:
        for options, flags in (({}, (False, True)), ({"tf32": False}, (False, False)), ({"tf32": True}, (True, True))):
            problem = build(model, "A2,cpu", ProblemOptions(**options), example_inputs=example)
            alone = Placement.on(0, problem.n_ops)
            program = ProgramFile(Job(problem, alone, (CUDA, CORES), model, example))
            set_tf32(program.payload(problem, alone).tf32)
            program.close()
            assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == flags
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
