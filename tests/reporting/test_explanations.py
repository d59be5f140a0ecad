"""explain, diff, the critical path, the parts of a value, the Gantt chart: hand-worked instances and random ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak import examples
from typer.testing import CliRunner

import placewise as pw
from placewise.analysis.diff import diff
from placewise.analysis.explain import explain
from placewise.cli.app import app
from placewise.core.place import place
from placewise.errors import InputError, PlanError
from placewise.files.plan_file import load_plan, save_plan
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.reporting.breakdown import break_down_pace, break_down_value
from placewise.reporting.critical_path import critical_path
from placewise.reporting.difference import difference_view, headline
from placewise.reporting.explanation import explanation_view
from placewise.reporting.gantt import Gantt
from placewise.reporting.lanes import draw_lane, lanes_of, slot_shares
from placewise.reporting.moves import list_moves, match_interchangeable, module_paths
from placewise.reporting.plain import plain
from placewise.simulate import judge_placement


def problem_of(
    seconds: list[list[float]],
    edges: list[tuple[int, int]],
    objective: Objective,
    *,
    kinds: tuple[str, ...] = ("accelerator", "accelerator"),
    constraints: Constraints | None = None,
    names: list[str] | None = None,
    scopes: list[str] | None = None,
    overhead: float = 0.0,
) -> Problem:
    """Ops on devices d0, d1, …, each making a tensor of 1 B; links move 1 B/s; transfers are direct."""
    builder = GraphBuilder()
    names = names or [f"op{number}" for number in range(len(seconds))]
    for op, name in enumerate(names):
        builder.add_op(name, "Op", scope=scopes[op] if scopes else "")
    for op in range(len(names)):
        tensor = builder.add_tensor(op, nbytes=1, name=f"t{op}")
        for _, reader in [edge for edge in edges if edge[0] == op]:
            builder.add_edge(tensor, reader)
    devices = tuple(Device(f"d{number}", kind=kind, call_overhead=overhead) for number, kind in enumerate(kinds))
    ends = [*(device.name for device in devices if not device.is_host), HOST]
    links = tuple(Link(a, b, 1.0) for a in ends for b in ends if a != b)
    cluster = Cluster(devices, links, "direct")
    graph = builder.build()
    table = np.array(seconds, np.float64)
    costs = CostTable(table, transfer_seconds_of(graph, cluster), np.zeros(table.shape, np.int8))
    return Problem(graph, cluster, costs, objective, constraints or Constraints())


LATENCY, PIPELINE = Objective("latency"), Objective("throughput")
DIAMOND = problem_of([[1, 2], [4, 4], [2, 2], [1, 3]], [(0, 1), (0, 2), (1, 3), (2, 3)], LATENCY)
"""a feeds b and c, both feed d. With c on d1 the path is a, b, d, all on d0; b takes 4 s there."""
PLACED = Placement(np.array([0, 0, 1, 0], np.int32))


def test_the_critical_path_of_a_diamond_worked_by_hand() -> None:
    """a 0–1, b 1–5, d 5–6: c, which is away from 2 to 4 and back at 5, holds nobody up."""
    judged = judge_placement(DIAMOND, PLACED)
    assert judged.timeline is not None and judged.value == 6.0
    steps = critical_path(DIAMOND, PLACED, judged.timeline)
    names = [(DIAMOND.graph.ops.name[s.index], s.start, s.finish) for s in steps if s.kind == "op"]
    assert ("op0", 0.0, 1.0) in names and ("op3", 5.0, 6.0) in names
    assert sum(step.seconds for step in steps) == 6.0


def test_a_path_through_a_copy_names_the_link() -> None:
    """With b on d1 instead, a 0–1, its tensor 1–2, b 2–6, its tensor 6–7, d 7–8."""
    placement = Placement(np.array([0, 1, 0, 0], np.int32))
    judged = judge_placement(DIAMOND, placement)
    assert judged.timeline is not None
    steps = critical_path(DIAMOND, placement, judged.timeline)
    assert [step.place for step in steps] == ["d0", "d0 → d1", "d1", "d1 → d0", "d0"]
    assert [(step.start, step.finish) for step in steps] == [(0, 1), (1, 2), (2, 6), (6, 7), (7, 8)]
    parts = {(part.what, part.where): part.seconds for part in break_down_value(DIAMOND, placement, judged)}
    assert parts == {("compute", "d1"): 4, ("compute", "d0"): 2, ("copies", "d0 → d1"): 1, ("copies", "d1 → d0"): 1}


@st.composite
def placed(draw: st.DrawFn) -> tuple[Problem, Placement]:
    """A random graph, objective and placement."""
    n = draw(st.integers(1, 9))
    number = st.sampled_from([0.0, 0.1, 0.7, 1.0, 1 / 3, 2.0])
    seconds = [[draw(number) for _ in range(3)] for _ in range(n)]
    edges = [(a, b) for a in range(n) for b in range(a + 1, n) if draw(st.integers(0, 3)) == 0]
    objective = draw(
        st.sampled_from(
            [Objective("latency", execution=how) for how in ("operator", "subgraph", "sequential")]
            + [Objective("throughput", communication=how) for how in ("blocking", "overlap", "duplex")]
        )
    )
    kinds = ("accelerator", "accelerator", "cpu")
    problem = problem_of(seconds, edges, objective, kinds=kinds, overhead=draw(st.sampled_from([0.0, 0.3])))
    device = np.array([draw(st.integers(0, 2)) for _ in range(n)], np.int32)
    return problem, Placement(device)


@given(placed())
@examples(60)
def test_the_parts_add_up_to_the_value(drawn: tuple[Problem, Placement]) -> None:
    """In every objective and execution; the path has no hole, and every step but overhead is an event of the run."""
    problem, placement = drawn
    judged = judge_placement(problem, placement)
    if not math.isfinite(judged.value):
        assert break_down_value(problem, placement, judged) == ()
        return
    total = math.fsum(part.seconds for part in break_down_value(problem, placement, judged))
    assert total == pytest.approx(judged.value, rel=1e-9, abs=1e-12)
    if judged.timeline is not None and judged.value > 0:
        steps = critical_path(problem, placement, judged.timeline)
        assert steps[0].start == 0.0 and steps[-1].finish == judged.timeline.makespan
        assert all(a.finish == b.start for a, b in pairwise(steps))
        line = judged.timeline
        for step in steps:
            if step.kind != "overhead":
                ends = line.finish if step.kind == "op" else line.arrived
                assert ends[step.index] == pytest.approx(step.finish, abs=1e-9)


@given(placed(), st.integers(1, 40))
@examples(60)
def test_lanes_hold_all_the_seconds(drawn: tuple[Problem, Placement], slots: int) -> None:
    """What is marked is busy, no slot is more than full, and where ops do not overlap the slots add up to the time."""
    problem, placement = drawn
    judged = judge_placement(problem, placement)
    for lane in lanes_of(problem, placement, judged, slots):
        assert (lane.marked <= lane.busy + 1e-9).all() and (lane.busy <= 1).all() and len(draw_lane(lane)) == slots
        covered = float(lane.busy.sum()) * judged.value / slots
        assert covered <= lane.seconds * (1 + 1e-9) + 1e-9
        if not lane.is_link and lane.name in ("d0", "d1") and problem.objective.kind == "latency":
            assert covered == pytest.approx(lane.seconds, abs=1e-9)


def test_shares_of_slots_by_hand() -> None:
    """Spans 0–1 and 1.5–2 of two seconds in four slots; overlapping spans fill a slot once."""
    begin, end = np.array([0.0, 1.5]), np.array([1.0, 2.0])
    assert slot_shares((begin, end), 2.0, 4).tolist() == [1.0, 1.0, 0.0, 1.0]
    assert slot_shares((np.array([0.0, 0.0]), np.array([1.0, 1.0])), 2.0, 2).tolist() == [1.0, 0.0]


def test_the_gantt_fits_its_width_and_shows_names_as_text() -> None:
    """Lines keep within every width that has room; control characters and markup stay text; colour means nothing."""
    hostile = replace(DIAMOND.cluster.devices[0], name="[red]\x1b[31m" + "x" * 60)
    called = {"d0": hostile.name}
    links = tuple(
        replace(link, source=called.get(link.source, link.source), target=called.get(link.target, link.target))
        for link in DIAMOND.cluster.links
    )
    problem = DIAMOND.with_(cluster=Cluster((hostile, DIAMOND.cluster.devices[1]), links, "direct"))
    gantt = Gantt(problem, PLACED, judge_placement(problem, PLACED))
    for width in (60, 80, 120):
        text = plain(gantt, width=width)
        drawn = text.splitlines()[:-1]
        assert "\x1b" not in text and "[red]" in text and max(map(len, drawn)) <= width
    assert (
        "█" in text
        and "on the critical path" in text
        and "100%" in plain(Gantt(DIAMOND, PLACED, judge_placement(DIAMOND, PLACED)))
    )
    svg = gantt._repr_html_()
    assert "\x1b" not in svg and "<script" not in svg and svg.count("<title>") == svg.count("<g>") > 2


def test_pace_parts_take_the_longer_side() -> None:
    """compute 3, send 2, receive 2: blocking 7; overlap copies of 4 s; duplex compute of 3 s; a wire has one part."""
    judged = judge_placement(problem_of([[3.0, 1.0]], [], PIPELINE), Placement.on(0, 1))
    use = replace(judged.devices[0], compute=3.0, send=2.0, receive=2.0, load=7.0)

    def total(mode: str) -> float:
        return sum(part.seconds for part in break_down_pace(mode, [use], {}, "d0", 7.0))

    assert (total("blocking"), total("overlap"), total("duplex")) == (7.0, 4.0, 3.0)
    assert [part.where for part in break_down_pace("blocking", [use], {"bus": 9.0}, "bus", 9.0)] == ["link bus"]


def test_moves_are_told_by_modules() -> None:
    """Whole modules are one line, numbered neighbours a run, a module that moved in part is opened."""
    scopes = [f"net.layer.{layer}" for layer in range(6) for _ in range(3)] + ["net.head"] * 2
    before = ["a"] * 20
    after = [*["a"] * 3, *["b"] * 9, "b", "a", "a", *["a"] * 3, "b", "b"]
    moves = list_moves(module_paths([""] * 20, scopes), before, after)
    told = {(move.module, move.ops, move.of) for move in moves}
    assert told == {("net.layer.1 – net.layer.3", 9, 9), ("net.layer.4", 1, 3), ("net.head", 2, 2)}
    assert all((move.source, move.target) == ("a", "b") for move in moves)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(0, 2), st.integers(0, 2)), max_size=60))
@examples(60)
def test_every_moved_op_is_told_once(ops: list[tuple[int, int, int, int]]) -> None:
    """The lines of the moves add up to the ops that moved, and a whole module is never more than it has."""
    paths = [("m", str(a), str(b)) for a, b, _, _ in ops]
    here, there = [str(op[2]) for op in ops], [str(op[3]) for op in ops]
    moves = list_moves(paths, here, there)
    assert sum(move.ops for move in moves) == sum(a != b for a, b in zip(here, there, strict=True))
    assert all(0 < move.ops <= move.of for move in moves) and len(moves) <= 40


def test_ten_thousand_moved_ops_are_a_few_lines() -> None:
    """Ops of a hundred layers, dealt out at random: no more lines than a screen holds."""
    rng = np.random.default_rng(0)
    paths = [("model", "layer", str(op // 100), str(op % 7)) for op in range(10_000)]
    here, there = (rng.integers(0, 8, 10_000).astype(str).tolist() for _ in range(2))
    assert len(list_moves(paths, here, there)) <= 70
    odd = module_paths([""] * 2, [f"layer.{'9' * 5_000}", f"layer.{'9' * 5_000}x"])
    assert sum(move.ops for move in list_moves(odd, ["a", "a"], ["b", "b"])) == 2


CHAIN = problem_of([[1, 1]] * 4, [(0, 1), (1, 2), (2, 3)], PIPELINE, constraints=Constraints(contiguous=True))


def test_explain_counts_compute_and_copies_by_hand() -> None:
    """b of a chain a b | c d: on d0 one tensor travels, on d1 another; moved alone it leaves a chain."""
    placement = Placement(np.array([0, 0, 1, 1], np.int32))
    found = explain(CHAIN, placement, "op1").explanation
    here, there = found.choices
    assert (here.chosen, here.compute, here.copies, here.tensors) == (True, 1.0, 1.0, 1)
    assert (there.compute, there.copies, there.tensors, there.broken) == (1.0, 1.0, 1, ())
    assert (
        found.value == 3.0 and there.value == judge_placement(CHAIN, Placement(np.array([0, 1, 1, 1], np.int32))).value
    )


def test_a_forced_move_takes_along_what_a_chain_needs() -> None:
    """a on d1 in a b | c d: alone no chain, but the best plan around it is as good, since the devices are equal."""
    placement = Placement(np.array([0, 0, 1, 1], np.int32))
    found = explain(CHAIN, placement, "op0", ["d1"], pw.Budget(2.0))
    (forced,) = found.explanation.forced
    best = min(
        judged.value
        for code in range(16)
        if (
            judged := judge_placement(CHAIN, Placement(np.array([1, code & 1, code >> 1 & 1, code >> 2 & 1], np.int32)))
        ).valid
    )
    assert forced.value == pytest.approx(best) and forced.traded
    assert found.results[0].placement is not None and found.results[0].placement.device[0] == 1
    assert math.fsum(change.after for change in forced.changes) == pytest.approx(forced.value)
    assert math.fsum(change.before for change in forced.changes) == pytest.approx(3.0)
    assert "trade places" in plain(explanation_view(found.explanation))


@given(placed(), st.integers(0, 8), st.integers(0, 2))
@examples(8)
def test_a_forced_move_is_no_worse_than_the_move_alone(drawn: tuple[Problem, Placement], op: int, device: int) -> None:
    """Whatever the placer, the plan with the op forced is at most the plan with nothing else moved; the op is there."""
    problem, placement = drawn
    op = op % problem.n_ops
    if placement.device[op] == device or not math.isfinite(judge_placement(problem, placement).value):
        return
    asked, name = problem.graph.ops.name[op], problem.cluster.names[device]
    found = explain(problem, placement, asked, [name], pw.Budget(iterations=20), placer="round_robin")
    choice = next(choice for choice in found.explanation.choices if choice.device == name)
    forced = found.explanation.forced[0]
    result = found.results[0]
    assert result.placement is not None and result.placement.device[op] == device
    assert forced.lower_bound <= forced.value * (1 + 1e-9)
    if not choice.broken:
        assert forced.value <= choice.value * (1 + 1e-9)


def test_explain_says_why_a_device_is_out_of_question() -> None:
    """Unable devices, pins and forbidden pairs are named, and a forced move there has that for its answer."""
    rules = Constraints(pins=(Rule("op2", "d0"),), forbidden=(Rule("op1", "d1"),))
    problem = problem_of([[1, math.inf], [1, 1], [1, 1]], [], LATENCY, constraints=rules)
    placement = Placement.on(0, 3)
    for op, words in (("op0", "cannot run Op"), ("op1", "--forbid 'op1=d1'"), ("op2", "--pin 'op2=d0'")):
        found = explain(problem, placement, op, ["d1"])
        assert words in found.explanation.choices[1].refusal and not found.results
        assert f"With it on d1 there is no plan: {found.explanation.choices[1].refusal}" in plain(
            explanation_view(found.explanation)
        )


def test_explain_says_where_nothing_may_run() -> None:
    """A rule against every op, as targets add for CPUs that stay idle, is not put as an option that nobody gave."""
    problem = problem_of([[1, 1]] * 2, [], LATENCY, constraints=Constraints(forbidden=(Rule("", "d1"),)))
    found = explain(problem, Placement.on(0, 2), "op0")
    assert found.explanation.choices[1].refusal == "nothing may run on d1"


def test_what_is_asked_for_may_be_a_module_or_a_pattern() -> None:
    """Names first, then modules by their last parts, then patterns of one op; others are refused with a remedy."""
    scopes = ["enc.0.att", "enc.0.mlp", "enc.1.att", "dec.mlp"]
    names = ["query", "up", "key", "down"]
    problem = problem_of([[1, 1]] * 4, [], LATENCY, names=names, scopes=scopes)
    placement = Placement(np.array([0, 0, 1, 0], np.int32))
    assert explain(problem, placement, "enc.0").explanation.ops == ("query", "up")
    assert explain(problem, placement, "0.att").explanation.ops == ("query",)
    assert explain(problem, placement, "^k.y$").explanation.ops == ("key",)
    for asked, words in (
        ("enc", "on several devices: d0 (2 ops), d1 (1 ops)"), ("att", "matches 2 ops; name one op, as 'query', 'key'"),
        ("enc.0.atd", "'enc.0.att'"), ("(", "no op, module or pattern '('"), ("", "no op, module or pattern ''"),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            explain(problem, placement, asked)
        assert words in str(caught.value)
    with pytest.raises(InputError, match="has it on d0 already; choose another device: d1"):
        explain(problem, placement, "query", ["d0"])
    with pytest.raises(InputError, match="no device 'tpu'"):
        explain(problem, placement, "query", ["tpu"])


def test_equal_devices_that_trade_places_are_seen() -> None:
    """All ops change devices, but one only apart from the trade; unequal devices never trade."""
    before, after = np.array([0, 0, 0, 1, 1], np.int32), np.array([1, 1, 1, 0, 1], np.int32)
    assert match_interchangeable(CHAIN.cluster, before, after) == ("d0 → d1, d1 → d0", 1)
    unequal = problem_of([[1, 1]], [], LATENCY, kinds=("accelerator", "cpu")).cluster
    assert match_interchangeable(unequal, before, after) == ("", 4)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans of two small models by several placers and objectives."""
    folder = tmp_path_factory.mktemp("plans")
    for name, model, placer, objective in (
        ("a", "zoo:rnnlm-2", "balanced", "latency"), ("b", "zoo:rnnlm-2", "single", "latency"),
        ("t", "zoo:rnnlm-2", "single", "throughput"), ("o", "zoo:inception-v3", "single", "latency"),
    ):  # fmt: skip
        pw.place(model, "2xP100,cpu", placer=placer, objective=objective).save(folder / f"{name}.json")
    return folder


def ran(*arguments: str) -> tuple[int, str]:
    """The exit code of a command and all that it prints."""
    done = CliRunner().invoke(app, [*arguments])
    return done.exit_code, done.output


def test_diff_adds_up_and_says_what_moved(plans: Path) -> None:
    """The parts' changes are the value's; the moves are the ops; JSON and text say the same; no colour, no escape."""
    files = str(plans / "a.json"), str(plans / "b.json")
    code, text = ran("diff", *files)
    assert code == 0 and "\x1b" not in text and "where the time goes" in text and "sum" in text
    document = json.loads(ran("diff", *files, "--json")[1])
    values = [load_plan(file).value for file in files]
    assert document["change"] == pytest.approx(values[1] - values[0])
    assert math.fsum(part["before"] for part in document["parts"]) == pytest.approx(values[0], rel=1e-9)
    assert math.fsum(part["after"] for part in document["parts"]) == pytest.approx(values[1], rel=1e-9)
    old, new = (load_plan(file).assignment for file in files)
    moved = sum(old[op] != new[op] for op in old)
    assert document["moved"] == moved > 0 and sum(move["ops"] for move in document["moves"]) == moved
    assert "all " in ran("diff", files[0], files[0])[1]


def test_diff_refuses_and_warns_in_one_sentence(plans: Path, tmp_path: Path) -> None:
    """Other models, versions, files that are not there; other objectives are not compared; a lost model is told of."""
    a, t, o = (str(plans / f"{name}.json") for name in "ato")
    assert ran("diff", a, o)[0] == 2 and "of different models" in ran("diff", a, o)[1]
    newer = tmp_path / "newer.json"
    newer.write_text(
        (plans / "a.json").read_text().replace('"version":1', '"version":9').replace('"version": 1', '"version": 9')
    )
    assert ran("diff", a, str(newer))[0] == 2 and "version 9" in ran("diff", a, str(newer))[1]
    assert ran("diff", a, str(tmp_path / "none.json"))[0] == 2
    assert "cannot be compared" in ran("diff", a, t)[1]
    plan = load_plan(a)
    assert plan.source is not None
    lost = plan.model_copy(update={"source": plan.source.model_copy(update={"path": "gone.onnx"})})
    save_plan(lost, tmp_path / "lost.json")
    code, text = ran("diff", str(tmp_path / "lost.json"), str(plans / "b.json"))
    assert code == 0 and "needs the timeline" in text and "gone.onnx" in text
    with pytest.raises(PlanError, match="name different ops"):
        other = lost.model_copy(update={"graph_hash": "", "assignment": {"x": "cpu"}})
        save_plan(other, tmp_path / "other.json")
        diff(tmp_path / "other.json", a)


def test_explain_runs_on_a_plan_file(plans: Path, tmp_path: Path) -> None:
    """Text and JSON; a forced move may be kept, and is then the plan of a problem with the pin; bad input exits 2."""
    plan, kept = str(plans / "b.json"), tmp_path / "kept.json"
    document = load_plan(plan)
    op, home = next(iter(document.assignment.items()))
    code, text = ran("explain", plan, op)
    assert code == 0 and "chosen" in text and "\x1b" not in text
    forced = ["explain", plan, op, "--why-not", "cpu", "--time-limit", "1s", "--json", "-q", "-o", str(kept)]
    code, text = ran(*forced)
    answer = json.loads(text)["forced"][0]
    written = load_plan(kept)
    assert code == 0 and home != "cpu" and written.assignment[op] == "cpu"
    assert written.value == pytest.approx(answer["value"]) and "With it on cpu" in answer["answer"]
    assert ran("explain", plan, "no such op")[0] == 2
    assert ran("explain", plan, op, "-o", str(kept))[0] == 2


def test_python_answers_show_themselves() -> None:
    """Plans, explanations and differences have a summary and HTML in which every name is text."""
    hostile = "<script>alert(1)</script>"
    problem = problem_of([[1, 2], [2, 1]], [(0, 1)], LATENCY, names=[hostile, "b"])
    first, second = pw.Plan(place(problem, "single")), pw.Plan(place(problem, "round_robin"))
    assert first.timeline is not None and "<svg" in second._repr_html_()
    why, changed = pw.explain(first, hostile, "d1", budget=1), pw.diff(first, second)
    for shown in (why, changed, first, second):
        assert "<script" not in shown._repr_html_() and shown.summary().strip() and len(repr(shown)) < 300
    assert hostile in why.summary() and why.plans[0].assignment[hostile] == "d1"
    found = changed.difference
    assert headline(found) in changed.summary() and plain(difference_view(found)) == changed.summary()


def test_answers_name_the_nodes_of_devices(tmp_path: Path) -> None:
    """In a cluster of several machines, explain, diff and by_module say which one holds a device."""
    nodes = tmp_path / "nodes.toml"
    machines = "".join(f'[[nodes]]\nname = "{name}"\ndevices = [{{ model = "L4" }}]\n' for name in ("left", "right"))
    nodes.write_text(f'{machines}[node_link]\nbandwidth = "25Gb/s"\nlatency = "30us"\n')
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    plan = pw.place("zoo:bert-base", nodes, placer="balanced")
    plan.save(one)
    pw.place("zoo:bert-base", nodes, placer="single").save(two)
    assert {part["node"] for part in plan.by_module()["cuda:0"]} == {"left"}
    assert {part["node"] for part in plan.by_module()["cuda:1"]} == {"right"}
    code, text = ran("diff", str(one), str(two))
    assert code == 0 and ["device", "node", "ops"] in [line.split()[:3] for line in text.splitlines()]
    assert sum(line.split()[:2] == ["cuda:1", "right"] for line in text.splitlines()) == 2
    op = load_plan(one).assignment
    code, text = ran("explain", str(one), next(iter(op)))
    assert code == 0 and ["cuda:0", "left"] in [line.split()[:2] for line in text.splitlines()]
    flat = pw.place("zoo:bert-base", "2xL4", placer="balanced")
    flat.save(one)
    code, text = ran("explain", str(one), next(iter(op)))
    assert code == 0 and " node " not in text and flat.by_module()["cuda:0"][0]["node"] == ""
