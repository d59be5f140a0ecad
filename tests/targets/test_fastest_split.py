"""Exports of plans for no target: the fastest split of a target takes the place of a nearest one that loses much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from export_models import on, stack_graph, stack_problem

from placewise.core.place import place
from placewise.exporters.writing import describe_projection, export_placement
from placewise.model.builder import GraphBuilder
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Reason
from placewise.simulate import judge_placement
from placewise.targets import fastest_split
from placewise.targets.fastest_split import LAYERED, describe_execution, export_fastest, find_faster
from placewise.targets.kept import MOST_LAYERS, Kept, describe_kept, list_kept, seconds_after
from placewise.targets.place_for import place_for
from placewise.targets.relays import judge_on_target

SEQUENTIAL = Objective(execution="sequential")


def slow_host(memory: float = 4.0, objective: Objective = SEQUENTIAL) -> Problem:
    """Four layers of an attention and an MLP on two GPUs of a few bytes, and a CPU with a tenth of their speed."""
    problem = stack_problem(stack_graph(4), memory=memory, objective=objective)
    table = problem.costs.op_seconds.copy()
    table[:, 2] *= 10
    return problem.with_(costs=type(problem.costs).given(table, problem.costs.transfer_seconds))


def on_the_host(problem: Problem) -> Placement:
    """All MLPs, the embedding and the head on the CPU, which is no split of layers."""
    return on(problem, {f"layers.{layer}.mlp": "cpu" for layer in range(4)} | {"embed": "cpu", "head": "cpu"})


def test_the_fastest_split_takes_the_place_of_a_slow_one() -> None:
    """MLPs on the CPU are no split of layers; the nearest one has all there, the fastest fills the GPUs."""
    problem = slow_host()
    placement = on_the_host(problem)
    nearest = export_placement(problem, placement, "llama.cpp")
    made = export_fastest(problem, placement, "llama.cpp")
    best = place_for(problem, "llama.cpp")
    assert best.status.outcome.value == "optimal" and made.said.value == best.value < nearest.said.value
    assert made.said.valid and made.projected and made.fastest and made.asked.value == nearest.asked.value
    assert made.moved == int((made.exported.placement.device != placement.device).sum())
    words = describe_projection(made, problem.n_ops)
    assert words.startswith("llama.cpp cannot express anything but") and "in the fastest placement that it can" in words


def test_a_split_that_keeps_the_rules_takes_the_place_of_one_that_does_not() -> None:
    """A plan of layers on the CPU, with more on one GPU than it may hold: the nearest split is as heavy there."""
    problem = slow_host(memory=8.0)
    heavy = on(problem, {"layers.0.attn": "cpu"})
    nearest, made = export_placement(problem, heavy, "vllm"), export_fastest(problem, heavy, "vllm")
    assert not nearest.said.valid and made.said.valid and made.said.value == place_for(problem, "vllm").value


def test_a_near_split_stays() -> None:
    """What the target expresses, or loses little on, is not searched again; nor is what is no split of layers."""
    problem = slow_host(memory=float("inf"))
    whole = on(problem, {})
    assert export_fastest(problem, whole, "vllm").exported.placement == whole
    near = export_placement(problem, on(problem, {"layers.3.mlp": "cuda:1"}), "vllm")
    assert near.projected and not export_fastest(problem, on(problem, {"layers.3.mlp": "cuda:1"}), "vllm").fastest
    assert find_faster(problem, whole, "onnx", near.exported.placement) is None


@pytest.mark.parametrize("memory", [1.0, 2.0])
def test_where_nothing_fits_the_nearest_is_kept(memory: float) -> None:
    """Its violations are what the user reads."""
    problem = slow_host(memory=memory)
    made = export_fastest(problem, on(problem, {"layers.1.mlp": "cuda:1"}), "vllm")
    assert not made.fastest and not made.said.valid


def test_what_targets_keep_is_what_an_export_writes() -> None:
    """The loss that `place` prints is that of `export`; a gain that no export keeps is called that."""
    problem = slow_host()
    placement = on_the_host(problem)
    result = replace(place(problem, "single"), placement=placement, judgement=judge_placement(problem, placement))
    kept = {one.target: one for one in list_kept(result)}
    assert kept["llama.cpp"].loss == export_fastest(problem, placement, "llama.cpp").loss and kept["llama.cpp"].gains
    roomy = slow_host(memory=float("inf"), objective=Objective())
    costs = roomy.costs.op_seconds.copy()
    costs[1::2, 0], costs[2::2, 1] = 4.0, 4.0
    roomy = roomy.with_(costs=type(roomy.costs).given(costs, roomy.costs.transfer_seconds))
    free = place(roomy, "etf")
    assert free.value < free.baselines["best single device"][1].value
    assert describe_kept(list_kept(free)).startswith("No export of it is faster than one device. Exported to ")


def test_longer_stacks_than_models_have_are_not_projected() -> None:
    """A split of hundreds of layers takes seconds to find, after a search that has kept to its limit."""
    kept = [list_kept(place(stack_problem(stack_graph(n), cpu=False), "single")) for n in (4, MOST_LAYERS + 1)]
    assert {one.target for one in kept[0]} >= LAYERED - {"llama.cpp"} and kept[1] == ()


def test_after_a_search_that_took_its_time_little_more_is_taken() -> None:
    """A twentieth of its seconds, at least half a second, at most three; all three where it ended before."""
    result = place(slow_host(memory=float("inf")), "single")
    late = replace(result, status=replace(result.status, reason=Reason.TIME_LIMIT))
    assert [seconds_after(replace(late, seconds=seconds)) for seconds in (1.0, 20.0, 600.0)] == [0.5, 1.0, 3.0]
    assert seconds_after(replace(result, seconds=1.0)) == 3.0


def test_without_time_every_target_has_its_nearest_split() -> None:
    """What a target keeps is told in any case; a search may only find something faster."""
    problem = slow_host()
    placement = on_the_host(problem)
    result = replace(place(problem, "single"), placement=placement, judgement=judge_placement(problem, placement))
    nearest = {one.target: one for one in list_kept(result, 0.0)}
    kept = {one.target: one for one in list_kept(result)}
    assert nearest.keys() == kept.keys() >= LAYERED - {"llama.cpp"}
    assert all(kept[target].loss <= one.loss for target, one in nearest.items() if one.valid)
    assert nearest["llama.cpp"].loss > kept["llama.cpp"].loss


def test_a_search_that_was_cut_short_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more time; one that came to its end is not."""
    problem = slow_host()
    placement = on_the_host(problem)
    nearest, asked, clock = export_placement(problem, placement, "vllm").exported.placement, [], iter(range(100))

    def search(problem: Problem, start: Placement, target: str, seconds: float) -> None:
        asked.append(seconds)

    monkeypatch.setattr(fastest_split, "_search", search)
    monkeypatch.setattr(fastest_split, "perf_counter", lambda: float(next(clock)))  # a search takes a second
    for seconds in (0.5, 0.25, 1.0, 2.0, 3.0):
        find_faster(problem, placement, "vllm", nearest, seconds)
    assert asked == [0.5, 1.0, 2.0]


def test_a_search_is_recommended_only_where_an_export_loses_something() -> None:
    """What is lost by a plan on one device, by copies that do not overlap, no search gains back."""
    assert describe_kept([Kept("vllm", 0.006, True)]) == "Exported to vllm: 0.6% slower"
    assert describe_kept([Kept("vllm", 0.02, True)]).endswith(
        "2.0% slower (place --for a target searches what it can run)"
    )


def test_what_runs_one_piece_after_another_is_priced_so() -> None:
    """Two branches on two devices take one second beside each other, and two after each other: then nothing is kept."""
    builder = GraphBuilder()
    given = builder.add_tensor(-1, shape=(1,), dtype="int8", name="x")
    for branch in range(2):
        op = builder.add_op(f"op{branch}", "MatMul", scope=f"layers.{branch}.mlp")
        builder.add_edge(given, op)
        builder.add_tensor(op, shape=(1,), dtype="int8", name=f"y{branch}", output=True)
    problem = stack_problem(builder.build(), cpu=False, objective=Objective())
    both = on(problem, {"layers.1.mlp": "cuda:1"})
    made = export_placement(problem, both, "dot")
    assert made.said.value == 1 and describe_execution(made) == ""
    assert (
        judge_on_target(problem, both, "deepspeed").value == 2
        and judge_on_target(problem, both, "tensorflow").value == 1
    )
    words = describe_execution(export_placement(problem, both, "deepspeed"))
    assert "run so, the plan takes 2 s instead of 1 s (place --for deepspeed" in words
    kept = list_kept(replace(place(problem, "etf"), placement=both, judgement=judge_placement(problem, both)))
    assert {one.target: (one.loss, one.gains) for one in kept}["deepspeed"] == (1.0, False)


def test_a_search_without_comparison_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive answers are for people: a search for the placement alone asks for none, and finds the same."""
    problem = slow_host()
    compared = place_for(problem, "llama.cpp")
    alone = place_for(problem, "llama.cpp", compare=False)
    assert compared.baselines and not alone.baselines
    assert alone.placement == compared.placement and alone.bound == compared.bound

    def refuse(*_: object) -> None:
        raise AssertionError("naive answers were asked for")

    monkeypatch.setattr("placewise.core.place.collect_baselines", refuse)
    placement = on_the_host(problem)
    nearest = export_placement(problem, placement, "llama.cpp").exported.placement
    assert find_faster(problem, placement, "llama.cpp", nearest) is not None
