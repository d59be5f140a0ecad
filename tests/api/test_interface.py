"""One description of the options: Python and the command line have the same names, types and defaults."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from cli_runs import run as run_command
from locations import EXAMPLES

import placewise as pw
from placewise._util.option_table import OTHER_OPTIONS, PROBLEM_OPTIONS
from placewise._util.units import parse_fraction
from placewise._util.voice import SPEAKS_FLAGS, as_python
from placewise.api.learning import pretrain
from placewise.cli import check, compare, diff, explain, export, fit, judge, place, profile, report, run, sweep, train
from placewise.core.options import ProblemKeywords, ProblemOptions
from placewise.errors import InputError, PlanError
from placewise.model.problem import Communication, Execution, MemoryModel, ObjectiveKind, Schedule


@pytest.fixture(autouse=True)
def _keywords_in_messages() -> Iterator[None]:
    spoken = SPEAKS_FLAGS.set(False)
    yield
    SPEAKS_FLAGS.reset(spoken)


DOCUMENTED = (
    "placewise.api.placing", "placewise.api.models", "placewise.api.plans", "placewise.api.learning",
    "placewise.api.sweeping", "placewise.api.machine", "placewise.api.machine", "placewise.api.results",
    "placewise.core.options", "placewise.model.problem", "placewise._util.voice", "placewise.catalog.read",
)  # fmt: skip
FORMER = {"dtype"}
"""Other names of keywords, which are still accepted."""
NAMES = {option.name for option in PROBLEM_OPTIONS}
PYTHON_ONLY = {"on_progress", "budget", "example_inputs", "problem_options", "path", "plan", "cls"}
"""What only Python can give: callbacks, live modules, budgets of work, and where a result is written."""
CLI_ONLY = {"output", "as_json", "quiet", "plan"}
VERBS: dict[str, tuple[Callable[..., Any], Callable[..., Any], set[str]]] = {
    "place": (place.place, pw.place, {"details"}),
    "compare": (compare.compare, pw.compare, {"form", "measure", "runtime", "bind", "inputs", "in_flight", "rounds",
                                              "measure_time", "trust_model", "save_plan"}),
    "judge": (judge.judge, pw.judge, set()),
    "check": (check.check, pw.check, set()),
    "run": (run.run, pw.run, set()),
    "export": (export.export, pw.export,
               {"save_plan", "force", "list_targets", "devices"}),
    "explain": (explain.explain, pw.explain, {"devices"}),
    "fit": (fit.fit, pw.fit, set()),
    "diff": (diff.diff, pw.diff, set()),
    "report": (report.report, pw.report, {"devices"}),
    "profile": (profile.profile, pw.profile, set()),
    "train": (train.train, pw.train, {"corpus"}),
    "sweep": (sweep.sweep, pw.sweep, {"as_csv"}),
}  # fmt: skip
"""The command, the function, and what only the command has (docs/python.md says what to do instead)."""
FLAG_NAMES = {"option": "options"}
CHOICES = {
    "objective": ObjectiveKind, "execution": Execution, "communication": Communication, "memory": MemoryModel,
    "schedule": Schedule,
}  # fmt: skip


def test_every_option_is_described_once_and_everywhere() -> None:
    """The table, the dataclass and the typed keywords have the same names."""
    assert set(ProblemKeywords.__annotations__) == NAMES | FORMER
    assert {f.name for f in dataclasses.fields(ProblemOptions)} - {"spare"} == NAMES
    assert not NAMES & {option.name for option in OTHER_OPTIONS}
    for name in NAMES:
        assert (
            f"{name} :" in (ProblemOptions.__doc__ or "")
            or f"{name}, " in (ProblemOptions.__doc__ or "")
            or (f", {name} :" in (ProblemOptions.__doc__ or ""))
        )


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_is_described(name: str) -> None:
    """The docstring lists all values that an option has, and the sentence of `--help` names each."""
    (described,) = re.findall(rf"^    {name} : {{(.*)}}$", ProblemOptions.__doc__ or "", re.MULTILINE)
    assert set(re.findall(r'"([^"]+)"', described)) == set(get_args(CHOICES[name]))
    words = next(option.help for option in PROBLEM_OPTIONS if option.name == name)
    assert all(re.search(rf"(?<![\w-]){choice}(?![\w-])", words) for choice in get_args(CHOICES[name])), words


@pytest.mark.parametrize("verb", VERBS)
def test_commands_and_functions_have_the_same_options(verb: str) -> None:
    """The same names and the same defaults, but for what only one of them can have."""
    command, function, extra = VERBS[verb]
    flags = {FLAG_NAMES.get(n, n): p for n, p in inspect.signature(command).parameters.items() if n not in NAMES}
    keywords = inspect.signature(function).parameters
    assert set(inspect.signature(command).parameters) >= NAMES or verb in ("profile", "fit")
    assert set(flags) - CLI_ONLY - extra == set(keywords) - PYTHON_ONLY - NAMES - {"options"} - _variadic(function) | (
        {"options"} & set(flags)
    )
    for name in set(flags) & set(keywords) - {"model", "plan", "to", "why_not"}:
        ours, theirs = keywords[name].default, flags[name].default
        if name == "gap":
            ours, theirs = parse_fraction(ours), parse_fraction(theirs)
        assert ours == theirs or {ours, theirs} <= {None, ()}, (verb, name)


def _variadic(function: Callable[..., Any]) -> set[str]:
    return {n for n, p in inspect.signature(function).parameters.items() if p.kind is inspect.Parameter.VAR_KEYWORD}


def test_docstrings_of_classes_name_every_parameter() -> None:
    """The same of `read_cluster` and of the classes that people build: every argument is in the section Parameters."""
    for documented in (pw.read_cluster, pw.Plan, pw.Problem):
        text = inspect.getdoc(documented) or ""
        assert "\nExamples\n---" in text, documented
        described = text[text.index("Parameters\n---") : text.index("\nExamples")]
        for name in inspect.signature(documented).parameters:
            assert f"\n{name} : " in described, (documented.__name__, name)


def test_docstrings_name_every_parameter() -> None:
    """Every public function has numpydoc sections, and every parameter is in them."""
    for _, function, _ in (
        *VERBS.values(),
        (None, pretrain, None),
        (None, pw.inspect, None),
        (None, pw.read_model, None),
    ):
        text = inspect.getdoc(function) or ""
        for section in ("Parameters", "Returns", "Raises", "Examples"):
            assert f"\n{section}\n---" in text, (function, section)
        described = text[text.index("Parameters\n") : text.index("\nReturns")]
        for name in inspect.signature(function).parameters:
            assert name in described, (function.__name__, name)


@pytest.mark.parametrize("module", DOCUMENTED)
def test_examples_run(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of docstrings give what they say."""
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted and not found.failed


def test_a_misspelt_option_is_our_error() -> None:
    """With the name that was meant."""
    with pytest.raises(InputError, match="there is no option 'objectve'; did you mean 'objective'"):
        pw.place(str(EXAMPLES / "mlp.onnx"), "2xL4", objectve="latency")  # type: ignore[call-arg]
    with pytest.raises(InputError, match="there is no option 'zzz'; the options are"):
        pw.place(str(EXAMPLES / "mlp.onnx"), "2xL4", zzz=1)  # type: ignore[call-arg]


def test_errors_speak_the_readers_language() -> None:
    """The same mistake names flags on the command line and keywords in Python."""
    model = str(EXAMPLES / "resnet50.onnx")
    with pytest.raises(InputError) as error:
        pw.place(model, "2xL4,cpu")
    assert "dims={'batch': 1}" in str(error.value) and "--" not in str(error.value)
    assert "--dim batch=1" in run_command("place", model, "-d", "2xL4,cpu", code=2).stderr
    assert not SPEAKS_FLAGS.get()


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("name them, for example -d 2xA100-80GB,cpu or -d this",
         "name them, for example devices='2xA100-80GB,cpu' or devices='this'"),
        ("give --free, without --contiguous, --convex and --in-order",
         "give contiguous=False, without contiguous=True, convex=True and in_order=True"),
        ("--dim batch=1 --dim 'seq len=1'", "dims={'batch': 1, 'seq len': 1}"),
        ("leave out --graph inference", "leave out graph='inference'"),
        ("keep both on one device (--together)", "keep both on one device (together)"),
        ("its JSON (--json) and a-b -- c", "its JSON (--json) and a-b -- c"),
        ("--headroom 10% keeps a tenth", "headroom='10%' keeps a tenth"),
        ("write it like --max-memory cuda:0=20GiB", "write it like max_memory={'cuda:0': '20GiB'}"),
    ],
)  # fmt: skip
def test_flags_become_keywords(flags: str, keywords: str) -> None:
    """With their values as Python writes them; what is no option of ours stays."""
    assert as_python(flags) == keywords


def test_types_of_keywords_can_be_read() -> None:
    """The hints of the typed keywords resolve: type checkers and editors show them."""
    assert set(get_type_hints(ProblemKeywords)) == NAMES | FORMER


def test_problems_and_plans_are_saved_and_loaded(tmp_path: Path) -> None:
    """What is loaded is what was saved, judged anew."""
    problem = pw.build("zoo:random-layered", "2xL4,cpu", pw.ProblemOptions(dims={"n_ops": 30}, objective="throughput"))
    problem.save(tmp_path / "problem.npz")
    plan = pw.place(pw.Problem.load(tmp_path / "problem.npz"), time_limit="5s")
    plan.save(tmp_path / "plan.json")
    again = pw.Plan.load(tmp_path / "plan.json", problem)
    assert (again.value, again.lower_bound, again.status) == (plan.value, plan.lower_bound, plan.status)
    assert again.assignment == plan.assignment and again.result.placer == plan.result.placer
    assert pw.check(problem, tmp_path / "plan.json") == () and pw.judge(problem, again).value == plan.value


def test_a_bound_is_kept_for_its_own_problem_only(tmp_path: Path) -> None:
    """The proof of the best chain says nothing of placements that need not be one, though the value is the same."""
    problem = pw.build("zoo:random-branchy", "2xL4,cpu", pw.ProblemOptions(dims={"n_ops": 30}, objective="throughput"))
    plan = pw.place(problem, placer="dp")
    plan.save(tmp_path / "plan.json")
    assert plan.status == "optimal"
    free = pw.Plan.load(tmp_path / "plan.json", problem, contiguous=False)
    assert free.value == plan.value and free.result.bound == pw.lower_bound(free.problem)


def test_options_hold_for_plan_objects_as_for_their_files(tmp_path: Path) -> None:
    """judge() and check() of a Plan with other options or devices say what they say of its saved file."""
    model, cluster = "zoo:random-layered", "2xL4,cpu"
    plan = pw.place(model, cluster, dims={"n_ops": 20}, placer="heft")
    path = tmp_path / "plan.json"
    plan.save(path)
    ways: list[dict[str, Any]] = [
        {"objective": "throughput"},
        {"execution": "sequential"},
        {"forbid": {".*": "cuda:0"}},
    ]
    for options in ways:
        of_object, of_file = (pw.judge(model, each, **options) for each in (plan, path))
        assert of_object.value == of_file.value
        assert of_object.violations == of_file.violations
    assert pw.judge(model, plan, objective="throughput").value != plan.value
    slow = "2xT4,cpu"
    assert pw.judge(model, plan, slow).value == pw.judge(model, path, slow).value > plan.value


@pytest.mark.parametrize(
    "ask",
    [
        lambda plan, model: pw.judge(model, plan),
        lambda plan, model: pw.check(model, plan),
        lambda plan, model: pw.explain(plan, plan.problem.graph.ops.name[0], model=model),
        lambda plan, model: pw.diff(plan, plan, model=model),
        lambda plan, model: pw.export(plan, "dot", model=model),
        lambda plan, model: pw.report(plan, model=model),
        lambda plan, model: pw.run(plan, model, runtime="emulated", rounds=2),
    ],
    ids=["judge", "check", "explain", "diff", "export", "report", "run"],
)
def test_a_plan_object_is_of_the_model_that_is_named(ask: Callable[[pw.Plan, str], object]) -> None:
    """Its own model is read again and taken; another one, and a file that is not there, are refused."""
    plan = pw.place("zoo:random-layered", "2xL4,cpu", dims={"n_ops": 20}, placer="heft")
    ask(plan, "zoo:random-layered")
    with pytest.raises(PlanError, match="made for another model"):
        ask(plan, "zoo:random-branchy")
    with pytest.raises(InputError, match="cannot be read"):
        ask(plan, "nosuchfile.onnx")
