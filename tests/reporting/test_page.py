"""The page of a plan: its data against the judge_placement, names that harm nobody, and what it says is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parallel_plans import problem_of, staged
from simulate_problems import OBJECTIVES, random_placement, random_problem, seeded
from soak import seeds
from typer.testing import CliRunner

import placewise as pw
from placewise._util.units import format_gap
from placewise.analysis.compare import best_plan, compare
from placewise.analysis.report import make_view, open_plan, open_result
from placewise.cli.app import app
from placewise.core.place import place
from placewise.errors import OutputError, PlanError
from placewise.files.plan_file import load_plan, plan_of, save_plan
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.ways import StageGroup
from placewise.reporting.copies import list_copies
from placewise.reporting.page.columns import LONGEST_NAME, clean_text, pack_column
from placewise.reporting.page.data import page_data
from placewise.reporting.page.html import json_text, page_text
from placewise.reporting.page.timeline import assign_lanes
from placewise.reporting.sentences import verdict
from placewise.simulate import judge_placement

LATENCY, PIPELINE = Objective("latency"), Objective("throughput")
CALLS = Objective("latency", execution="subgraph")


def column(value: Any) -> np.ndarray[Any, Any]:
    """A packed column, decoded without the page's own code."""
    ((kind, text),) = value.items()
    return np.frombuffer(base64.b64decode(text), f"<{kind}")


def placed(seed: int, objective: Objective, **options: Any) -> tuple[Problem, Placement]:
    """A random problem and a placement of it that can run."""
    choose = seeded(seed)
    problem = random_problem(choose, objective=objective, **options)
    return problem, random_placement(problem, choose)


def data_of(problem: Problem, placement: Placement) -> dict[str, Any]:
    """The page's data of a placement, as a reader of the file finds it."""
    result = place(problem, "single")
    judged = judge_placement(problem, placement)
    plan = plan_of(replace(result, placement=placement, judgement=judged))
    found: dict[str, Any] = json.loads(json_text(page_data(make_view(plan, "m.onnx", problem, placement, judged))))
    return found


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for a small model of the zoo."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    pw.place("zoo:random-branchy", "2xV100-16GB,cpu", dims={"n_ops": 60}, placer="heft").save(path)
    return path


def test_columns_come_back() -> None:
    """What is packed is what a reader finds, in little-endian order, and no other type is taken."""
    for kind in ("f8", "f4", "i4", "u2", "u1"):
        assert column(pack_column([0, 1, 250], kind)).tolist() == [0, 1, 250]
    assert pack_column([1], "i4") == {"i4": "AQAAAA=="}
    with pytest.raises(ValueError, match="i8"):
        pack_column([1], "i8")


def test_names_are_bounded_and_obey_nobody() -> None:
    """Ten thousand characters become both ends of them; control characters are written out."""
    assert clean_text("a" * 5000 + "b" * 5000).startswith("aaa") and clean_text("a" * 5000 + "b" * 5000).endswith("bbb")
    assert len(clean_text("x" * 10_000)) <= LONGEST_NAME + 3 and clean_text("short") == "short"
    assert clean_text("a\x1b[31m\nb\u2028") == "a\\x1b[31m\\x0ab\\u2028"


def test_data_cannot_leave_its_place() -> None:
    """No name ends the script that holds the data, or begins a comment; the page's own marks in names stay names."""
    name = "</script><!--<script>&\u2028@script@@data@"
    page = page_text({"title": name})
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert held is not None and json.loads(held[1]) == {"title": name}
    assert not set("<>&\u2028") & set(held[1])
    assert page.count("<script") == 2


def test_the_page_asks_nobody() -> None:
    """Nothing in it has an address of another file; its policy lets only its own style and script act."""
    page = page_text({})
    assert not re.search(r"""(src|href)=["'](?!#|data:)|url\(|@import|https?://(?!www\.w3\.org/)""", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    for (text,) in (script, style):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy[1]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_timeline_is_the_judges(objective: Objective, seed: int) -> None:
    """Ops and copies stand when and where the judge says, on lanes where no two meet; the path ends with the value."""
    problem, placement = placed(seed, objective)
    data, judged = data_of(problem, placement), judge_placement(problem, placement)
    assert column(data["ops"]["device"]).tolist() == placement.device.tolist()
    if not np.isfinite(judged.value) or judged.value == 0:
        assert data["timeline"] is None and data["no_timeline"]
        return
    made = data["timeline"]
    start, seconds, row = (column(made[name]) for name in ("start", "seconds", "row"))
    n, lane = problem.n_ops, np.zeros(len(row), np.int64) if made["lane"] is None else column(made["lane"])
    assert [made["rows"][k]["device"] for k in row[:n]] == placement.device.tolist()
    for group in {(int(r), int(k)) for r, k in zip(row, lane, strict=True)}:
        mine = np.flatnonzero((row == group[0]) & (lane == group[1]))
        order = mine[np.lexsort((start[mine] + seconds[mine], start[mine]))]
        assert (start[order[1:]] >= (start[order] + seconds[order])[:-1] - 1e-6 * made["end"]).all()
    if objective.kind == "throughput":
        assert made["period"] == judged.value and np.isclose(seconds[:n].sum(), sum(d.compute for d in judged.devices))
        return
    assert judged.timeline is not None
    assert np.array_equal(start, np.concatenate((judged.timeline.start, judged.timeline.sent)))
    own, maker = data["tensors"]["name"], column(data["tensors"]["maker"])
    names = [own[k] if own[k] is not None else data["ops"]["name"][maker[k]] for k in column(made["tensor"])]
    assert names == [problem.graph.tensors.name[k] for k in judged.timeline.tensor]
    last = column(made["critical"])[-1]
    assert np.isclose(start[last] + seconds[last], judged.value)


@pytest.mark.parametrize("transfers", ["direct", "staged"])
@pytest.mark.parametrize("seed", seeds(12))
def test_copies_of_a_pipeline_are_those_that_the_judge_charges(seed: int, transfers: str) -> None:
    """What the cuts list sends and receives, device by device, is what the judge counts."""
    problem, placement = placed(seed, PIPELINE, transfers=transfers)
    judged = judge_placement(problem, placement)
    if not np.isfinite(judged.value):
        return
    copies, host = list_copies(problem, placement, None), problem.n_devices
    sent = np.bincount(copies.source, weights=copies.seconds, minlength=host + 1)
    got = np.bincount(copies.target, weights=copies.seconds, minlength=host + 1)
    for d, use in enumerate(judged.devices):
        if not problem.cluster.is_host[d]:
            assert np.isclose(sent[d], use.send) and np.isclose(got[d], use.receive)


def test_cuts_are_sorted_and_add_up() -> None:
    """The most expensive route and tensor come first; all routes together are all copies of the run."""
    found = 0
    for seed in range(6):
        problem, placement = placed(seed, LATENCY, max_ops=30, max_devices=3)
        made, timeline = data_of(problem, placement)["cuts"], judge_placement(problem, placement).timeline
        assert timeline is not None
        times = [cut["seconds"] for cut in made["cuts"]]
        assert times == sorted(times, reverse=True)
        assert np.isclose(sum(times), (timeline.arrived - timeline.sent).sum())
        for cut in made["cuts"]:
            each = [tensor["seconds"] for tensor in cut["tensors"]]
            assert each == sorted(each, reverse=True) and cut["count"] >= len(each) > 0
            found += len(each)
    assert found > 10


def test_lanes_by_hand() -> None:
    """Three tasks at once need three lanes; a fourth takes the lane that is free first, and a row of its own none."""
    start, finish = np.array([0.0, 0.0, 1.0, 2.0, 0.0]), np.array([2.0, 3.0, 4.0, 5.0, 9.0])
    lane, counts = assign_lanes(np.array([0, 0, 0, 0, 1]), start, finish, 3, 0.0)
    assert lane.tolist() == [0, 1, 2, 0, 0] and counts == [3, 1, 1]


def test_stages_have_lanes_for_what_they_do() -> None:
    """Of two stages with two replicas over two devices: rows by replica, lanes by activity, the judge's seconds."""
    problem = problem_of("bert", "8xA100-80GB", microbatches=8)
    groups = [StageGroup((0, 1, 2, 3), 2, 2), StageGroup((4, 5, 6, 7), 2, 2)]
    placement = staged(problem, groups, [2], again=True)
    judged = judge_placement(problem, placement)
    found = page_data(make_view(plan_of(place(problem, "uniform")), "m", problem, placement, judged))
    made = found["timeline"]
    labels = [row["label"] for row in made["rows"]]
    assert labels == ["0: cuda:0–cuda:1", "0: cuda:2–cuda:3", "1: cuda:4–cuda:5", "1: cuda:6–cuda:7"]
    assert [(row.get("turns"), row.get("shown"), row["of"]) for row in made["rows"]] == [
        (2, 2, 0), (None, None, 0), (2, 2, 2), (None, None, 2)
    ]  # fmt: skip
    assert made["activities"] == ["compute", "recomputation", "collectives", "transfers", "gradient exchange"]
    assert made["period"] == judged.value and "Gradients are exchanged once per step" in made["note"]
    row, lane, seconds = (column(made[name]) for name in ("row", "lane", "seconds"))
    for stage, use in enumerate(judged.stages):
        parts = [float(seconds[(row == 2 * stage) & (lane == k)].sum()) for k in range(5)]
        wanted = [use.compute - use.collective, use.collective, use.send + use.receive, use.gradients]
        assert np.allclose([parts[0] + parts[1], *parts[2:]], np.array(wanted) * 2, rtol=1e-5)
    words = [made["what"]["values"][code] for code in column(made["what"]["codes"])]
    of_op = dict(zip(words, column(made["op"]).tolist(), strict=True))
    assert of_op["all-reduce"] >= 0 and of_op["send stage 1"] == -1 and found["held"] is None


def test_pages_of_many_replicas_show_some() -> None:
    """A stage of 64 replicas has 32 rows, and a sentence says so."""
    problem = problem_of("bert", "64xA100-80GB", microbatches=64)
    placement = staged(problem, [StageGroup(tuple(range(64)), 64, 1)], [])
    judged = judge_placement(problem, placement)
    view = make_view(plan_of(place(problem, "uniform")), "m", problem, placement, judged)
    made = page_data(view)["timeline"]
    assert len(made["rows"]) == 32 and made["rows"][0]["turns"] == 64 and "Not all replicas have a row" in made["note"]


def test_why_there_is_no_timeline() -> None:
    """Replicated stages, a schedule that flushes and a placement that cannot run say so."""
    problem, placement = placed(3, PIPELINE, max_devices=3)
    shared = replace(
        placement, replicas=np.zeros(problem.n_devices, np.int32), device=np.zeros(problem.n_ops, np.int32)
    )
    assert "replicated" in data_of(problem, shared)["no_timeline"]
    training = pw.build("zoo:random-branchy", "2xV100-16GB", pw.ProblemOptions(dims={"n_ops": 12}, graph="training"))
    flushing = training.with_(objective=Objective("throughput", schedule="gpipe"))
    assert "gpipe" in data_of(flushing, Placement.on(0, flushing.n_ops))["no_timeline"]
    stuck = problem.with_(costs=replace(problem.costs, op_seconds=np.full_like(problem.costs.op_seconds, np.inf)))
    judged = judge_placement(stuck, placement)
    found = page_data(make_view(plan_of(place(problem, "single")), "m", stuck, placement, judged))
    assert "cannot run" in found["no_timeline"] and found["timeline"] is None


def test_the_story_is_the_terminals() -> None:
    """Value, bound, gap and verdict are those of the result; the memory of an op is at most its device's peak."""
    plan = pw.place("zoo:random-branchy", "2xV100-16GB,cpu", dims={"n_ops": 60}, placer="heft")
    data = page_data(open_result(plan.result))
    told = data["story"]
    assert (told["value"], told["bound"], told["left"]) == (plan.value, plan.lower_bound, format_gap(plan.gap))
    assert told["verdict"] == verdict(plan.result) and len(told["baselines"]) == len(plan.result.compared) == 3
    assert plan.placement is not None and data["held"] is not None
    peaks = np.array([device["peak"] for device in data["devices"]])
    assert (column(data["held"]) <= peaks[plan.placement.device] * (1 + 1e-6)).all()
    used = [device["name"] for device in data["devices"] if device["ops"]]
    assert [line.split(" holds most, ")[0] for line in data["peaks"]] == used
    assert plan.report().startswith("<!DOCTYPE html>")


def test_a_plan_file_makes_a_page(plan_file: Path, tmp_path: Path) -> None:
    """The command finds the model by itself and writes beside the plan; --json is the data; Python makes the same."""
    done = CliRunner().invoke(app, ["report", str(plan_file)])
    page = plan_file.with_suffix(".html")
    assert done.exit_code == 0 and str(page) in done.output
    assert pw.report(plan_file, tmp_path / "same.html") == page.read_text("utf-8")
    data = json.loads(CliRunner().invoke(app, ["report", str(plan_file), "--json", "--quiet"]).stdout)
    assert data["title"] == "zoo:random-branchy" and data["ops"]["count"] == 60 and data["graph"]


def test_without_the_model_the_page_says_what_is_missing(plan_file: Path, tmp_path: Path) -> None:
    """A plan whose model is gone keeps its figures, and says which parts are missing and what to do."""
    plan = load_plan(plan_file)
    assert plan.source is not None
    gone = plan.model_copy(update={"source": plan.source.model_copy(update={"path": "gone/model.onnx"})})
    save_plan(gone, tmp_path / "gone.json")
    data = page_data(open_plan(tmp_path / "gone.json"))
    assert "gone/model.onnx" in data["missing"] and "--model" in data["missing"]
    assert data["timeline"] is None and data["graph"] is None and data["cuts"] is None and data["no_timeline"]
    assert data["story"]["value"] == plan.value and data["story"]["verdict"] and data["devices"][0]["peak"] is not None
    done = CliRunner().invoke(app, ["report", str(tmp_path / "gone.json")])
    assert done.exit_code == 0 and "no timeline" in done.output
    bare = {"format": "placewise-plan", "version": 1, "assignment": {"a": "cpu"}}
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    found = page_data(open_plan(tmp_path / "bare.json"))
    assert (
        found["ops"]["name"] == ["a"]
        and found["story"]["value"] is None
        and "does not name its model" in found["missing"]
    )


def test_a_plan_that_is_priced_otherwise_says_so(plan_file: Path, tmp_path: Path) -> None:
    """Where the judge's value is not the plan's, the headline is the plan's and a warning names both."""
    plan = load_plan(plan_file)
    save_plan(plan.model_copy(update={"value": plan.value * 2}), tmp_path / "other.json")
    data = page_data(open_plan(tmp_path / "other.json"))
    assert data["story"]["value"] == plan.value * 2
    assert "priced again" in data["provenance"]["warnings"][0]
    assert not any("priced again" in text for text in page_data(open_plan(plan_file))["provenance"]["warnings"])


def test_what_is_no_plan_of_ours_is_refused(tmp_path: Path) -> None:
    """A plan of another version is refused by its version, a published split by what it is."""
    (tmp_path / "new.json").write_text('{"format": "placewise-plan", "version": 2, "assignment": {}}')
    with pytest.raises(PlanError, match="version"):
        open_plan(tmp_path / "new.json")
    (tmp_path / "split.json").write_text('{"fpgas": [], "cpus": []}')
    with pytest.raises(PlanError, match="published split"):
        open_plan(tmp_path / "split.json")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "new.json")])
    assert done.exit_code == 2 and "version" in done.output and "Traceback" not in done.output


def test_an_unwritable_output_leaves_the_old_file_whole(plan_file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """A full disk leaves the page that was there, and nothing else in its folder; a folder is no page."""
    page = tmp_path / "page.html"
    page.write_text("the old one")

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("placewise.files.atomic.os.fsync", full)
    with pytest.raises(OutputError, match="no space"):
        pw.report(plan_file, page)
    assert page.read_text() == "the old one" and list(tmp_path.iterdir()) == [page]
    done = CliRunner().invoke(app, ["report", str(plan_file), "-o", str(tmp_path)])
    assert done.exit_code == 2 and "directory" in done.output


def test_the_leaderboard_travels_with_the_best_plan(tmp_path: Path) -> None:
    """The best plan of a comparison holds every placer's answer and the best bound; the page lists them."""
    problem = pw.build("zoo:random-branchy", "2xV100-16GB,cpu", pw.ProblemOptions(dims={"n_ops": 30}))
    entries = compare(problem, ("single", "heft", "dp"))
    plan = best_plan(entries)
    assert plan is not None and plan.value == min(entry.value for entry in entries)
    assert plan.lower_bound == max(entry.result.lower_bound for entry in entries if entry.result)
    save_plan(plan, tmp_path / "best.json")
    assert load_plan(tmp_path / "best.json") == plan
    rows = page_data(open_plan(tmp_path / "best.json"))["leaderboard"]
    assert {row["placer"] for row in rows} == {"single", "heft", "dp"} and rows[0]["value"] == plan.value
    refused = next(row for row in rows if row["placer"] == "dp")
    assert refused["value"] is None and refused["remark"]
