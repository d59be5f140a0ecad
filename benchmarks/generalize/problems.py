"""The problems of GDP's table: training graphs of the zoo on P100s, and what was published of graphs of these names.

Zhou et al. placed TensorFlow's graphs, and name neither batch sizes (but Inception-V3's), lengths nor the optimizer:
the sizes are the zoo's (docs/zoo.md), the optimizer is plain SGD. Times can therefore not be compared, only what a
method gains over another.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.problem import Problem

CLUSTERS = Path(__file__).parent / "clusters"
"""Files as `2xP100.toml`; none is like a cluster that corpora/default.toml draws."""


@dataclass(frozen=True, slots=True)
class Published:
    """Seconds of a training step as printed, None where a method ran out of memory, and how much faster its search was.

    From the table "GO-one" of Zhou et al. (NeurIPS 2020, arXiv 2010.12438) as a lecture's slides show it, read by
    machine; the two rows without a name there are those that the order calls for. GDP's own table (arXiv 1910.01578)
    has the same rows, and was not at hand.
    """

    learned: float
    human: float
    metis: float | None
    hdp: float
    speedup: float


PUBLISHED = {
    "rnnlm-2 2xP100": Published(0.173, 0.192, 0.355, 0.191, 2.95),
    "rnnlm-4 4xP100": Published(0.210, 0.239, 0.503, 0.251, 1.76),
    "rnnlm-8 8xP100": Published(0.320, 0.332, None, 0.764, 27.8),
    "gnmt-2 2xP100": Published(0.301, 0.384, 0.344, 0.327, 30.0),
    "gnmt-4 4xP100": Published(0.350, 0.469, 0.466, 0.432, 58.8),
    "gnmt-8 8xP100": Published(0.440, 0.562, None, 0.693, 7.35),
    "transformer-xl-2 2xP100": Published(0.223, 0.268, 0.37, 0.262, 40.0),
    "transformer-xl-4 4xP100": Published(0.230, 0.27, None, 0.259, 26.7),
    "transformer-xl-8 8xP100": Published(0.350, 0.46, None, 0.425, 16.7),
    "inception-v3 2xP100": Published(0.229, 0.312, None, 0.301, 13.5),
    "inception-v3 batch=64 2xP100": Published(0.423, 0.731, None, 0.498, 21.0),
    "amoebanet 4xP100": Published(0.394, 0.44, 0.426, 0.418, 58.8),
    "wavenet-2x18 2xP100": Published(0.317, 0.376, None, 0.354, 6.67),
    "wavenet-4x36 4xP100": Published(0.659, 0.988, None, 0.721, 20.0),
}
WORKLOADS = tuple(PUBLISHED)
LARGE = "gnmt-8 8xP100"
"""The one of more than 50,000 ops."""
FAMILIES = ("wavenet", "transformer-xl")
"""Each is left out of one training, so that it never saw it (corpora/without-….toml)."""


def checkpoint(name: str) -> str:
    """Where a policy lies that was trained for these tables, from the root of the repository (checkpoints.py)."""
    return f"benchmarks/generalize/checkpoints/{name}"


def problem(workload: str) -> Problem:
    """The problem of a name like ``inception-v3 batch=64 2xP100``."""
    model, *dims, cluster = workload.split()
    sizes = {name: int(size) for name, size in (dim.split("=") for dim in dims)}
    options = ProblemOptions(graph="training", optimizer="sgd", execution="operator", dims=sizes)
    return build(f"zoo:{model}", CLUSTERS / f"{cluster}.toml", options)
