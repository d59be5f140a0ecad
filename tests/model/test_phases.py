"""Phases: parts of a model that run one after the other, each so often per sample (prefill, then tokens)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

from placewise._util.units import format_number
from placewise.catalog import read_cluster
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.costing.roofline import cost_table
from placewise.errors import GraphError
from placewise.model.builder import GraphBuilder
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import tokens_per_second
from placewise.model.tables import Phase
from placewise.reporting.sentences import phase_line
from placewise.simulate import evaluate, judge_placement

LAYERS = 4


def generator(tokens: int, *, only: int | None = None, joined: bool = True, cache: int = 0) -> Graph:
    """Four layers that run over a prompt of 64 and then over one token at a time; `only` keeps one phase."""
    builder = GraphBuilder()
    weights = [builder.add_weight(f"w{layer}", shape=(512, 512), dtype="float32") for layer in range(LAYERS)]
    last = builder.add_tensor(-1, shape=(64, 512), dtype="float32", name="prompt")
    for phase, (name, length) in enumerate((("prefill", 64), ("decode", 1))):
        if only not in (None, phase):
            continue
        if phase and only is None:
            start = builder.add_op("embed", "Gather", phase=1)
            if joined:
                builder.add_edge(last, start)
            last = builder.add_tensor(start, shape=(1, 512), dtype="float32")
        for layer in range(LAYERS):
            state, number = cache if phase else 0, 0 if only is not None else phase
            op = builder.add_op(f"{name}.{layer}", "MatMul", group=layer, phase=number, state_bytes=state)
            builder.add_edge(last, op)
            builder.use_weight(weights[layer], op)
            last = builder.add_tensor(op, shape=(length, 512), dtype="float32")
    phases = (Phase("prefill"), Phase("decode", tokens)) if only is None else ()
    return builder.build(phases=phases)


def problem_of(graph: Graph, objective: Objective, devices: str = "2xL4,cpu") -> Problem:
    cluster = read_cluster(devices)
    contiguous = objective.kind == "throughput"
    return Problem(graph, cluster, cost_table(graph, cluster), objective, Constraints(contiguous=contiguous))


def test_costs_count_every_repetition() -> None:
    """Ops and tensors of a phase cost as often as it runs; what comes from an earlier phase, as often as it is read."""
    cluster = read_cluster("2xL4,cpu")
    once, often = (cost_table(generator(tokens), cluster) for tokens in (1, 10))
    graph = generator(10)
    decode = graph.ops.phase == 1
    np.testing.assert_allclose(often.op_seconds[decode], 10 * once.op_seconds[decode])
    np.testing.assert_array_equal(often.op_seconds[~decode], once.op_seconds[~decode])
    np.testing.assert_allclose(often.transfer_seconds, once.transfer_seconds * graph.tensor_repeats[:, None])
    assert graph.op_repeats.tolist() == [10 if late else 1 for late in decode]
    assert graph.tensor_repeats[graph.tensors.producer >= 0].tolist() == [1, 1, 1, 10, 10, 10, 10, 10, 10]


@examples(30)
@given(st.lists(st.integers(0, 2), min_size=LAYERS, max_size=LAYERS), st.sampled_from(["operator", "sequential"]))
def test_latency_is_prefill_and_tokens(homes: list[int], execution: str) -> None:
    """The makespan of both phases is that of the prompt and ten times that of a token, wherever the layers are."""
    objective = Objective("latency", execution=execution)  # type: ignore[arg-type]
    both = problem_of(generator(10), objective)
    where = {f"{name}.{layer}": home for layer, home in enumerate(homes) for name in ("prefill", "decode")}
    where["embed"] = where["decode.0"]

    def seconds(problem: Problem) -> float:
        device = np.array([where[name] for name in problem.graph.ops.name], np.int32)
        return float(evaluate(problem, device[None])[0])

    prompt, token = (problem_of(generator(1, only=phase), objective) for phase in (0, 1))
    alone = seconds(problem_of(generator(1, joined=True), objective))
    assert seconds(both) == pytest.approx(seconds(prompt) + 10 * (alone - seconds(prompt)), rel=1e-9)
    assert alone >= seconds(token)


def test_every_phase_goes_through_the_whole_pipeline() -> None:
    """Stages are contiguous although the second phase starts anew on the first stage; without phases they are not."""
    problem = problem_of(generator(10), Objective("throughput"))
    device = [0 if name[-1] in "01" or name == "embed" else 1 for name in problem.graph.ops.name]
    placement = Placement(np.array(device, np.int32))
    result = place(problem, "dp")
    assert result.placement is not None
    assert result.status.outcome == "optimal"
    assert result.value <= evaluate(problem, placement.device[None])[0]
    assert len(set(result.placement.device.tolist())) > 1
    flat = replace(problem.graph, phases=(), ops=replace(problem.graph.ops, phase=np.zeros(problem.n_ops, np.int8)))
    chained = place(problem.with_(graph=flat), "dp")
    assert chained.placement is not None
    assert len(set(chained.placement.device.tolist())) == 1


def test_the_digest_knows_phases() -> None:
    """More tokens make another graph; no phases at all make a third."""
    assert len({generator(1).digest(), generator(2).digest(), generator(1, only=0).digest()}) == 3


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ((Phase("a"), Phase("a")), "two phases have one name"),
        ((Phase("a"),), "belong to no phase"),
        ((), "belong to no phase"),
    ],
)
def test_phases_must_fit(phases: tuple[Phase, ...], message: str) -> None:
    """Names are distinct, and every op has a phase that exists."""
    builder = GraphBuilder()
    builder.add_op("x", "Relu", phase=1)
    with pytest.raises(GraphError, match=message):
        builder.build(phases=phases)


def test_no_edge_leads_back() -> None:
    """What a later phase makes cannot be read by an earlier one."""
    builder = GraphBuilder()
    late, early = builder.add_op("late", "Relu", phase=1), builder.add_op("early", "Relu")
    builder.add_edge(builder.add_tensor(late, nbytes=4), early)
    with pytest.raises(GraphError, match="of the later phase 'decode'"):
        builder.build(phases=(Phase("prefill"), Phase("decode")))


@pytest.mark.parametrize(("name", "repeats"), [("", 1), ("x", 0), ("x", 1 << 40)])
def test_a_phase_has_a_name_and_runs(name: str, repeats: int) -> None:
    """A phase without a name, or that never runs, is refused."""
    with pytest.raises(GraphError, match="is repeated"):
        Phase(name, repeats)


@pytest.mark.parametrize("execution", ["operator", "subgraph", "sequential"])
def test_the_judge_tells_what_a_run_takes(execution: str) -> None:
    """Prefill plus ten times a token is the value, and a token takes as long whether one or ten are made."""
    objective = Objective("latency", execution=execution)  # type: ignore[arg-type]
    one, ten = (problem_of(generator(tokens), objective) for tokens in (1, 10))
    device = np.array([int(name[-1] in "23") for name in ten.graph.ops.name], np.int32)
    once, often = (judge_placement(problem, Placement(device)) for problem in (one, ten))
    assert [(use.phase, use.repeats) for use in often.phases] == [("prefill", 1), ("decode", 10)]
    assert often.phases[0].seconds + 10 * often.phases[1].seconds == pytest.approx(often.value)
    assert [use.seconds for use in once.phases] == pytest.approx([use.seconds for use in often.phases], rel=1e-9)
    assert "10 × decode of" in phase_line(ten, often)
    throughput = problem_of(generator(10), Objective("throughput"))
    judged = judge_placement(throughput, Placement(device))
    assert (
        phase_line(throughput, judged) == f"in a full pipeline ({format_number(10 / judged.value)} tokens per second)"
    )
    assert tokens_per_second(throughput, judged) == pytest.approx(10 / judged.value)
    assert tokens_per_second(ten, often) == pytest.approx(1 / often.phases[1].seconds)
    other = replace(throughput, graph=replace(throughput.graph, phases=(Phase("warm"), Phase("steps", 10))))
    assert tokens_per_second(other, judged) is None


def test_caches_of_samples_in_flight_are_told() -> None:
    """A pipeline of tokens says whose caches its memory counts; latency has one sample, and no cache needs none."""
    graph = generator(10, cache=64)
    (note,) = (text for text in build(graph, "2xL4,cpu", ProblemOptions("throughput")).warnings if "caches" in text)
    assert "sequences=3" in note
    assert not any("caches" in text for text in build(graph, "2xL4,cpu", ProblemOptions("latency")).warnings)
    assert not any("caches" in text for text in build(generator(10), "2xL4,cpu", ProblemOptions("throughput")).warnings)
