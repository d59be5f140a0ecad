"""docs/judge.md against the judge: its tables, its pictures and every line of its arithmetic."""

from __future__ import annotations

import math
import re

import pytest
from twins import (
    operator_makespan,
    peak_memory,
    replicated_value,
    sequential_makespan,
    subgraph_makespan,
    throughput_value,
)
from worked_examples import EXAMPLES, Op, make_placement, make_problem
from worked_page import MODES, PAGE, facts, fill

from placewise.model.cluster import Device
from placewise.model.problem import Objective
from placewise.simulate import judge_placement

TEXT = PAGE.read_text("utf-8")
BLOCKS = re.findall(r"```arithmetic ([a-z0-9-]+)\n(.*?)```", TEXT, re.DOTALL)
LINES = [(name, line) for name, block in BLOCKS for line in block.splitlines()]
THROUGHPUT = [name for name, example in EXAMPLES.items() if example.problem.objective.kind == "throughput"]
LATENCY = [name for name in EXAMPLES if name not in THROUGHPUT]


def value_of(expression: str) -> float:
    """The value of a sum as the page writes it: numbers, + - * /, brackets, max and inf."""
    assert re.fullmatch(r"(?:[\d.+\-*/(), ]|max|inf)+", expression), expression
    return float(eval(expression, {"__builtins__": {}}, {"max": max, "inf": math.inf}))


@pytest.mark.parametrize("name", EXAMPLES)
def test_arithmetic(name):
    """Every line adds up, and its result is the judge's."""
    known = facts(EXAMPLES[name])
    lines = [line for example, line in LINES if example == name]
    assert lines
    for line in lines:
        label, *sums = line.split(" = ")
        values = {value_of(part) for part in sums}
        assert len(values) == 1, line
        value, rounded = values.pop(), 1e-5 if label == "bound" else 1e-9  # some bounds count whole units
        assert any(value == pytest.approx(number, rel=rounded) for number in known[label]), (line, known[label])


def test_tables_and_pictures():
    """Drawn afresh, the page stays as it is; `python tests/helpers/worked_page.py` brings it up to date."""
    assert fill(TEXT) == TEXT


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_shown(name):
    """Each instance has its value; for latency also all its starts, and a picture if it can run."""
    shown = {line.split(" = ")[0] for example, line in LINES if example == name}
    if name in THROUGHPUT:
        assert {f"value({mode})" for mode in MODES} <= shown
        return
    assert "value" in shown
    if judge_placement(EXAMPLES[name].problem, EXAMPLES[name].placement).timeline is not None:
        assert {f"start({op})" for op in EXAMPLES[name].problem.graph.ops.name} <= shown
        assert f"<!-- picture: {name} -->" in TEXT


def test_pictures_are_drawn_to_scale():
    """The picture of the diamond has its bars where the start times put them."""
    picture = re.search(r"picture: diamond.*?```text\n(.*?)```", TEXT, re.DOTALL)
    assert picture is not None
    rows = dict(line.split(maxsplit=1) for line in picture[1].splitlines())
    assert rows["acc0"] == "├──a───┤├────b─────┤├e─┤├d─┤"
    assert rows["acc0→acc1"] == "├a─┤"


@pytest.mark.parametrize("name", THROUGHPUT)
@pytest.mark.parametrize("mode", MODES)
def test_throughput_twin(name, mode):
    """The plain twin finds the values of the page, and the memory."""
    example = EXAMPLES[name]
    problem, placement = example.in_mode(mode), example.placement
    stage = list(range(problem.n_devices)) if placement.replicas is None else placement.replicas.tolist()
    judged, device = judge_placement(problem, placement), placement.device.tolist()
    for priced in (problem, example.in_mode(mode, "gpipe")):
        value = judge_placement(priced, placement).value
        assert replicated_value(priced, device, stage) == pytest.approx(value, rel=1e-12)
        assert placement.replicas is not None or throughput_value(priced, device) == value
    peaks = peak_memory(problem, placement)
    assert [peaks[e] for e in stage] == [use.peak for use in judged.devices]


@pytest.mark.parametrize("name", LATENCY)
def test_latency_twin(name):
    """The plain twins find the values, start times and memory of the page."""
    problem, placement = EXAMPLES[name].problem, EXAMPLES[name].placement
    judged, device = judge_placement(problem, placement), placement.device.tolist()
    call = None if placement.call is None else placement.call.tolist()
    order = None if placement.order is None else placement.order.tolist()
    run = {
        "operator": lambda: operator_makespan(problem, device, order),
        "subgraph": lambda: subgraph_makespan(problem, device, call),
        "sequential": lambda: sequential_makespan(problem, device),
    }[problem.objective.execution]()
    assert run.value == judged.value
    if judged.timeline is not None:
        assert run.start == judged.timeline.start.tolist()
    assert peak_memory(problem, placement) == [use.peak for use in judged.devices]


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("diamond", ["", "acc0"]),
        ("queue", ["", "acc0"]),
        ("two-streams", ["host", "acc0"]),
        ("there-and-back", ["cpu", "acc0"]),
        ("host-in-parallel", ["cpu", "acc0", ""]),
        ("circle", ["", ""]),
        ("circle-cut", ["acc1", "acc0"]),
        ("three-pieces", ["cpu", "acc0"]),
        ("branches", ["acc1", "acc0"]),
        ("copy-kept", ["cpu", "acc0", "acc0"]),
    ],
)
def test_what_devices_wait_for(name, waits):
    """Each device names the one whose tensors keep it idle for longest; "" if it never idles, or nothing runs."""
    judged = judge_placement(EXAMPLES[name].problem, EXAMPLES[name].placement)
    assert [use.waits_for for use in judged.devices] == waits


def test_what_a_pipeline_waits_for():
    """In the steady state everybody waits for the busiest device or wire."""
    judged = judge_placement(EXAMPLES["shared-wire"].in_mode("overlap"), EXAMPLES["shared-wire"].placement)
    assert judged.bottleneck == "pcie"
    assert [use.waits_for for use in judged.devices] == ["pcie", "pcie"]
    judged = judge_placement(EXAMPLES["two-stages"].in_mode("blocking"), EXAMPLES["two-stages"].placement)
    assert [use.waits_for for use in judged.devices] == ["", "acc0"]


def test_waiting_is_for_what_arrives_last():
    """A slow transfer of an early tensor keeps a CPU waiting longer than a late tensor on a quick one."""
    ops = {
        "p": Op(1, "acc0", "", 5),
        "q": Op(3, "acc1", "", 1),
        "r": Op(1, "cpu", "p q"),
    }
    devices = [Device("acc0"), Device("acc1"), Device("cpu", kind="cpu")]
    problem = make_problem(ops, devices, "staged", Objective(execution="operator"))
    judged = judge_placement(problem, make_placement(ops, problem))
    assert judged.value == 7
    assert judged.devices[2].waits_for == "acc0"


def test_a_call_waits_for_all_its_inputs():
    """The second op of a call needs the late tensor, and each host op waits for its own inputs only."""
    ops = {
        "u": Op(1, "cpu", "", 1),
        "v": Op(5, "acc1", "", 1),
        "p": Op(1, "acc0", "u", 1),
        "q": Op(1, "acc0", "p v", 1),
        "r": Op(1, "cpu", "v"),
        "s": Op(1, "cpu", "q"),
    }
    devices = [Device("acc0"), Device("acc1"), Device("cpu", kind="cpu")]
    problem = make_problem(ops, devices, "staged", Objective(execution="subgraph"))
    judged = judge_placement(problem, make_placement(ops, problem))
    assert judged.timeline is not None
    assert judged.timeline.start.tolist() == [0, 0, 8, 9, 6, 11]
    # The CPU idles for 5 s before r, which needs v, and for 4 s before s, which needs q.
    assert [use.waits_for for use in judged.devices] == ["acc1", "", "acc1"]
