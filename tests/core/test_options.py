"""What the Python interface accepts, and the words for what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run, workload
from toy_problems import toy

import placewise as pw
from placewise.core.build import build_for_plan
from placewise.core.options import ProblemOptions
from placewise.errors import InputError, PlacewiseError
from placewise.model.problem import Constraints, Rule
from placewise.placers import registry


def test_python_takes_what_the_command_line_takes() -> None:
    """Shares and times as text, rules as a mapping or as pairs, numbers of numpy, a budget in seconds."""
    assert pw.build(toy(15.0), options=pw.ProblemOptions(headroom="25%")).constraints.headroom == 0.25  # type: ignore[arg-type]
    plan = pw.place(toy(15.0), headroom="10%", pins={"a": "y"}, budget="30s", contiguous=np.bool_(True))  # type: ignore[arg-type]
    assert plan.problem.constraints == Constraints((Rule("a", "y"),), (), True, 0.1)
    assert plan.assignment == {"a": "y", "b": "x"}
    for pins in ([("a", "y")], [["a", "y"]], (Rule("a", "y"),), iter([("a", "y")])):
        assert pw.place(toy(15.0), pins=pins, budget=30).problem.constraints.pins == (Rule("a", "y"),)  # type: ignore[arg-type]
    assert ProblemOptions(dims={"batch": np.int64(8)}).dims == {"batch": 8}  # type: ignore[dict-item]
    assert ProblemOptions(headroom=np.float64(0.25)).headroom == 0.25 and ProblemOptions(costs=Path("a.csv")).costs == (
        "a.csv",
    )  # type: ignore[arg-type]
    assert ProblemOptions(replicas="any").replicas == 0 and ProblemOptions(replicas="4").replicas == 4  # type: ignore[arg-type]


def test_options_that_change_nothing_are_refused(tmp_path: Path) -> None:
    """gpipe without backward ops and step samples without replicas: one sentence each, with what is missing."""
    path = workload(tmp_path / "w.json")
    for options, said in (
        ({"schedule": "gpipe"}, "no backward ops, so that --schedule gpipe changes nothing; add --graph training"),
        ({"step_samples": 4}, "no stage is replicated, so that --step-samples changes nothing; add --replicas any"),
    ):
        with pytest.raises(InputError, match=said):
            pw.build(path, options=pw.ProblemOptions(**options))
    assert pw.build(path, options=pw.ProblemOptions(step_samples=4, replicas=0)).objective.step_samples == 4


def test_convex_from_the_command_to_the_plan_and_back(tmp_path: Path) -> None:
    """`--convex` is proved, written into the plan and holds when it is checked; with --contiguous it is refused."""
    path, plan = workload(tmp_path / "w.json"), tmp_path / "plan.json"
    assert "proved optimal" in run("place", path, "--convex", "--placer", "cpsat", "-o", plan).stdout
    problem, placement = build_for_plan(path, plan)
    assert (problem.constraints.contiguous, problem.constraints.convex) == (False, True)
    assert pw.judge(problem, placement).valid
    around = pw.judge(problem, pw.Placement(np.array([0, 1, 0], np.int32)))
    assert [violation.kind for violation in around.violations] == ["convexity"]
    assert "contiguous stages are convex already" in run("place", path, "--convex", "--contiguous", code=2).stderr
    assert "keeps every rule" in run("check", path, plan, "--convex").stdout


@pytest.mark.parametrize(
    ("problem_options", "words"),
    [
        ({"headroom": "ten"}, "headroom: 'ten' is neither a share nor a size; write it like '10%'"),
        ({"headroom": True}, "headroom is True; give a share"),
        ({"headroom": -0.1}, "headroom: -0.1 is neither a share"),
        ({"headroom": float("nan")}, "headroom: nan is neither a share"),
        ({"headroom": [1]}, r"headroom is \[1\]"),
        ({"headroom": 1.0}, "a headroom of 100 % leaves no memory to use; give less than 100 %"),
        ({"contiguous": "yes"}, "contiguous is 'yes'; give True or False"),
        ({"convex": 1}, "convex is 1; give True or False"),
        ({"objective": 3}, "objective is 3; give a text"),
        ({"objective": "speed"}, "'speed' is not known; choose from throughput, latency"),
        ({"pins": "a=x"}, "pins is 'a=x'; give a mapping"),
        ({"pins": [("a",)]}, r"pins holds \('a',\)"),
        ({"forbid": {"a": 3}}, r"forbid holds \('a', 3\)"),
        ({"pins": 7}, "pins is 7"),
        ({"pins": {"(": "x"}}, "not a regular expression"),
        ({"pins": {"a": "z"}}, "there is no device 'z'"),
        ({"dims": {"batch": "many"}}, "the dimension 'batch' is 'many'; give a whole number, 0 or more"),
        ({"dims": {"batch": -1}}, "the dimension 'batch' is -1"),
        ({"dims": [("batch", 1)]}, "dims is .*; give names and sizes"),
        ({"costs": 5}, "costs is 5; give a text, or a list of them"),
        ({"costs": b"a.csv"}, "costs is b'a.csv'"),
        ({"replicas": 1.5}, "replicas is 1.5; give a whole number, 0 or more, or 'any'"),
        ({"step_samples": -1}, "step_samples is -1"),
        ({"budget": "soon"}, "'soon' is not a time"),
        ({"budget": -1}, "-1 is not a time"),
        ({"budget": [3]}, r"the time limit is \[3\]; give seconds"),
        ({"placer": ["dp"]}, r"there is no placer \['dp'\]"),
        ({"placer": "dp", "options": {"max_ideals": "many"}}, "'max_ideals' of 'dp' is 'many'; give a whole number"),
        ({"placer": "dp", "options": {"max_ideals": True}}, "'max_ideals' of 'dp' is True"),
        ({"placer": "dp", "options": [3]}, r"options are \[3\]; give names and values"),
        ({"placer": "etf", "options": {"by": "luck"}}, "'by' of 'etf' is 'luck'|choose"),
        ({"placer": "cover", "options": {"bound": 1}}, "'bound' of 'cover' is 1; give true or false"),
    ],
)
def test_wrong_wishes_are_told_in_words(problem_options: dict[str, Any], words: str) -> None:
    """An InputError with the wish, what it is and the remedy; never a raw error."""
    with pytest.raises(InputError, match=words):
        pw.place(toy(15.0), **problem_options)


@pytest.mark.parametrize(
    ("field", "value"),
    [("seconds", "60s"), ("seconds", float("nan")), ("seconds", -1), ("iterations", 1.5), ("seed", -1), ("seed", None),
     ("gap", True), ("gap", "1%"), ("evaluations", -3), ("iterations", 1 << 40)],
)  # fmt: skip
def test_budgets_are_numbers(field: str, value: object) -> None:
    """A budget that nobody could keep is refused when it is made, with the field."""
    with pytest.raises(InputError, match=f"the budget's {field} is"):
        pw.Budget(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "devices"), [(5, "cpu"), (None, "cpu"), (b"a.onnx", "cpu"), (toy(15.0).graph, 5)])
def test_what_is_no_model_and_no_cluster(model: Any, devices: Any) -> None:
    """Anything but a path, a Graph or a Problem, and any devices that are none, are refused in words."""
    with pytest.raises(PlacewiseError, match=r"is not a model|no cluster|not a cluster"):
        pw.place(model, devices)


def test_options_of_every_placer_have_types_that_are_checked() -> None:
    """Each option of each placer refuses an object that is no option."""
    for name in registry.known_names():
        options = getattr(registry.placer_class(name), "Options", None)
        for field in getattr(options, "__dataclass_fields__", {}):
            with pytest.raises(InputError, match=field):
                registry.create(name, {field: object()})


def test_a_saved_training_problem_takes_its_plans_again(tmp_path: Path) -> None:
    """A plan says which optimizer it was made with: that of the saved graph is no contradiction, another one is."""
    sizes = pw.ProblemOptions(dims={"n_ops": 12}, graph="training", optimizer="sgd", objective="throughput")
    problem = pw.build("zoo:random-layered", "2xL4", sizes)
    problem.save(tmp_path / "step.npz")
    plan = pw.place(tmp_path / "step.npz", placer="balanced")
    plan.save(tmp_path / "plan.json")
    assert pw.judge(tmp_path / "step.npz", tmp_path / "plan.json").value == plan.value
    with pytest.raises(InputError, match="training graph already"):
        pw.judge(tmp_path / "step.npz", tmp_path / "plan.json", optimizer="adam")
