"""benchmarks/generalize: the problems of GDP's table, and a table of a few of its rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from locations import ROOT

pytest.importorskip("torch")

FOLDER = ROOT / "benchmarks" / "generalize"
sys.path.insert(0, str(FOLDER))
import ablation  # noqa: E402
import checkpoints  # noqa: E402  # a folder of programs is no package
import gdp  # noqa: E402
import harness  # noqa: E402
import problems  # noqa: E402
import rows  # noqa: E402

from placewise.placers.registry import create  # noqa: E402
from placewise.training.corpus import open_corpus  # noqa: E402


def run(results: Path, *told: str) -> int:
    """The table's command, with these options."""
    options = harness.arguments("", evaluations=60).parse_args(["--results", str(results), *told])
    return rows.run(gdp.table(options), options)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_clusters_are_p100s_behind_the_host(count):
    """So many equal GPUs as the name says, and a CPU; nothing goes from GPU to GPU but through host memory."""
    cluster = problems.problem(f"transformer-xl-2 {count}xP100").cluster
    assert cluster.names == (*(f"cuda:{number}" for number in range(count)), "cpu")
    assert cluster.transfers == "staged"
    assert {device.memory for device in cluster if not device.is_host} == {16e9}


def test_the_large_graph_has_more_than_fifty_thousand_ops():
    """As the paper's did, and no GPU alone can hold its step."""
    problem = problems.problem(problems.LARGE)
    assert problem.n_ops > 50_000
    alone = harness.Method("one GPU", "alone", device="cuda:0").run(problem, 0)
    assert alone["status"] == "breaks memory"


def test_the_batch_is_part_of_a_workload_s_name():
    """Twice the images, twice the time that no placement can undercut."""
    one, two = (problems.problem(name) for name in ("inception-v3 2xP100", "inception-v3 batch=64 2xP100"))
    assert one.n_ops == two.n_ops
    assert 1.5 < two.costs.op_seconds[:, 0].sum() / one.costs.op_seconds[:, 0].sum() < 2.0


def test_every_published_row_has_every_method():
    """All workloads with all columns; three seeds of what chance has a part in."""
    options = harness.arguments("", evaluations=2000).parse_args([])
    rows = gdp.table(options).rows
    assert len({row.key for row in rows}) == len(rows)
    for name in problems.PUBLISHED:
        mine = [(row.method.name, row.seed) for row in rows if row.workload == name]
        assert {"one GPU", "metis", "expert", "temper", "auto", "untrained", "rate 0"} <= {method for method, _ in mine}
        assert {(method, seed) for method in gdp.HEADLINE for seed in range(3)} <= set(mine)


def test_a_table_of_some_rows(tmp_path, capsys):
    """What was run stands in it, what was not is blank and counted, and a second run has nothing to do."""
    for column in ("one GPU", "expert", "temper"):
        run(tmp_path, "--only", f"transformer-xl-2 2xP100/{column}/0")
    first = capsys.readouterr().out
    saved = json.loads((tmp_path / "generalize" / "gdp.json").read_text())
    assert len(saved["rows"]) == 3 and "benchmarks/generalize/gdp.py" in saved["command"]
    expert = saved["rows"]["transformer-xl-2 2xP100/expert/0"]["value"]
    assert saved["rows"]["transformer-xl-2 2xP100/temper/0"]["evaluations"] == 60
    assert saved["rows"]["transformer-xl-2 2xP100/one GPU/0"]["value"] > expert >= 0.1159
    table = (tmp_path / "generalize_gdp.md").read_text()
    assert "transformer-xl-2 2xP100/temper/0: " in first and f"| {expert * 1e3:.1f} |" in table
    assert f"{len(gdp.table(harness.arguments('', evaluations=60).parse_args([])).rows) - 3} of " in table
    run(tmp_path, "--only", "transformer-xl-2 2xP100/temper/0")
    assert "transformer-xl-2 2xP100/temper/0: " not in capsys.readouterr().out


def test_every_policy_that_a_table_reads_can_be_made():
    """Its corpus leaves out what its name says; no cluster that is drawn has a P100."""
    options = harness.arguments("", evaluations=2000).parse_args([])
    asked = [row.method.options for row in gdp.table(options).rows]
    read = {Path(told["checkpoint"]).name for told in asked if "checkpoint" in told}
    assert read == set(checkpoints.NAMES)
    for name in checkpoints.NAMES:
        recipe = open_corpus(FOLDER / "corpora" / f"{name}.toml").recipe
        assert recipe.leave_out == tuple(one for one in problems.FAMILIES if name == f"without-{one}")
        assert "P100" not in " ".join(recipe.clusters.devices)
        assert f"benchmarks/generalize/corpora/{name}.toml" in checkpoints.command(name)


def test_an_ablation_leaves_out_options_that_there_are():
    """Every variant but the whole differs from it, and can be made."""
    rows = ablation.table(harness.arguments("", evaluations=2000).parse_args([])).rows
    assert {row.workload for row in rows} <= set(problems.WORKLOADS)
    variants = [row.method for row in rows if row.method.name in ablation.VARIANTS]
    assert all(bool(method.options) == (method.name != "everything") for method in variants)
    for method in variants:
        create("gdp", method.options)


def test_the_batch_is_trained_on_the_problems_of_the_table():
    """Problem k of the corpus is workload k, to the last figure of its costs; as many placements as everybody has."""
    corpus = open_corpus(FOLDER / "corpora" / "batch.toml")
    training = corpus.recipe.training
    assert training.updates * training.problems * 16 == 2000 * len(problems.WORKLOADS)
    assert corpus.recipe.problems == len(problems.WORKLOADS)
    for number in (0, 8, 10, 13):
        here, there = problems.problem(problems.WORKLOADS[number]), corpus.problem(number)
        assert here.graph.digest() == there.graph.digest()
        assert (here.costs.op_seconds == there.costs.op_seconds).all() and str(here.objective) == str(there.objective)


def test_gains_are_shares_of_the_other_s_time():
    """1 − time / time of medians; placements until 5 % above the other's end, by hand."""
    name = problems.WORKLOADS[0]

    def row(method: str, value: float, curve: list[list[float]], seed: int = 0) -> dict:
        return {"workload": name, "method": method, "seed": seed, "value": value, "curve": curve}

    found = {
        f"{name}/hdp/0": row("hdp", 1.0, [[3, 0.1, 2.0], [400, 2.0, 1.04], [900, 4.0, 1.0]]),
        f"{name}/gdp-one/0": row("gdp-one", 0.9, [[3, 0.1, 2.0], [40, 2.0, 1.05], [90, 4.0, 0.9]]),
        f"{name}/expert/0": row("expert", 1.2, []),
    }
    assert gdp.gain(found, name, "expert") == pytest.approx(0.25)
    assert gdp.gain(found, name, "hdp") == pytest.approx(0.1)
    assert gdp.fewer(found, name) == pytest.approx(400 / 40)
    assert gdp.gap(found, name, "hdp") == pytest.approx(1 / 0.9 - 1)
    found[f"{name}/gdp-one/0"]["curve"] = [[3, 0.1, 2.0], [90, 4.0, 1.2]]
    assert gdp.fewer(found, name) is None
