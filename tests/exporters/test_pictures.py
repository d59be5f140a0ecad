"""The targets trace and dot: the judge's figures are in the picture, and every op is there once."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from export_models import on, stack_graph, stack_problem
from hypothesis import given
from hypothesis import strategies as st
from simulate_problems import placed
from soak import examples

from placewise.errors import ExportError
from placewise.exporters.base import Exported
from placewise.exporters.registry import create_exporter
from placewise.exporters.writing import Export, export_placement
from placewise.model.builder import GraphBuilder
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.simulate import judge_placement
from placewise.zoo.registry import generate

SECOND = 1e6
Events = list[dict[str, Any]]


def events_of(made: Export) -> Events:
    found: Events = json.loads(made.exported.files["trace.json"])["traceEvents"]
    return found


def places(events: Events) -> dict[int, str]:
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}


def runnable(**options: Any) -> st.SearchStrategy[tuple[Problem, Placement]]:
    """Problems and placements that can run: pieces of a group that is torn apart may wait for each other."""
    return placed(**options).filter(lambda both: math.isfinite(judge_placement(*both).value))


@examples(40)
@given(runnable(max_ops=8), st.integers(1, 3))
def test_a_trace_adds_up_to_what_the_judge_says(both: tuple[Problem, Placement], samples: int) -> None:
    """Per device: seconds of ops and of copies, the peak of memory; every op once per sample; the last end."""
    problem, placement = both
    made = export_placement(problem, placement, "trace", {"samples": samples})
    events, judged = events_of(made), judge_placement(problem, placement)
    called, seconds, peak = places(events), Counter[tuple[str, str]](), dict[str, float]()
    slices = [event for event in events if event["ph"] == "X"]
    for event in slices:
        seconds[called[event["pid"]], event["cat"]] += event["dur"] / SECOND
    for event in events:
        if event["ph"] == "C":
            place = called[event["pid"]]
            peak[place] = max(peak.get(place, 0.0), event["args"]["bytes"])
    shown = 1 if judged.timeline is not None else samples
    ops = Counter((event["name"], event["args"]["sample"]) for event in slices if event["cat"] == "op")
    assert ops == Counter({(name, sample): 1 for name in problem.graph.ops.name for sample in range(shown)})
    for use in judged.devices:
        assert seconds[use.device, "op"] == pytest.approx(use.compute * shown, abs=1e-9)
        if judged.timeline is None:
            assert seconds[use.device, "copy"] == pytest.approx((use.send + use.receive) * shown, abs=1e-9)
        if use.ops:
            assert peak[use.device] == use.peak
    if judged.timeline is not None:
        last = max((event["ts"] + event["dur"] for event in slices), default=0.0)
        assert last / SECOND == pytest.approx(judged.timeline.makespan, abs=1e-9)


@examples(40)
@given(runnable(max_ops=8))
def test_slices_of_a_track_do_not_overlap_and_arrows_lead_forwards(both: tuple[Problem, Placement]) -> None:
    """Perfetto takes no slices that overlap without nesting; what arrives has left before, inside a slice."""
    made = export_placement(*both, "trace")
    events, tracks = events_of(made), defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-3
    ends = {(event["id"], event["ph"]): event for event in events if event["ph"] in "sf"}
    for (number, letter), event in ends.items():
        assert any(start <= event["ts"] <= end + 1e-6 for start, end in tracks[event["pid"], event["tid"]])
        if letter == "s":
            assert event["ts"] <= ends[number, "f"]["ts"] + 1e-3


def test_the_steady_state_of_two_stages() -> None:
    """Stages of 3 and 4 seconds: sample 1 begins one period of 4 s after sample 0, and stage 2 one period late.

    cuda:0 runs embed and layer 0 from 0 to 3; cuda:1, whose place in a period is from 0 to 3 as well, can begin with
    sample 0 only at 4: layer 1 at 4 and 5, and the head at 6 to 8, which takes two seconds.
    """
    problem = stack_problem(stack_graph(2), cpu=False, seconds={"head": 2.0})
    plan = on(problem, {"layers.1.attn": "cuda:1", "layers.1.mlp": "cuda:1", "head": "cuda:1"})
    events = events_of(export_placement(problem, plan, "trace", {"samples": 2}))
    found = {
        (event["name"], event["args"]["sample"]): event["ts"] / SECOND
        for event in events if event["ph"] == "X" and event["cat"] == "op"
    }  # fmt: skip
    assert [found[name, 0] for name in problem.graph.ops.name] == [0, 1, 2, 4, 5, 6]
    assert [found[name, 1] for name in problem.graph.ops.name] == [4, 5, 6, 8, 9, 10]


def test_a_trace_has_no_replicas_and_a_limit() -> None:
    """Replicas are left out, and the plan without them is judged; samples are bounded."""
    problem = stack_problem(stack_graph(2), cpu=False)
    plan = Placement(np.zeros(problem.n_ops, np.int32), replicas=np.array([0, 0], np.int32))
    made = export_placement(problem, plan, "trace")
    assert made.projected and not made.moved and made.exported.placement.replicas is None
    assert made.asked.value == pytest.approx(3.0) and made.said.value == pytest.approx(6.0)
    for samples in (0, 1001):
        with pytest.raises(ExportError, match="samples"):
            export_placement(problem, plan, "trace", {"samples": samples})


@examples(50)
@given(runnable(max_ops=8), st.integers(1, 9))
def test_every_op_is_in_one_box_on_its_device(both: tuple[Problem, Placement], most: int) -> None:
    """Read back from the clusters, however few boxes there may be; and there are no more than devices need."""
    problem, placement = both
    made = export_placement(problem, placement, "dot", {"most": most})
    text = made.exported.files["plan.dot"]
    boxes = re.findall(r"^    n\d+ \[", str(text), re.MULTILINE)
    assert len(boxes) <= max(most, 2 * problem.n_devices)


def test_names_that_dot_could_misread() -> None:
    """Quotes, backslashes, spaces, line breaks and letters of any script are boxes like others."""
    builder = GraphBuilder()
    names = ['a"b', "c\\", "d e", "f\ng", "ü→%20", 'h"];\n}', "\\n"]
    for name in names:
        builder.add_op(name, 'Kind"\\', scope="s")
    problem = stack_problem(builder.build(), cpu=False)
    for most in (1, 200):
        made = export_placement(problem, Placement(np.arange(len(names)) % 2), "dot", {"most": most})
        drawn(str(made.exported.files["plan.dot"]), problem)


def drawn(text: str, problem: Problem) -> None:
    """Graphviz itself finds every box in the cluster of its device; nothing is checked where it is not installed."""
    if shutil.which("dot") is None:
        return
    done = subprocess.run(["dot", "-Tdot_json"], input=text.encode(), capture_output=True, check=True, timeout=300)
    document = json.loads(done.stdout)
    clusters = [node for node in document["objects"] if node["name"].startswith("cluster_")]
    boxes = {number: node for number, node in enumerate(document["objects"]) if not node["name"].startswith("cluster")}
    inside = [number for cluster in clusters for number in cluster.get("nodes", ())]
    assert len(clusters) == problem.n_devices and sorted(inside) == sorted(boxes)
    assert sum(len(node["comment"].split()) for node in boxes.values()) == problem.n_ops


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_a_model_by_ops_and_by_scopes() -> None:
    """Inception-V3 whole and in 20 boxes: Graphviz's own parser finds what was written."""
    problem = stack_problem(generate("inception-v3"))
    plan = Placement(np.arange(problem.n_ops) * 3 // problem.n_ops)
    for most in (1000, 20):
        drawn(str(export_placement(problem, plan, "dot", {"most": most}).exported.files["plan.dot"]), problem)


@pytest.mark.parametrize("target", ["trace", "dot"])
def test_an_op_that_stands_twice_is_found(target: str) -> None:
    """ImportedModel back refuses files in which an op was repeated, and tells of one that is missing."""
    problem = stack_problem(stack_graph(2))
    ((name, text),) = export_placement(problem, on(problem, {}), target).exported.files.items()
    again = str(text).replace("layers/0/attn", "layers/0/mlp")
    with pytest.raises(ExportError, match="layers/0/mlp"):
        create_exporter(target).read_back(Exported({name: again}, on(problem, {})), problem)
    strange = str(text).replace("layers/0/attn", "stranger")
    with pytest.raises(ExportError, match="stranger"):
        create_exporter(target).read_back(Exported({name: strange}, on(problem, {})), problem)


def test_a_placement_that_cannot_run_is_no_picture() -> None:
    """A trace of an op on a device that cannot run it is refused."""
    problem = stack_problem(stack_graph(2), seconds={"head": math.inf}, objective=Objective())
    with pytest.raises(ExportError, match="cannot run"):
        export_placement(problem, on(problem, {}), "trace")
