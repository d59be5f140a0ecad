"""Sweeps of real models: what fits, goals by enumeration, interruptions, workers and bad inputs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import placewise as pw
from placewise.analysis.sweep.evaluate import PointEvaluator
from placewise.analysis.sweep.goals import parse_goal
from placewise.analysis.sweep.jobs import PointJob, choose_job
from placewise.analysis.sweep.run import MAX_POINTS, SweepPlan, digest_of, order_clusters, plan_sweep, run_sweep
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.errors import InputError, ModelFileError
from placewise.files.sweep_file import PointRecord, load_sweep
from placewise.placers.base import Budget
from placewise.processes.pool import Pool, PoolMember

TINY = {"layers": 1, "length": 16}
WORK = Budget(iterations=1000)
"""Without a limit of seconds: bounds may not depend on what else the machine does."""
SMALL = '{"cuda:0": "130MiB"}'


def planned(devices: Any = SMALL, vary: Any = None, dims: Any = None, **changes: Any) -> SweepPlan:
    """A sweep of one layer of BERT, placed on one device; bounds of throughput take no time."""
    options = ProblemOptions(dims=TINY if dims is None else dims, objective=changes.pop("objective", "throughput"))
    model = changes.pop("model", "zoo:bert-base")
    changes = {"placer": "single", **changes}
    return plan_sweep(model, devices, {"batch": "16:512"} if vary is None else vary, options, WORK, **changes)


def figures(points: tuple[PointRecord, ...]) -> list[tuple[Any, ...]]:
    """What a point says, without how long it took."""
    return [(point.devices, point.sizes, point.status, point.value, point.memory, point.pareto) for point in points]


def test_bisection_equals_trying_every_batch() -> None:
    """On a real model: the largest batch that fits is the one that enumeration finds, and no later one fits."""
    exact = run_sweep(planned(vary={"batch": "16:128"}, resolution=0), workers=1)
    tried = run_sweep(planned(vary={"batch": "16:128:1"}), workers=1)
    fitting = [point.sizes["batch"] for point in tried.points if point.fits]
    assert 16 < max(fitting) < 128 and exact.largest[0].fits == max(fitting)
    assert exact.largest[0].fails == max(fitting) + 1 and exact.largest[0].method == "bisection"
    assert tried.largest[0].fits == max(fitting) and tried.largest[0].method == "trying"
    assert len(exact.points) < len(tried.points) / 5


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_a_point_is_what_place_says(objective: str) -> None:
    """Value, bound, memory and baseline of a point are those of the plan for these sizes."""
    import placewise as pw

    point = run_sweep(planned("2xL4,cpu", {"batch": "4"}, objective=objective), workers=1)
    plan = pw.place("zoo:bert-base", "2xL4,cpu", dims={**TINY, "batch": 4}, objective=objective, placer="single")
    (only,) = point.points
    assert (only.value, only.lower_bound, only.status) == (plan.value, plan.lower_bound, plan.status)
    assert plan.result.judgement is not None
    assert [device.peak for device in only.memory] == [use.peak for use in plan.result.judgement.devices]
    if objective == "throughput":
        assert only.throughput == pytest.approx(4 / plan.value)
    alone = pw.judge("zoo:bert-base", plan, objective="latency")
    assert only.latency == pytest.approx(alone.value)


PRICES = ({"L4": 1.0, "T4": 0.9, "A100-80GB": 4.0}, {"L4": 3, "T4": 2, "A100-80GB": 1}, None)


def priced_sweep(prices: int, until: str | None = None) -> SweepPlan:
    """Five clusters, whose prices rise with their speed, or fall, or are not known."""
    clusters = "2..3xT4; 1..2xL4; A100-80GB" if PRICES[prices] else '2..3xT4; 1..2xL4; {"cuda:0": "3GiB"}'
    return planned(clusters, {"batch": "8,64"}, prices=PRICES[prices], until=until)


@cache
def every_point(prices: int) -> tuple[PointRecord, ...]:
    return run_sweep(priced_sweep(prices), workers=1).points


@pytest.mark.parametrize("prices", range(len(PRICES)))
@pytest.mark.parametrize("goal", ["latency<=2.5ms", "latency<=100s", "latency<=1us", "memory<=200MiB"])
def test_a_goal_finds_what_enumeration_finds(goal: str, prices: int) -> None:
    """The cheapest cluster, or without prices the smallest, of all that reach the goal."""
    everything, asked = every_point(prices), priced_sweep(prices, goal)
    found = run_sweep(asked, workers=1)
    assert found.cheapest is (PRICES[prices] is not None)
    sizes = {cluster.label: cluster.size for cluster in asked.clusters}
    for answer in found.answers:
        met = [p for p in everything if p.sizes == answer.sizes and parse_goal(goal).is_met(p)]
        weigh = [(p.price_per_hour, *sizes[p.devices]) if PRICES[prices] else sizes[p.devices] for p in met]
        best = [p.devices for p, weight in zip(met, weigh, strict=True) if weight == min(weigh)]
        assert answer.devices == (best[0] if best else None)
    assert len(found.points) <= len(everything)


def test_clusters_that_come_later_are_not_tried() -> None:
    """The first one that reaches the goal ends the search."""
    found = run_sweep(planned("1..4xL4", {}, until="latency<=10s", dims={**TINY, "batch": 2}), workers=1)
    assert found.answers[0].devices == "1xL4" and found.answers[0].untried == 3 and len(found.points) == 1
    assert [cluster.label for cluster in order_clusters(planned("3xL4; 1..2xL4"))] == ["1xL4", "2xL4", "3xL4"]


@pytest.mark.parametrize("stop", [1, 3, 8])
def test_a_resumed_sweep_equals_an_uninterrupted_one(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points, largest sizes and prices are the same, and no point is evaluated twice."""
    file, calls = tmp_path / "sweep.json", list[dict[str, int]]()
    evaluate = PointEvaluator.evaluate

    def interrupted(self: PointEvaluator, sizes: Any, *rest: Any) -> PointRecord:
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(sizes)
        return evaluate(self, sizes, *rest)

    whole = run_sweep(planned(prices={"cuda:0": 2}), workers=1)
    monkeypatch.setattr(PointEvaluator, "evaluate", interrupted)
    part = run_sweep(planned(prices={"cuda:0": 2}), workers=1, checkpoint=file)
    assert not part.complete and len(part.points) == stop
    assert figures(load_sweep(file).points) == figures(part.points)
    stop = -1
    again = run_sweep(planned(prices={"cuda:0": 2}), workers=1, checkpoint=file, resume=True)
    assert again == whole.model_copy(update={"run": again.run}) and again.complete
    assert len(calls) == len(whole.points) == len({tuple(sizes.items()) for sizes in calls})
    assert load_sweep(file) == again


def test_an_interruption_before_the_first_point_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to show."""

    def interrupted(*_: Any) -> PointRecord:
        raise KeyboardInterrupt

    monkeypatch.setattr(PointEvaluator, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(planned(), workers=1)


def test_a_checkpoint_is_not_overwritten_and_belongs_to_one_sweep(tmp_path: Path) -> None:
    """Without resume it is an error, and with other options, too; other sizes go on from it."""
    file = tmp_path / "sweep.json"
    run_sweep(planned(vary={"batch": "1,2"}), workers=1, checkpoint=file)
    with pytest.raises(InputError, match="holds a sweep already"):
        run_sweep(planned(vary={"batch": "1,2"}), workers=1, checkpoint=file)
    with pytest.raises(ModelFileError, match="of another model, or with other options"):
        run_sweep(planned(vary={"batch": "1,2"}, objective="latency"), workers=1, checkpoint=file, resume=True)
    more = run_sweep(planned(vary={"batch": "1,2,4"}), workers=1, checkpoint=file, resume=True)
    assert [point.sizes["batch"] for point in more.points] == [1, 2, 4]
    with pytest.raises(InputError, match="no checkpoint to go on from"):
        run_sweep(planned(), workers=1, resume=True)
    file.write_text("{}")
    with pytest.raises(ModelFileError, match="names no format"):
        run_sweep(planned(), workers=1, checkpoint=file, resume=True)


def test_files_count_by_their_content(tmp_path: Path) -> None:
    """A cluster or a configuration that changed is another sweep; a model without a name has no checkpoint."""
    cluster, file = tmp_path / "c.toml", tmp_path / "sweep.json"
    cluster.write_text('[[devices]]\nmodel = "L4"\n')
    run_sweep(planned(cluster, {"batch": "1,2"}), workers=1, checkpoint=file)
    assert run_sweep(planned(cluster, {"batch": "1,2"}), workers=1, checkpoint=file, resume=True).complete
    cluster.write_text('[[devices]]\nmodel = "T4"\n')
    with pytest.raises(ModelFileError, match="of another model, or with other options"):
        run_sweep(planned(cluster, {"batch": "1,2"}), workers=1, checkpoint=file, resume=True)
    of_l4, of_t4 = (digest_of(planned([pw.read_cluster(name)])) for name in ("L4", "T4"))
    assert of_l4 != of_t4 and digest_of(planned([pw.read_cluster("T4")])) == of_t4
    (tmp_path / "config.json").write_text("{}")
    before = digest_of(planned(model=str(tmp_path)))
    (tmp_path / "config.json").write_text("{ }")
    assert digest_of(planned(model=str(tmp_path))) != before
    graph = open_model("zoo:bert-base", ProblemOptions(dims={**TINY, "batch": 4})).graph
    with pytest.raises(InputError, match="needs a model with a name"):
        run_sweep(planned("1..2xT4", {}, model=graph, dims={}), checkpoint=tmp_path / "other.json")


def test_workers_find_what_one_process_finds() -> None:
    """In another order, perhaps; the file is the same."""
    alone, together = (run_sweep(planned(["1..2xL4", SMALL]), workers=count) for count in (1, 2))
    assert together == alone


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_point_whose_worker_died_is_evaluated_once_more(deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One death of a worker leaves no trace; where the next one dies too, the point says so."""
    given, wanted, killed = Pool.give, {"batch": 32}, []

    def give(self: Pool, member: PoolMember, task: PointJob, *args: Any, **more: Any) -> None:
        given(self, member, task, *args, **more)
        if task.sizes == wanted and len(killed) < deaths:
            member.handle.kill()
            killed.append(task)

    monkeypatch.setattr(Pool, "give", give)
    found = run_sweep(planned("L4", {"batch": "16,32,64"}), workers=2)
    assert len(killed) == deaths
    statuses = {point.sizes["batch"]: point.status == "error" for point in found.points}
    assert statuses == {16: False, 32: deaths == 2, 64: False}
    assert all(point.reason for point in found.points if point.status == "error")


def test_a_worker_keeps_its_sizes() -> None:
    """Points of the sizes that it has read go first, then those of sizes that nobody reads."""
    clusters = planned("1..2xL4").clusters
    jobs = [PointJob({"batch": size}, cluster) for size in (1, 2, 4) for cluster in clusters]
    assert choose_job(jobs, {"batch": 2}, [{"batch": 1}]) == 2
    assert choose_job(jobs, {"batch": 8}, [{"batch": 1}]) == 2
    assert choose_job(jobs, None, [{"batch": 1}, {"batch": 2}, {"batch": 4}]) == 0


def test_objects_are_swept_over_clusters() -> None:
    """A graph has its sizes; it is placed on each cluster in this process."""
    graph = open_model("zoo:bert-base", ProblemOptions(dims={**TINY, "batch": 4})).graph
    found = run_sweep(planned("1..2xT4", {}, model=graph, dims={}))
    named = run_sweep(planned("1..2xT4", {}, dims={**TINY, "batch": 4}), workers=1)
    assert [point.value for point in found.points] == [point.value for point in named.points]


def test_sizes_that_the_model_cannot_have_are_points_with_a_reason() -> None:
    """Others are evaluated; if no point can be read, that is the error."""
    found = run_sweep(planned("L4", {"heads": "5,12"}), workers=1)
    assert [point.status for point in found.points] == ["error", "optimal"] or found.points[1].fits
    assert found.points[0].reason and found.points[0].fits is None
    with pytest.raises(InputError, match="depth"):
        run_sweep(planned("L4", {"depth": "5,12"}), workers=1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vary": {}}, "nothing varies"),
        ({"vary": {"batch": "1:1024:1"}}, f"these are 1,024 points, and {MAX_POINTS} are allowed; vary less"),
        ({"max_points": 0}, "the most points are 0"),
        ({"until": "speed>=3"}, "knows no 'speed'"),
        ({"until": "latency<=1s", "devices": "L4; 2xA100", "prices": {"L4": 1}}, "needs the price of A100-40GB"),
        ({"prices": {"L5": 1}}, "no cluster has a device 'L5' to price"),
        ({"prices": {"cuda:0": "cheap"}}, "the price of cuda:0 is 'cheap'"),
        ({"prices": {"cuda:0": -1}}, "the price of cuda:0 is '-1'"),
        ({"resolution": "often"}, "is not a share"),
        ({"devices": None}, "no devices are given"),
    ],
)
def test_bad_inputs_are_one_sentence(changes: dict[str, Any], words: str) -> None:
    """Before anything is evaluated, where it can be known."""
    with pytest.raises(InputError) as error:
        run_sweep(planned(**changes), workers=1)
    assert words in str(error.value) and "\n" not in str(error.value)
