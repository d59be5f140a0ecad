"""The verdict on a split, case by case, and the error that it is decided with."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.cost_error import ASSUMED, MEASURED, describe_estimates, estimate_error, expected_seconds
from placewise.model.costs import CostTable, MachineRuns
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.verdict import (
    BALANCED_SPLIT,
    EVEN_LAYERS,
    GIVEN,
    NO_TIME,
    OWN_THREADS,
    REPLICAS,
    SINGLE_DEVICE,
    Baseline,
    Decision,
    Uncertainty,
    Verdict,
    decide,
)

TWO = ("d0", "d1")
ASSUMPTION = Uncertainty(0.15, "data sheets")
SPREAD = Uncertainty(0.05, "the spread of the measured times")


def judged(
    single: float, error: Uncertainty = GIVEN, *, used: int = 2, copies: float = math.inf, **others: float
) -> Verdict:
    """The verdict on a plan of one second beside one device, copies of the model, and other splits."""
    baselines = {SINGLE_DEVICE: Baseline(single, devices=("d0",)), REPLICAS: Baseline(copies, devices=TWO)}
    baselines |= {name: Baseline(value, devices=TWO) for name, value in others.items()}
    return decide(1.0, used, TWO, baselines, error)


@pytest.mark.parametrize(
    ("single", "error", "decision"),
    [
        (1.20, ASSUMPTION, Decision.WITHIN_ERROR),
        (1.01, ASSUMPTION, Decision.WITHIN_ERROR),
        (1.22, ASSUMPTION, Decision.WORTH_IT),
        (1.06, SPREAD, Decision.WITHIN_ERROR),
        (1.08, SPREAD, Decision.WORTH_IT),
        (1.02, GIVEN, Decision.WORTH_IT),
        (1.005, GIVEN, Decision.HARDLY),
    ],
)
def test_a_gain_counts_above_the_error_of_both_figures(single: float, error: Uncertainty, decision: Decision) -> None:
    """√2 · 15 % = 21 % with assumed costs, √2 · 5 % = 7 % with this spread, nothing but 1 % where costs are given."""
    verdict = judged(single, error)
    assert (verdict.decision, verdict.over, verdict.ratio) == (decision, SINGLE_DEVICE, single)
    assert (verdict.error, verdict.source) == (error.error, error.source)
    assert ("±" in verdict.sentence) == (error is not GIVEN) and (error is GIVEN or error.source in verdict.sentence)


def test_the_sentences_of_a_gain() -> None:
    """What a user reads within the error, above it, and without any."""
    assert judged(1.2, ASSUMPTION).sentence == (
        "Within the error of the estimates (±15 % each: data sheets): 2 devices are 1.20× as fast as the best single "
        "device."
    )
    assert judged(1.5, ASSUMPTION).sentence == (
        "The split is worth it: 2 devices are 1.50× as fast as the best single device, above the error of the "
        "estimates (±15 % each: data sheets)."
    )
    assert judged(1.5).sentence == "The split is worth it: 2 devices are 1.50× as fast as the best single device."


def test_a_device_that_the_rules_add_is_no_split() -> None:
    """llama.cpp keeps the embedding on the CPU: with all layers on one card, no split is praised or blamed."""
    for single, error, end in (
        (1.0, ASSUMPTION, "; a further split gains nothing."),
        (1.004, ASSUMPTION, "; this plan on 2 gains 0.4% over one device as far as the rules allow."),
        (
            1.1,
            ASSUMPTION,
            "(±15 % each: data sheets): 2 devices are 1.10× as fast as one device as far as the rules allow.",
        ),
        (1.5, ASSUMPTION, "; this plan on 2 is 1.50× as fast as one device as far as the rules allow."),
    ):
        verdict = decide(1.0, 2, TWO, {SINGLE_DEVICE: Baseline(single, devices=TWO)}, error)
        assert verdict.sentence.startswith("The rules need more than one device") and verdict.sentence.endswith(end)
        assert (verdict.decision is Decision.WORTH_IT) == (single == 1.5)


def test_one_device_wins() -> None:
    """A plan on one device rules splits out as far as its bound does; a split that is slower is not praised."""
    assert judged(1.0, used=1).decision is Decision.SINGLE_DEVICE
    for bound, error, ruled_out in ((0.9, ASSUMPTION, True), (0.5, ASSUMPTION, False), (0.9, GIVEN, False)):
        verdict = decide(1.0, 1, TWO, {SINGLE_DEVICE: Baseline(1.0, devices=("d0",))}, error, lower_bound=bound)
        assert verdict.decision is Decision.SINGLE_DEVICE
        assert verdict.sentence.startswith("A split is not worth it") == ruled_out
        assert ruled_out or verdict.sentence.endswith(f"is open: it is at most {1 / bound:.2f}× as fast.")
    slower = judged(0.8, ASSUMPTION)
    assert (slower.decision, slower.over) == (Decision.SLOWER, SINGLE_DEVICE)
    assert slower.sentence.startswith("This plan is 25.0% slower than the single device")


def test_replicas_win_over_a_split() -> None:
    """Two copies that serve more are named first, even where the split is far above one device; the error is told."""
    clear, close = judged(1.9, ASSUMPTION, copies=1 / 1.4), judged(1.9, ASSUMPTION, copies=0.95)
    assert clear.sentence == (
        "Two copies of the model serve 1.40× as many samples as this split: copy the model instead."
    )
    assert (clear.decision, clear.over) == (close.decision, close.over) == (Decision.REPLICAS, REPLICAS)
    assert "1.05×" in close.sentence and "within the error" in close.sentence
    even = judged(1.9, copies=1.0)
    assert even.decision is Decision.REPLICAS and even.sentence.endswith("serve as many samples as this split.")


def test_a_split_must_beat_replicas_by_more_than_the_error() -> None:
    """Far above one device, but about as fast as copies: within the error; with given costs any gain counts."""
    assert (judged(1.9, ASSUMPTION, copies=1.1).decision, judged(1.9, copies=1.1).decision) == (
        Decision.WITHIN_ERROR, Decision.WORTH_IT,
    )  # fmt: skip
    assert "1.10× as fast as two copies of the model" in judged(1.9, ASSUMPTION, copies=1.1).sentence
    assert judged(1.9, ASSUMPTION, copies=1.3).decision is Decision.WORTH_IT


def test_a_plan_of_copies_is_no_split() -> None:
    """A plan that runs the whole model on every device is called copies, beside one device."""
    verdict = decide(1.0, 2, TWO, {SINGLE_DEVICE: Baseline(2.0, devices=("d0",))}, ASSUMPTION, whole=True)
    assert verdict.decision is Decision.REPLICAS
    assert verdict.sentence == "No split: 2 copies of the model serve 2.00× as many samples as the best single device."


@pytest.mark.parametrize("name", [BALANCED_SPLIT, EVEN_LAYERS, "what the target does by itself"])
def test_a_better_split_is_named(name: str) -> None:
    """A baseline of any name that keeps the rules and is faster; one that breaks a rule is not better."""
    verdict = judged(1.5, ASSUMPTION, **{name: 0.5})
    assert (verdict.decision, verdict.over) == (Decision.SLOWER, name) and f"the {name}" in verdict.sentence
    broken = {SINGLE_DEVICE: Baseline(1.5, devices=("d0",)), name: Baseline(0.5, "d1 is too small", TWO)}
    assert decide(1.0, 2, TWO, broken).decision is Decision.WORTH_IT


def test_what_fits_on_no_device_needs_a_split() -> None:
    """Whatever the error: no single device holds the model, and the reason is given."""
    verdict = decide(1.0, 2, TWO, {SINGLE_DEVICE: Baseline(math.inf, "d0 lacks 5 GiB")}, ASSUMPTION)
    assert (verdict.decision, verdict.over) == (Decision.NEEDED, "") and math.isnan(verdict.ratio)
    assert verdict.sentence == (
        "A split is needed: the model does not fit on one device (d0 lacks 5 GiB); this split over 2 devices runs it."
    )


@pytest.mark.parametrize(
    ("rule", "used", "said"),
    [
        ("memory", 2, "A split is needed: the model does not fit on one device (why); this split"),
        ("schedule", 2, "A split is needed: one device alone breaks a rule (why); this split"),
        ("support", 2, "A split is needed: no device may run every op; this split"),
        ("schedule", 1, "Nothing to compare this plan with: one device alone breaks a rule (why)."),
    ],
)
def test_only_memory_makes_a_model_too_large(rule: str, used: int, said: str) -> None:
    """Other rules are named as what they are, and a plan on one device is no split."""
    verdict = decide(1.0, used, TWO, {SINGLE_DEVICE: Baseline(math.inf, "why", rule=rule)})
    assert verdict.decision is Decision.NEEDED and verdict.sentence.startswith(said)


def test_nothing_is_worth_it_while_copies_have_no_price() -> None:
    """They may be better; a split that something else beats is slower all the same."""
    unpriced = {REPLICAS: Baseline(math.inf, NO_TIME)}
    verdict = decide(1.0, 2, TWO, {SINGLE_DEVICE: Baseline(1.5, devices=("d0",)), **unpriced})
    assert verdict.decision is Decision.NOT_MEASURED and "no time to price copies" in verdict.sentence
    assert decide(1.0, 2, TWO, {SINGLE_DEVICE: Baseline(0.5, devices=("d0",)), **unpriced}).decision is Decision.SLOWER


def test_one_usable_device_leaves_no_choice() -> None:
    """Nothing is to be decided."""
    assert decide(1.0, 1, ("d0",), {SINGLE_DEVICE: Baseline(1.0, devices=("d0",))}).decision is Decision.NO_CHOICE


def costed(sources: tuple[str, ...], *, transfers: str = "given", spread: float = 0.0, error: float = 0.0) -> Problem:
    """Op 0 of one second and op 1 of three on a device, with figures of these sources."""
    builder = GraphBuilder()
    for op in range(2):
        builder.add_op(f"op{op}", "Op")
    cluster = Cluster((Device("d0", error=error),), (Link("d0", HOST, 1.0), Link(HOST, "d0", 1.0)))
    costs = CostTable(
        np.array([[1.0], [3.0]]), np.zeros((0, len(cluster.class_bandwidth))), np.array([[0], [len(sources) - 1]]),
        sources, transfers, spread,
    )  # fmt: skip
    return Problem(builder.build(), cluster, costs)


def error_of(problem: Problem, moved: float = 0.0) -> Uncertainty:
    """The error of everything on the device, with some seconds of transfers."""
    return estimate_error(problem, [(Placement.on(0, 2), moved)])


def test_given_costs_have_no_error() -> None:
    """Published workloads and tables of the user's own are exact by definition."""
    assert error_of(costed(("given",)), 4.0) == GIVEN


def test_measured_transfers_are_as_far_off_as_measured_ops() -> None:
    """However long they take beside the ops: the error is that of both, and half of it where the links are given."""
    assert error_of(costed(("measured",), transfers="measured"), 4.0).error == pytest.approx(MEASURED)
    assert error_of(costed(("measured",), transfers="given"), 4.0).error == pytest.approx(MEASURED / 2)


def test_assumed_costs_have_the_assumed_error_unless_it_was_measured() -> None:
    """15 % for data sheets; the error of the catalogue or of a fit, where measurements were compared with it."""
    assert error_of(costed(("roofline",))).error == ASSUMED == 0.15
    assert error_of(costed(("roofline",), error=0.3)) == Uncertainty(0.3, "measured error of the devices' figures")
    assert error_of(costed(("roofline",), error=0.01)).error == MEASURED


def test_measured_costs_have_their_spread() -> None:
    """The spread that was recorded, and no less than what the judge misses with measured times."""
    assert error_of(costed(("measured",), spread=0.12)) == Uncertainty(0.12, "spread of the measured times")
    assert error_of(costed(("measured",), spread=0.01)).error == error_of(costed(("measured",))).error == MEASURED


def test_errors_are_weighted_by_seconds() -> None:
    """One second assumed and three measured: (0.15 + 3 · 0.05) / 4; four seconds of assumed transfers add theirs."""
    mixed = costed(("roofline", "measured"))
    assert error_of(mixed).error == pytest.approx((0.15 + 0.15) / 4)
    moved = mixed.with_(costs=replace(mixed.costs, transfer_source="roofline"))
    found = error_of(moved, 4.0)
    assert (found.error, found.source) == (pytest.approx((0.3 + 0.6) / 8), "assumed speeds of links")


def test_estimates_are_no_measurement() -> None:
    """Where most of the time is estimated, a sentence names the command that measures it."""
    note = describe_estimates(costed(("measured", "roofline")), Placement.on(0, 2), "--loaded")
    assert "placewise profile MODEL -d DEVICES --loaded -o FILE" in note
    for sources in (("roofline", "measured"), ("measured",), ("given",)):
        assert not describe_estimates(costed(sources), Placement.on(0, 2))


def on_cores(single: float, error: Uncertainty = GIVEN, own: float | None = None) -> Verdict:
    """The verdict on a plan of one second over two cores, beside one core and, if measured, the runtime's threads."""
    baselines = {SINGLE_DEVICE: Baseline(single, devices=("d0",))}
    baselines |= {} if own is None else {OWN_THREADS: Baseline(own, devices=TWO)}
    return decide(1.0, 2, TWO, baselines, error, cores=True)


def test_on_cores_the_threads_of_the_runtime_decide() -> None:
    """Faster than one core is not enough: the plain runtime is faster, as fast, slower, or was not measured."""
    faster = on_cores(1.6, SPREAD, own=0.64)
    assert (faster.decision, faster.over) == (Decision.OWN_THREADS, OWN_THREADS)
    assert faster.sentence == ("Do not split: the runtime's own threads on all cores are 1.56× as fast as this plan.")
    assert on_cores(1.6, SPREAD, own=1.03).decision is Decision.WITHIN_ERROR
    assert on_cores(1.6, SPREAD, own=1.2).decision is Decision.WORTH_IT
    unknown = on_cores(1.6, SPREAD)
    assert unknown.decision is Decision.NOT_MEASURED and "placewise profile" in unknown.sentence
    single = {SINGLE_DEVICE: Baseline(1.6, devices=("d0",))}
    trained = decide(1.0, 2, TWO, single, SPREAD, cores=True, trains=True)
    assert trained.decision is Decision.NOT_MEASURED and "placewise" not in trained.sentence


def test_what_chosen_plans_took_longer_is_added_to_a_split() -> None:
    """By 20 % for latency on two devices; one device ran as a whole, and streams were not run."""
    problem = costed(("measured",))
    runs = MachineRuns(own_threads=3.0, cores=2, longer=0.2, error=0.08, plans=3)
    known = problem.with_(costs=replace(problem.costs, runs=runs), objective=Objective("latency"))
    assert expected_seconds(known, 2.0, 2) == pytest.approx(2.4) and expected_seconds(known, 2.0, 1) == 2.0
    assert expected_seconds(known.with_(objective=Objective("throughput")), 2.0, 2) == 2.0
    assert error_of(known) == Uncertainty(0.08, "runs of 3 plans that these costs chose")
    vague = known.with_(costs=replace(problem.costs, runs=replace(runs, own_threads_error=0.3)))
    own = Uncertainty(0.3, "runs with the runtime's own threads")
    assert error_of(vague) == error_of(vague.with_(objective=Objective("throughput"))) == own
