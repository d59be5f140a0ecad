"""The published schemas are current, real files satisfy them, and the documentation names every field."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from locations import ROOT
from split_problems import split_problem

from placewise.core.place import place
from placewise.files.cluster_record import cluster_to_dict
from placewise.files.corpus_file import load_corpus
from placewise.files.costs_file import save_costs
from placewise.files.graph_file import save_graph
from placewise.files.plan_file import plan_of, save_plan
from placewise.files.policy_file import PolicyFile, SectionRecord, StepRecord, save_policy
from placewise.files.problem_file import save_problem
from placewise.files.profile_file import DeviceProfile, Figures, ProfileFile, save_profile
from placewise.files.schema import RECORDS, schema_of
from placewise.files.sweep_file import (
    AnswerRecord,
    LargestRecord,
    ListPriceRecord,
    MemoryRecord,
    NeedsRecord,
    PointRecord,
    SweepFile,
    load_sweep,
    save_sweep,
)
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Source
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.result import Bound, DeviceUse, Improvement, Judgement, Outcome, Reason, Result, Status, Violation

DOCS = ROOT / "docs"
CORPUS = ROOT / "benchmarks" / "generalize" / "corpora" / "default.toml"


def answer() -> Result:
    """A result with an entry in every list."""
    builder = GraphBuilder()
    builder.add_op("a", "Relu")
    graph = builder.build(Source("m.onnx", "ab", "onnx", {"batch": (1,)}))
    link = Link("gpu", HOST, 1.0), Link(HOST, "gpu", 1.0)
    cluster = Cluster((Device("gpu", peak_flops={"float16": 1e12}, unsupported=frozenset({"If"})),), link)
    costs = CostTable.given(np.ones((1, 1)), transfer_seconds_of(graph, cluster))
    problem = Problem(graph, cluster, costs, Objective("throughput"), Constraints((Rule("a", "gpu"),)), ("assumed",))
    use = DeviceUse("gpu", 1, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, float("inf"))
    judgement = Judgement(1.0, (use,), (Violation("memory", "too big", "gpu", ("a",), 5.0),), {"pcie": 1.0})
    placement = Placement(np.zeros(1), np.zeros(1), np.zeros(1))
    status = Status(Outcome.FEASIBLE, Reason.FINISHED)
    history = (Improvement(0.1, 1.0, "greedy"),)
    baselines = {"best single device": (placement, judgement)}
    return Result(problem, placement, status, judgement, Bound(0.5, "x"), "greedy", 0.1, 0, baselines, history)


def answered_sweep() -> SweepFile:
    """A sweep with an entry in every list."""
    needs = NeedsRecord(weights=1, state=0, activations=2, largest=1)
    memory = (MemoryRecord(device="gpu", peak=1, capacity=float("inf")),)
    point = PointRecord(sizes={"batch": 1}, devices="T4", status="feasible", value=1.0, memory=memory, needs=needs)
    largest = LargestRecord(name="batch", devices="T4", fits=1, fails=None, method="bisection", monotone=True)
    answer = AnswerRecord(sizes={"batch": 1}, devices=None)
    price = ListPriceRecord(device="T4", per_hour=0.5, source="a list", date="2024-12")
    lists = {"points": (point,), "largest": (largest,), "answers": (answer,), "list_prices": (price,)}
    return SweepFile(model="m.onnx", varied=("batch",), clusters=("T4",), until="latency<=1", **lists)


def documents(folder: Path) -> dict[str, object]:
    """The JSON part of a real file of every format."""
    result, path = answer(), folder / "x"
    problem = result.problem
    found: dict[str, object] = {"cluster": cluster_to_dict(problem.cluster)}
    save_plan(result, path)
    found["plan"] = json.loads(path.read_text("utf-8"))
    figures = Figures(whole=1.0, ops=(1.0,))
    device = DeviceProfile(name="gpu", fused=((0,),), idle=figures, loaded=figures)
    save_profile(ProfileFile(runtime="onnxruntime", ops=("a",), cluster=found["cluster"], devices=(device,)), path)
    found["profile"] = json.loads(path.read_text("utf-8"))
    step, section = StepRecord(evaluations=1, seconds=0.1, value=1.0), SectionRecord(name="kind", columns=1)
    options = {"rate": 1e-3, "samples": 16, "normalized": True, "reward": "root"}
    policy = PolicyFile(policy="p", devices=("gpu",), options=options, features=(section,), history=(step,))
    save_policy(policy, {"x": np.zeros(1)}, folder / "policy.json")
    save_sweep(answered_sweep(), path)
    found["sweep"] = json.loads(path.read_text("utf-8"))
    found["corpus"] = load_corpus(CORPUS).model_dump(mode="json")
    found["policy"] = json.loads((folder / "policy.json").read_text("utf-8"))
    for name, save in (
        ("graph", lambda: save_graph(problem.graph, path)),
        ("problem", lambda: save_problem(problem, path)),
        ("costs", lambda: save_costs(problem.costs, problem.graph, problem.cluster, path)),
    ):
        save()
        with zipfile.ZipFile(path) as archive:
            found[name] = json.loads(archive.read("header.json"))
    return found


@pytest.mark.parametrize("name", RECORDS)
def test_committed_schemas_are_current(name: str) -> None:
    """docs/schemas is what scripts/write_schemas.py would write now."""
    committed = json.loads((DOCS / "schemas" / f"{name}.schema.json").read_text("utf-8"))
    assert committed == schema_of(name), "run scripts/write_schemas.py"
    jsonschema.Draft202012Validator.check_schema(committed)


@pytest.mark.parametrize("name", RECORDS)
def test_real_files_satisfy_their_schema(tmp_path: Path, name: str) -> None:
    """What we write validates; without its format, or with a wrong field, it does not."""
    document = documents(tmp_path)[name]
    validator = jsonschema.Draft202012Validator(schema_of(name))
    validator.validate(document)
    assert isinstance(document, dict)
    for broken in ({key: value for key, value in document.items() if key != "format"}, {**document, "version": 2}):
        assert not validator.is_valid(broken)


def test_a_sweep_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Unlimited memory included."""
    save_sweep(answered_sweep(), tmp_path / "s.json")
    assert load_sweep(tmp_path / "s.json") == answered_sweep()


def test_the_schema_of_plans_is_for_plans() -> None:
    """A plan by hand validates; one whose assignment is no map of names does not."""
    validator = jsonschema.Draft202012Validator(schema_of("plan"))
    plan = plan_of(answer()).model_dump(mode="json", include={"format", "version", "assignment"})
    assert validator.is_valid(plan)
    assert not validator.is_valid({**plan, "assignment": {"a": 1}})
    assert not validator.is_valid({**plan, "status": "splendid"})


def test_files_of_split_ops_satisfy_the_schemas(tmp_path: Path) -> None:
    """Plans with stages and problems with ways validate; stages without devices do not."""
    result = place(split_problem(0))
    assert result.placement is not None
    save_plan(result, tmp_path / "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    validator = jsonschema.Draft202012Validator(schema_of("plan"))
    validator.validate(plan)
    (_, *others) = plan["stages"]
    for wrong in ({"ops": ["op0"]}, {**plan["stages"][0], "tensor_parallel": 0}, "acc0"):
        assert not validator.is_valid({**plan, "stages": [wrong, *others]})
    save_problem(result.problem, tmp_path / "p.npz")
    with zipfile.ZipFile(tmp_path / "p.npz") as archive:
        header = json.loads(archive.read("header.json"))
        assert {"ways/seconds.npy", "ways/unit.npy"} <= set(archive.namelist())
    validator = jsonschema.Draft202012Validator(schema_of("problem"))
    validator.validate(header)
    assert not validator.is_valid({**header, "ways": {**header["ways"], "microbatches": 0}})


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_documented(name: str) -> None:
    """docs/formats.md names every field of every record."""
    text, schema = (DOCS / "formats.md").read_text("utf-8"), schema_of(name)
    fields = {field for part in (schema, *schema.get("$defs", {}).values()) for field in part["properties"]}
    assert {field for field in fields if f"`{field}`" not in text} == set()
