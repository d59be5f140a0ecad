"""benchmarks/learned: the calibrated clusters, small graphs, and rows that are not run twice."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from locations import ROOT

pytest.importorskip("torch")

FOLDER = ROOT / "benchmarks" / "learned"
sys.path.insert(0, str(FOLDER))
import calibrate  # noqa: E402  # a folder of programs is no package
import rows  # noqa: E402
import small  # noqa: E402
import tables  # noqa: E402
from methods import Method  # noqa: E402

from placewise.core.place import place  # noqa: E402
from placewise.placers.base import Budget  # noqa: E402
from placewise.simulate import judge_placement  # noqa: E402


@pytest.mark.parametrize("model", calibrate.PUBLISHED)
def test_calibrated_clusters_give_the_two_published_times(model):
    """What is committed is what the program makes of the published times."""
    assert calibrate.check(model, "folded") < calibrate.CLOSE


def test_the_optimum_of_chains_is_between_the_optimum_and_one_device():
    """Chains that stay whole cost something, and never more than all is worth."""
    problem = calibrate.problem_of("resnet50", "folded", calibrate.CLUSTERS / "resnet50-folded.toml")
    best = Method("optimum", "placer", "two_way").run(problem, 0)
    whole = Method("of chains", "chains").run(problem, 0)
    assert best["value"] == pytest.approx(best["bound"], rel=1e-6)
    assert best["value"] < whole["value"] <= calibrate.PUBLISHED["resnet50"][calibrate.GPU] * (1 + 1e-9)


def test_rows_that_are_done_are_not_run_again(tmp_path, capsys):
    """A second run skips what the first saved, runs what is missing, and runs a row of other options again."""

    def run(count: int, only: str, *more: str) -> str:
        method = Method("random", "search", "random", options={"samples": count}, evaluations=count)
        wanted = tuple(rows.Row("small", name, method) for name in ("chain sequential", "two-branches operator"))
        made = rows.Table("try", "a try", wanted, lambda found, command: f"{len(found)} rows: {command}")
        said = ["--results", str(tmp_path), "--only", only]
        assert rows.run(made, rows.arguments("", evaluations=count).parse_args([*said, *more])) == 0
        return capsys.readouterr().out

    assert "chain sequential/random/0: " in (first := run(30, "chain")) and "1 rows" in first
    assert "1 of 2 rows." in first
    second = run(30, "")
    assert "chain sequential/random/0: " not in second and "two-branches operator/random/0: " in second
    assert "chain sequential/random/0: " in run(40, "chain")
    fewer = run(40, "", "--evaluations", "30", "--table")
    assert "1 rows: python benchmarks/learned/try.py --evaluations 30 --seeds 1" in fewer
    saved = json.loads((tmp_path / "learned" / "try.json").read_text())["rows"]
    assert saved["chain sequential/random/0"]["evaluations"] == 40


def test_how_soon_a_row_came_near_its_end():
    """The first step of the curve within 5 % of the last."""
    row = {"curve": [[3, 0.1, 2.0], [40, 0.2, 1.04], [90, 0.3, 1.0]]}
    assert tables.evaluations_to(row) == 40
    assert tables.evaluations_to({"curve": []}) is None


@pytest.mark.parametrize("workload", small.WORKLOADS)
def test_small_graphs_are_worth_a_split(workload):
    """No small graph of the table is best on one device, so that a policy that knows nothing else fails."""
    problem = small.problem(workload)
    best = place(problem, "exhaustive", Budget())
    alone = min(
        judge_placement(problem, placement).value for placement, _ in best.baselines.values() if _one(placement)
    )
    assert alone > 1.02 * best.value


def _one(placement) -> bool:
    return len(np.unique(placement.device)) == 1
