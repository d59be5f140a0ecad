"""The values that were published with the workloads of Tarnawski et al. 2020 come out of the judge again.

The files are looked for under PLACEWISE_WORKLOADS: `dnn-partitioning/` as in github.com/msr-fiddle/dnn-partitioning
with the published programs' results under `splits/`, and `benchmarks/published.json` has the recorded values.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from published import EXPERTS, MS, RECORDED, WORKLOADS, needs_workloads

from placewise.files.split_file import read_placement
from placewise.model.result import Judgement
from placewise.readers.workload import read_workload
from placewise.simulate import judge_placement, lower_bound, why_infeasible

pytestmark = needs_workloads
SPLITS = sorted(path.stem for path in WORKLOADS.glob("splits/*.json"))

# The values of the human experts that the published files record, in ms, and the rules that they break: in
# latency the experts use more accelerators than there are, or more memory.


def judged(kind: str, graph: str, split: Path) -> tuple[Judgement, float]:
    """The judgement of a split and the lower bound of its problem."""
    problem = read_workload(WORKLOADS / kind / f"{graph}.json", objective=kind).problem
    assert problem is not None
    assert why_infeasible(problem) == ""
    extended, placement = read_placement(split, problem)
    return judge_placement(extended, placement), lower_bound(problem).value


@pytest.mark.parametrize("name", SPLITS)
def test_results_of_the_published_programs(name):
    """Every split of the published dynamic program and greedy has its published value and breaks no rule."""
    kind, graphs, rest = name.split("_", 2)
    path = WORKLOADS / "splits" / f"{name}.json"
    document = json.loads(path.read_text())
    published = document["maxLoad"] if kind == "throughput" else document["totalLatency"]
    judgement, bound = judged(kind, f"{graphs}/{rest.rsplit('_', 1)[0]}", path)
    assert judgement.value == pytest.approx(published * MS, rel=1e-9)
    assert judgement.violations == ()
    assert bound <= judgement.value


@pytest.mark.parametrize(("kind", "graph"), EXPERTS)
def test_human_experts(kind, graph):
    """Every expert's split has its recorded value, to the digits printed, and breaks the rules that are known."""
    recorded = RECORDED[kind][graph]["expert"]["value"]
    name = graph.split("/")[1]
    split = WORKLOADS / "human-experts" / f"{name}_expert.json"
    if not split.exists():
        split = split.with_name(split.name.replace("training", "inference"))
    judgement, bound = judged(kind, graph, split)
    assert judgement.value == pytest.approx(recorded * MS, rel=1e-5)
    assert {violation.kind for violation in judgement.violations} == EXPERTS[kind, graph]
    if judgement.valid:
        assert bound <= judgement.value


def test_all_experts_are_here():
    """Every recorded human-expert value is among those tested, and all eighteen splits are there."""
    recorded = {
        (kind, graph)
        for kind in ("throughput", "latency")
        for graph, entry in RECORDED[kind].items()
        if "expert" in entry
    }
    assert recorded == set(EXPERTS)
    assert len(SPLITS) == 18


def test_bytes_that_the_experts_lack():
    """Two experts need more memory than their accelerators have; the checker says how much more."""
    for name in ("inceptionv3", "resnet50"):
        split = WORKLOADS / "human-experts" / f"{name}_inference_expert.json"
        judgement, _ = judged("latency", f"LayerGraphs/{name}_inference", split)
        for violation in judgement.violations:
            use = next(use for use in judgement.devices if use.device == violation.device)
            assert violation.bytes_short == use.peak - use.capacity > 0
            assert f"({violation.bytes_short:.0f} bytes) short" in violation.message
