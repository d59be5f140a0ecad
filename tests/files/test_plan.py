"""Plan files: what `place()` answers, as JSON; and placements read back from it."""

from __future__ import annotations

import json
import math
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files_strategies import placements_for, problems
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from soak import examples

from placewise.errors import OutputError, PlanError
from placewise.files.plan_file import PlanFile, is_plan, load_plan, placement_of, plan_of, save_plan
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph, Source
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.result import Bound, DeviceUse, Improvement, Judgement, Outcome, Reason, Result, Status, Violation


def two_ops(second: str = "b") -> Graph:
    """a feeds a second op with 8 bytes."""
    builder = GraphBuilder()
    builder.add_edge(builder.add_tensor(builder.add_op("a", "Relu"), nbytes=8), builder.add_op(second, "Relu"))
    return builder.build(Source("m.onnx", "ab12", "onnx", {"batch": 1}))


def machine() -> Cluster:
    """An accelerator of 100 bytes beside a CPU."""
    links = (Link("gpu", HOST, 4.0), Link(HOST, "gpu", 4.0))
    return Cluster((Device("gpu", memory=100.0), Device("cpu", kind="cpu")), links)


def two_op_problem() -> Problem:
    """Throughput of two ops on one accelerator and one CPU, with a pin and a warning."""
    graph, cluster = two_ops(), machine()
    costs = CostTable.given(np.array([[1.0, 3.0], [2.0, 4.0]]), transfer_seconds_of(graph, cluster))
    constraints = Constraints(pins=(Rule("^a$", "gpu"),), headroom=0.1)
    return Problem(graph, cluster, costs, Objective("throughput"), constraints, ("memory of cpu is assumed",))


def result(**changes: Any) -> Result:
    """A feasible answer with a call, an order, a violation and a baseline that cannot run."""
    use = DeviceUse("gpu", 1, 1.0, 2.0, 0.0, 3.0, 1.0, 10.0, 20.0, 90.0, "cpu")
    unused = DeviceUse("cpu", 1, 4.0, 0.0, 2.0, math.nan, math.nan, 0.0, 0.0, math.inf)
    broken = Violation("memory", "gpu lacks 5 B → use less", "gpu", ("a",), 5.0)
    placement = Placement(np.array([0, 1]), np.array([0, 2]), np.array([1, 0]))
    fields: dict[str, Any] = {
        "problem": two_op_problem(),
        "placement": placement,
        "status": Status(Outcome.FEASIBLE, Reason.TIME_LIMIT),
        "judgement": Judgement(4.0, (use, unused), (broken,), {"pcie": 0.5}, bottleneck="cpu"),
        "bound": Bound(3.0, "fractional assignment"),
        "placer": "greedy",
        "seconds": 0.25,
        "seed": 7,
        "baselines": {"best single device": (placement, Judgement(math.inf, (use, unused), (broken, broken)))},
        "history": (Improvement(0.1, 5.0, "greedy"), Improvement(0.2, 4.0, "search")),
        "notes": ("größer is slower",),
    }
    return Result(**{**fields, **changes})


def test_a_plan_says_everything(tmp_path: Path) -> None:
    """Every figure of a result stands in the file under its name; infinite and undefined ones are null."""
    save_plan(result(), tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text("utf-8")
    plan = json.loads(text, parse_constant=pytest.fail)
    assert (plan["format"], plan["version"]) == ("placewise-plan", 1)
    assert plan["assignment"] == {"a": "gpu", "b": "cpu"}
    assert (plan["value"], plan["lower_bound"], plan["gap"]) == (4.0, 3.0, 0.25)
    assert (plan["status"], plan["reason"]) == ("feasible", "time limit")
    assert plan["bound_method"] == "fractional assignment"
    assert plan["objective"] == {
        "kind": "throughput", "communication": "blocking", "execution": "operator", "memory": "live",
        "schedule": "1f1b", "step_samples": 0,
    }  # fmt: skip
    assert plan["constraints"]["pins"] == [{"pattern": "^a$", "device": "gpu"}]
    assert [device["name"] for device in plan["cluster"]["devices"]] == ["gpu", "cpu"]
    assert plan["devices"][0] == {
        "device": "gpu", "ops": 1, "compute": 1.0, "send": 2.0, "receive": 0.0, "load": 3.0, "idle": 1.0,
        "resident": 10.0, "peak": 20.0, "capacity": 90.0, "waits_for": "cpu",
        "forward": None, "backward": None, "sync": 0.0, "replicas": 1, "repeats": "",
    }  # fmt: skip
    assert (plan["devices"][1]["idle"], plan["devices"][1]["capacity"]) == (None, None)
    assert plan["wires"] == {"pcie": 0.5}
    assert plan["violations"] == [
        {"kind": "memory", "message": "gpu lacks 5 B → use less", "device": "gpu", "ops": ["a"], "bytes_short": 5.0}
    ]
    assert plan["baselines"]["best single device"] == {
        "value": None, "valid": False, "violations": 2, "broken": "gpu lacks 5 B → use less", "devices": ["gpu", "cpu"],
        "rule": "memory",
    }  # fmt: skip
    assert plan["history"][1] == {"seconds": 0.2, "value": 4.0, "placer": "search"}
    assert (plan["placer"], plan["seed"], plan["seconds"], plan["bottleneck"]) == ("greedy", 7, 0.25, "cpu")
    assert plan["notes"] == ["größer is slower"]
    assert plan["warnings"] == ["memory of cpu is assumed"]
    assert plan["source"]["path"] == "m.onnx"
    assert plan["graph_hash"] == two_ops().digest()
    problem, placed = result().problem, result().placement
    assert placed is not None
    other = Placement(placed.device, placed.call)
    assert plan["placement_hash"] == placed.digest(problem.graph, problem.cluster)
    assert plan["placement_hash"] != other.digest(problem.graph, problem.cluster)
    assert (plan["calls"], plan["order"]) == ({"a": 0, "b": 2}, {"a": 1, "b": 0})
    assert plan["tool"] == {"name": "placewise", "version": version("placewise")}


def test_a_plan_comes_back(tmp_path: Path) -> None:
    """The loaded plan equals the saved one, and saving it again makes the same bytes."""
    save_plan(result(), tmp_path / "a.json")
    plan = load_plan(tmp_path / "a.json")
    assert plan == plan_of(result())
    save_plan(plan, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert placement_of(plan, two_ops(), machine()) == result().placement


def test_without_calls_and_order_there_are_none(tmp_path: Path) -> None:
    """A placement without calls and order leaves both out of the file."""
    placement = Placement(np.array([0, 1]))
    save_plan(result(placement=placement), tmp_path / "plan.json")
    assert {"calls", "order", "replicas"}.isdisjoint(json.loads((tmp_path / "plan.json").read_text("utf-8")))
    assert placement_of(tmp_path / "plan.json", two_ops(), machine()) == placement


def test_replicas_are_devices_by_name(tmp_path: Path) -> None:
    """The file names whose stage a device repeats; names that do not exist are refused."""
    placement = Placement(np.array([0, 0]), replicas=np.array([0, 0]))
    save_plan(result(placement=placement), tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text("utf-8"))["replicas"] == {"cpu": "gpu"}
    assert placement_of(tmp_path / "plan.json", two_ops(), machine()) == placement
    for named in ({"tpu": "gpu"}, {"cpu": "tpu"}):
        with pytest.raises(PlanError, match="'replicas' names the device 'tpu'"):
            placement_of(written(tmp_path / "plan.json", replicas=named), two_ops(), machine())


def test_a_plan_without_placement(tmp_path: Path) -> None:
    """An infeasible answer has no assignment and no finite value, and says why; no placement comes from it."""
    status = Status(Outcome.INFEASIBLE, Reason.PROVED)
    nothing = result(
        placement=None, judgement=None, status=status, unmet="a needs 200 B", bound=Bound(math.inf, "proof")
    )
    save_plan(nothing, tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert (plan.assignment, plan.value, plan.lower_bound, plan.gap) == ({}, math.inf, math.inf, 1.0)
    assert plan.unmet == "a needs 200 B"
    with pytest.raises(PlanError, match="holds no placement: its status is infeasible"):
        placement_of(plan, two_ops(), machine())


def test_ops_without_device_are_left_out() -> None:
    """An op on no device is not in the assignment, and is missed when the plan is used."""
    plan = plan_of(result(placement=Placement(np.array([-1, 1]))))
    assert plan.assignment == {"b": "cpu"}
    with pytest.raises(PlanError, match="op 'a' has no device"):
        placement_of(plan, two_ops(), machine())


@examples(15, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_placement_comes_back(data: st.DataObject) -> None:
    """Devices, calls and order of any placement of any problem, through a file."""
    problem = data.draw(problems())
    placement = data.draw(placements_for(problem))
    answer = result(problem=problem, placement=placement, baselines={})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        save_plan(answer, path)
        assert load_plan(path) == plan_of(answer)
        again = placement_of(path, problem.graph, problem.cluster)
    if problem.n_ops:
        assert again == placement


def written(path: Path, **changes: Any) -> Path:
    document = {"format": "placewise-plan", "version": 1, "assignment": {"a": "gpu", "b": "cpu"}}
    path.write_text(json.dumps({**document, **changes}))
    return path


def test_a_plan_by_hand(tmp_path: Path) -> None:
    """Format, version and assignment are enough; a plan without hash serves any model with these ops."""
    path = written(tmp_path / "plan.json", comment="by hand")
    assert load_plan(path).status == "unknown"
    assert load_plan(path).value == math.inf
    assert placement_of(path, two_ops(), machine()).device.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ('{"format": "placewise-plan", "version": 1, "assignment": {}, "value": NaN}', "is not JSON"),
        ("[" * 10_000, "is not JSON"),
        ("[]", "names no format"),
        ('{"assignment": {}}', "names no format"),
        ('{"format": "placewise-graph"}', "is a 'placewise-graph' file, not a placewise-plan file"),
        ('{"format": "placewise-plan", "version": 2}', "newer than 1; upgrade placewise"),
        ('{"format": "placewise-plan", "version": true}', "names no version"),
        ('{"format": "placewise-plan", "version": 1}', "'assignment' is missing"),
        ('{"format": "placewise-plan", "version": 1, "assignment": {"a": 1}}', "'assignment.a' must be a text"),
        ('{"fpgas": [], "cpus": []}', "is a published split, not a plan"),
    ],
)
def test_files_that_are_no_plan(tmp_path: Path, text: str, message: str) -> None:
    """Each fault is one sentence with the file's name."""
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=message) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}: ")


TWICE = {"format": "placewise-cluster", "version": 1, "transfers": "staged", "devices": [{"name": "a"}, {"name": "a"}]}
ONE = {"format": "placewise-cluster", "version": 1, "transfers": "staged", "devices": [{"name": "c", "kind": "cpu"}]}
SOURCE = {"path": "m.onnx", "sha256": "", "format": "onnx"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": TWICE}, "both called 'a'"),
        ({"constraints": {"headroom": 2}}, "a headroom of 200 % leaves no memory to use"),
        ({"constraints": {"pins": [{"pattern": "(", "device": "c"}]}}, r"rule '\(' is not a regular expression"),
        ({"constraints": {"pins": [{"pattern": "a", "device": "d"}]}, "cluster": ONE}, "names the device 'd'"),
        ({"source": {**SOURCE, "options": {"dims": [1]}}}, "does not map names to sizes"),
        ({"source": {**SOURCE, "options": {"dims": {"batch": "8"}}}}, "does not map names to sizes"),
        ({"source": {**SOURCE, "options": {"dims": {"batch": -1}}}}, "does not map names to sizes"),
        ({"source": {**SOURCE, "options": {"graph": 1}}}, "'source.options.graph' is not a string"),
        ({"source": {**SOURCE, "view": "zz"}}, "'source.view' is 'zz'; choose folded or raw"),
        ({"history": [{"seconds": None, "value": 1.0, "placer": "a"}]}, "'history.0.seconds' must be a number"),
        ({"cluster": {**ONE, "devices": [{"name": "c", "streams": int("1" * 40)}]}}, "streams' must be below"),
    ],
)
def test_parts_that_mean_nothing(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Devices, rules and options of the reader are checked as the plan is read, with the file's name."""
    path = written(tmp_path / "plan.json", **changes)
    with pytest.raises(PlanError, match=message) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}: ")


FIRST_FIELDS = {
    "format", "version", "value", "lower_bound", "gap", "status", "reason", "unmet", "bound_method", "objective",
    "constraints", "cluster", "devices", "wires", "violations", "bottleneck", "baselines", "placer", "seed", "seconds",
    "history", "notes", "warnings", "source", "graph_hash", "assignment", "calls", "order", "tool",
}  # fmt: skip
FIRST_INNER_FIELDS = {
    "objective": {"kind", "communication", "execution", "memory"},
    "constraints": {"pins", "forbidden", "contiguous", "headroom"},
    "devices": {"device", "ops", "compute", "send", "receive", "load", "idle", "resident", "peak", "capacity",
                "waits_for"},
    "baselines": {"value", "valid", "violations"},
}  # fmt: skip
"""What plans had when the format was published."""


def test_a_plan_of_the_first_days_can_be_read(tmp_path: Path) -> None:
    """What came later has defaults: the placement and every figure that was there are the same."""
    save_plan(result(), tmp_path / "new.json")
    new = json.loads((tmp_path / "new.json").read_text("utf-8"))
    old = {key: value for key, value in new.items() if key in FIRST_FIELDS}

    def first(name: str, record: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key in FIRST_INNER_FIELDS[name]}

    old["objective"], old["constraints"] = (
        first("objective", old["objective"]),
        first("constraints", old["constraints"]),
    )
    old["devices"] = [first("devices", device) for device in old["devices"]]
    old["baselines"] = {name: first("baselines", record) for name, record in old["baselines"].items()}
    (tmp_path / "old.json").write_text(json.dumps(old), "utf-8")
    plan, placed = load_plan(tmp_path / "old.json"), result().placement
    assert placement_of(plan, two_ops(), machine()) == placed
    assert (plan.value, plan.lower_bound, plan.status, plan.reason) == (4.0, 3.0, "feasible", "time limit")
    assert plan.baselines["best single device"].violations == 2 and plan.verdict is None


def test_missing_plans(tmp_path: Path) -> None:
    """A file that does not exist, a directory, and bytes that are no text."""
    (tmp_path / "raw").write_bytes(b"\xff\xfe\0")
    for path, message in ((tmp_path / "no", "no such file"), (tmp_path, "directory"), (tmp_path / "raw", "not JSON")):
        with pytest.raises(PlanError, match=message) as caught:
            load_plan(path)
        assert str(caught.value).count(str(path)) == 1
        with pytest.raises(PlanError, match=message) as caught:
            is_plan(path)
        assert str(caught.value).count(str(path)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph_hash": "0" * 64}, "this plan was made for another model; read"),
        ({"assignment": {"a": "gpu", "b": "cpu", "c": "cpu"}}, "the model has no op 'c'"),
        ({"assignment": {"a": "gpu"}}, "op 'b' has no device"),
        ({"assignment": {"a": "gpu", "b": "tpu"}}, "there is no device 'tpu'; the cluster has gpu, cpu"),
        ({"assignment": {}}, "holds no placement: its status is unknown"),
        ({"calls": {"a": 0}}, "op 'b' has no call"),
        ({"order": {"a": 0, "b": 1 << 40}}, "a priority is too large"),
    ],
)
def test_plans_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Another model, unknown ops and devices, missing ops, numbers out of range."""
    path = written(tmp_path / "plan.json", **changes)
    with pytest.raises(PlanError, match=message) as caught:
        placement_of(path, two_ops(), machine())
    assert str(caught.value).startswith(f"{path}: ")


def test_another_model_is_named(tmp_path: Path) -> None:
    """If the plan knows where its model came from, the message says so."""
    builder = GraphBuilder()
    builder.add_op("a", "Relu")
    with pytest.raises(PlanError, match=r"made for another model \(it was made from m.onnx\)"):
        placement_of(plan_of(result()), builder.build(), machine())


def test_a_failing_save_leaves_the_old_plan(tmp_path: Path) -> None:
    """A name that no file holds is refused before the old plan is touched."""
    path = written(tmp_path / "plan.json")
    before = path.read_bytes()
    broken = PlanFile(assignment={"\ud800": "gpu"})
    with pytest.raises(OutputError, match="not valid Unicode"):
        save_plan(broken, path)
    with pytest.raises(OutputError, match="make the directory"):
        save_plan(result(), tmp_path / "no" / "plan.json")
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]
