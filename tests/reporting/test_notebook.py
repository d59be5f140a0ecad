"""What notebooks show: tables and pictures without scripts, in which every name is text."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html import unescape
from typing import Any

import numpy as np
import pytest
from rich.console import Group
from rich.text import Text
from toy_problems import toy

import placewise as pw
from placewise.core.place import place
from placewise.errors import InputError, MissingExtraError
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.costs import transfer_seconds_of
from placewise.reporting.console import rows_table
from placewise.reporting.notebook import render_html

HOSTILE = "<img src=x onerror=alert(1)>&\x1b]"
SIZE = {"n_ops": 30}


@pytest.fixture(scope="module")
def plan() -> pw.Plan:
    return pw.place("zoo:random-branchy", "2xL4,cpu", dims=SIZE, placer="heft")


@pytest.fixture(scope="module")
def board() -> pw.Leaderboard:
    return pw.compare("zoo:random-branchy", "2xL4,cpu", dims=SIZE, placers="single,heft,etf")


def _hostile_problem() -> pw.Problem:
    """Two ops on two devices, the first with a hostile name."""
    builder = pw.GraphBuilder()
    first, second = (builder.add_op(name, "Op") for name in (HOSTILE, "b"))
    builder.add_edge(builder.add_tensor(first, nbytes=1, name=HOSTILE), second)
    links = (Link("d0", "d1", 1.0), Link("d1", "d0", 1.0), *(Link("host", d, 1.0) for d in ("d0", "d1")),
             *(Link(d, "host", 1.0) for d in ("d0", "d1")))  # fmt: skip
    cluster, graph = Cluster((Device("d0"), Device("d1")), links, "direct"), builder.build()
    costs = pw.CostTable.given(np.array([[1.0, 2.0], [2.0, 1.0]]), transfer_seconds_of(graph, cluster))
    return pw.Problem(graph, cluster, costs)


def parse(html: str) -> ET.Element:
    """The elements of HTML that is written as XML."""
    return ET.fromstring(html.replace("<br>", "<br/>"))


def cells(html: str, tag: str = "td") -> list[str]:
    return ["".join(cell.itertext()) for cell in parse(html).iter(tag)]


def test_an_inspection_is_shown_in_tables() -> None:
    """Kinds, scopes and, with devices, the slowest ops; one line as text, and the whole as a summary."""
    found = pw.inspect("zoo:random-branchy", "2xL4,cpu", dims=SIZE)
    shown = cells(found._repr_html_())
    assert {found.by_kind[0].name, found.slowest_ops[0].op} <= set(shown)
    assert repr(found).startswith(f"Inspection({found.ops} ops, ") and "\n" not in repr(found)
    assert found.slowest_ops[0].op in found.summary()


def test_views_become_tables_and_lines() -> None:
    """Cells stand in their rows with numbers on the right, text keeps its spaces, a bold line is bold."""
    table = rows_table(("name", "ops "), [("a", "1"), ("b", "22")])
    html = render_html(Text("head", style="bold"), Group("  indented", table))
    root = parse(html)
    assert cells(html, "th") == ["name", "ops"] and cells(html) == ["a", "1", "b", "22"]
    assert [cell.get("style") for cell in root.iter("td")][:2] == ["text-align:left", "text-align:right"]
    bold, plain = root.findall("div")
    assert "bold" in bold.get("style", "") and plain.text == "  indented" and "pre-wrap" in plain.get("style", "")
    assert not cells(render_html(rows_table(("", ""), [("a", "b")])), "th")


def test_every_name_is_text() -> None:
    """Names of ops, kinds, devices and links can open no element, and control characters are written out."""
    links = (Link(HOSTILE, "host", 1e9), Link("host", HOSTILE, 1e9))
    problem = _hostile_problem()
    other = Cluster((Device(HOSTILE, memory=1e9), Device("cpu", kind="cpu")), links)
    shown = [pw.Plan(place(problem, name)) for name in ("single", "round_robin")]
    board = pw.compare(problem, placers="single")
    for html in (
        *(each._repr_html_() for each in (*shown, problem.graph, problem, board, other)),
        pw.diff(*shown)._repr_html_(), pw.explain(shown[0], HOSTILE, budget=1)._repr_html_(),
    ):  # fmt: skip
        names = {element.tag.rpartition("}")[2] for element in parse(html).iter()}
        assert names <= {
            "div",
            "br",
            "b",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "svg",
            "g",
            "title",
            "rect",
            "text",
        }
        assert "\x1b" not in html
    assert unescape(other._repr_html_()).count("<img src=x onerror=alert(1)>&\\x1b]") == 3


def test_a_plan_shows_what_the_terminal_shows(plan: pw.Plan, board: pw.Leaderboard) -> None:
    """Its headline, a row per device with every column, the timeline, the naive answers; a comparison its rows."""
    html = plan._repr_html_()
    assert plan.summary().splitlines()[0] in unescape(html) and "<svg" in html
    assert {"device", "compute", "memory", "compared with"} <= set(cells(html, "th"))
    assert {"cuda:0", "cuda:1", "cpu"} <= set(cells(html))
    assert {"single", "heft", "etf"} <= set(cells(board._repr_html_()))
    assert board._repr_markdown_() == board.text("markdown")


def test_models_show_what_they_consist_of(plan: pw.Plan) -> None:
    """A graph its kinds, a cluster its devices and links, a problem both with its objective and rules."""
    graph, cluster = plan.problem.graph, plan.problem.cluster
    counted = dict(zip(cells(graph._repr_html_())[::3], cells(graph._repr_html_())[1::3], strict=True))
    assert sum(map(int, counted.values())) == graph.n_ops and f"{graph.n_ops} ops" in graph._repr_html_()
    assert {"cuda:0", "cpu"} <= set(cells(cluster._repr_html_()))
    problem = pw.build("zoo:random-branchy", "2xL4,cpu", pw.ProblemOptions(dims=SIZE, pins={"op.*1$": "cpu"}))
    html = problem._repr_html_()
    assert "minimize latency" in html and "pin" in html and "roofline" in html and "cuda:1" in html


def test_objects_show_themselves_in_one_short_line(plan: pw.Plan) -> None:
    """However many ops they have."""
    problem, result = plan.problem, plan.result
    judgement = result.judgement
    assert judgement is not None and judgement.timeline is not None
    graph = problem.graph
    for each in (plan, result, judgement, judgement.timeline, problem, graph, problem.cluster, problem.costs,
                 plan.placement, graph.ops, graph.tensors, graph.weights, graph.edges):  # fmt: skip
        text = repr(each)
        assert text.startswith(f"{type(each).__name__}(") and "\n" not in text and len(text) < 400, text


def test_tables_hold_what_the_objects_hold(plan: pw.Plan, board: pw.Leaderboard) -> None:
    """A row per op, device or placer, in their order; the times of a plan are those of the judge."""
    pytest.importorskip("pandas")
    problem, judgement = plan.problem, plan.result.judgement
    assert judgement is not None and judgement.timeline is not None
    frame = plan.to_frame()
    assert dict(zip(frame.op, frame.device, strict=True)) == plan.assignment
    assert frame.finish.max() == judgement.timeline.finish.max()
    for use in judgement.devices:
        assert frame.seconds[frame.device == use.device].sum() == pytest.approx(use.compute)
    wide, graph = problem.to_frame(), problem.graph.to_frame()
    assert wide["seconds on cpu"].tolist() == problem.costs.op_seconds[:, 2].tolist()
    assert graph.op.tolist() == [*problem.graph.ops.name] and list(wide)[: len(list(graph))] == list(graph)
    made = problem.graph.tensors.producer >= 0
    assert graph.output_bytes.sum() == problem.graph.tensors.bytes[made].sum()
    assert problem.cluster.to_frame().name.tolist() == ["cuda:0", "cuda:1", "cpu"]
    assert board.to_frame().placer.tolist() == [entry.placer for entry in board.entries]


def test_an_answer_without_a_placement_has_a_table_too() -> None:
    """Of its ops, without devices; a comparison in which nobody may run has its rows."""
    pytest.importorskip("pandas")
    problem = toy(memory=1.0)
    nothing = pw.Plan(place(problem, "single"))
    assert nothing.placement is None and "device" not in nothing.to_frame() and len(nothing.to_frame()) == problem.n_ops
    assert nothing._repr_html_() and nothing.timeline is None


def test_networks_have_the_edges_of_the_graph(plan: pw.Plan) -> None:
    """A node per op, an edge per tensor and consumer with the tensor's bytes, and devices where there are any."""
    networkx = pytest.importorskip("networkx")
    graph, network = plan.problem.graph, plan.to_networkx()
    assert network.number_of_nodes() == graph.n_ops and network.number_of_edges() == graph.n_edges
    assert networkx.is_directed_acyclic_graph(network)
    assert networkx.get_node_attributes(network, "device") == plan.assignment
    assert not networkx.get_node_attributes(graph.to_networkx(), "device")
    size = dict(zip(graph.tensors.name, graph.tensors.bytes.tolist(), strict=True))
    for source, target, tensor, data in network.edges(keys=True, data=True):
        producer = graph.tensors.producer[graph.tensors.name.index(tensor)]
        assert graph.ops.name[producer] == source and data["bytes"] == size[tensor]
        assert target in {graph.ops.name[op] for op in graph.consumers_of(graph.tensors.name.index(tensor))}


def test_figures_show_lanes_and_values(plan: pw.Plan, board: pw.Leaderboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane per busy device and link as long as it works; a bar per placer as long as its value, beside the bound."""
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    from matplotlib import pyplot

    axes = plan.plot()
    names = [label.get_text() for label in axes.get_yticklabels()]
    judgement = plan.result.judgement
    assert judgement is not None
    assert [name for name in names if "→" not in name] == [use.device for use in judgement.devices if use.ops]
    assert axes.get_xlim()[1] * 1e-6 == pytest.approx(plan.value) or axes.get_xlim()[1] * 1e-3 == pytest.approx(
        plan.value
    )
    assert "one sample" in axes.get_xlabel() and axes.collections
    again = board.plot(pyplot.subplots()[1])
    widths = [bar.get_width() for bar in again.patches]
    values = [entry.value for entry in board.entries]
    assert [width / widths[0] for width in widths] == pytest.approx([value / values[0] for value in values])
    pyplot.close("all")
    period = pw.place("zoo:random-branchy", "2xL4,cpu", dims=SIZE, placer="single", objective="throughput")
    assert "one period" in period.plot().get_xlabel()
    pyplot.close("all")


def test_what_cannot_be_plotted_is_said() -> None:
    """A plan without a placement, a comparison without a value."""
    pytest.importorskip("matplotlib")
    small = toy(memory=1.0)
    with pytest.raises(InputError, match="no placement runs; see the plan's status"):
        pw.Plan(place(small, "single")).plot(object())
    with pytest.raises(InputError, match="no placer found a placement"):
        pw.compare(small, placers="single").plot(object())


@pytest.mark.parametrize(
    ("library", "extra", "use"),
    [
        ("pandas", "pandas", pw.Plan.to_frame),
        ("networkx", "networkx", pw.Plan.to_networkx),
        ("matplotlib", "plot", pw.Plan.plot),
    ],
)
def test_a_missing_library_names_its_extra(
    library: str, extra: str, use: Callable[[pw.Plan], Any], plan: pw.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how to install it."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'placewise\[{extra}\]'"):
        use(plan)
