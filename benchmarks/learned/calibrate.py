"""Calibrate clusters of an i9-12900K and a Flex 170 on two published times per model.

    python benchmarks/learned/calibrate.py          (writes clusters/*.toml beside it; half a minute)

Duan et al. (HSDAG, NeurIPS 2024, arXiv 2405.14185) ran three models on these two devices. All that is taken from
there are the times of the two placements on one device: CPU-only and GPU-only. Per model and view, the roofline's
seconds of every op on a device (docs/costs.md) are multiplied by one factor, such that the judge gives those two times.
The factors are the only thing fitted, and no mixed placement had a part in it. Assumed is the link: PCIe 4.0 ×16 as in
the catalogue (25.2 GB/s, 10 µs per tensor), staged through host memory. BERT's factors are below 1: the published times
are shorter than the roofline at its 128 tokens, which the paper does not name.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

from placewise.catalog import read_cluster
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.cluster import Device
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement

HERE = Path(__file__).parent
CLUSTERS = HERE / "clusters"
FILES = HERE.parents[1] / "tests" / "data" / "openvino"
CPU, GPU = "i9-12900K", "Flex-170"
PUBLISHED = {
    "inception_v3": {CPU: 0.0128, GPU: 0.0120},
    "resnet50": {CPU: 0.0160, GPU: 0.00781},
    "bert_base": {CPU: 0.00639, GPU: 0.00278},
}
"""Seconds of one sample on one device. Printed are the best times, 0.0105, 0.00766 and 0.00267 s, their speedups over
the CPU, 17.9, 52.1 and 58.2 %, and those of the GPU, 6.25, 51.2 and 56.5 %; these follow, to three digits."""
VIEWS = ("folded", "raw")
CLOSE = 1e-6


def problem_of(model: str, view: str, cluster: str | Path, execution: str = "sequential") -> Problem:
    """The problem of one of the three IR files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.xml"
        path.write_bytes(gzip.decompress((FILES / f"{model}.xml.gz").read_bytes()))
        return build(str(path), cluster, ProblemOptions(view=view, execution=execution))


def factors(model: str, view: str) -> dict[str, float]:
    """What the seconds of ops are multiplied by on each device; transfers stay as they are."""
    problem = problem_of(model, view, f"{GPU},{CPU}")
    found = {}
    for device, name in enumerate((GPU, CPU)):
        computing = float(problem.costs.op_seconds[:, device].sum())
        moving = judge_placement(problem, Placement.on(device, problem.n_ops)).value - computing
        found[name] = (PUBLISHED[model][name] - moving) / computing
    return found


def text(model: str, view: str, found: dict[str, float]) -> str:
    """A cluster file: catalogue figures divided by the factor, overheads multiplied by it."""
    parts = [
        f"# {model}, {view} view: made by benchmarks/learned/calibrate.py on CPU-only {PUBLISHED[model][CPU]} s",
        f"# and GPU-only {PUBLISHED[model][GPU]} s (Duan et al. 2024). Factors on the roofline's seconds:",
        f"# {', '.join(f'{name} {factor:.4f}' for name, factor in found.items())}. Links as in the catalogue.",
    ]
    for device, name in zip(read_cluster(f"{GPU},{CPU}"), (GPU, CPU), strict=True):
        parts += ["", "[[devices]]", f'model = "{name}"', *_figures(device, found[name])]
    return "\n".join(parts) + "\n"


def _figures(device: Device, factor: float) -> list[str]:
    speeds = ", ".join(f"{dtype} = {speed / factor!r}" for dtype, speed in device.peak_flops.items())
    return [
        f"memory_bandwidth = {device.memory_bandwidth / factor!r}",
        f"op_overhead = {device.op_overhead * factor!r}",
        f"peak_flops = {{ {speeds} }}",
    ]


def check(model: str, view: str) -> float:
    """The largest relative error of the judge against the published times."""
    problem = problem_of(model, view, CLUSTERS / f"{model}-{view}.toml")
    errors = []
    for device, name in enumerate((GPU, CPU)):
        value = judge_placement(problem, Placement.on(device, problem.n_ops)).value
        errors.append(abs(value / PUBLISHED[model][name] - 1))
        print(f"{model} {view}: {name} alone {value:.6g} s, published {PUBLISHED[model][name]} s")
    return max(errors)


def main() -> int:
    """Write every file and check it; the exit code."""
    CLUSTERS.mkdir(exist_ok=True)
    for model in PUBLISHED:
        for view in VIEWS:
            (CLUSTERS / f"{model}-{view}.toml").write_text(text(model, view, factors(model, view)))
    return 1 if max(check(model, view) for model in PUBLISHED for view in VIEWS) > CLOSE else 0


if __name__ == "__main__":
    sys.exit(main())
