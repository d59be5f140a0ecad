"""dpl and pipedream against brute force along their lines, against dp, and against the published values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from line_optimum import best_along
from published import RECORDED, WORKLOADS, needs_workloads
from soak import examples
from strategies import problems

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Reason
from placewise.placers.base import Budget, Progress, run_placer
from placewise.placers.pipeline_dp.leaf_merging import merge_leaves
from placewise.placers.pipeline_dp.pipedream import PipeDreamPlacer, coarsen_blocks
from placewise.placers.pipeline_dp.placer import DpOptions, DpPlacer
from placewise.placers.pipeline_dp.topological_orders import sort_last_ready_first
from placewise.placers.shared.stages.stage_costs import price_stages
from placewise.readers.workload import read_workload
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract, join

PUBLISHED = RECORDED["throughput"]
BETTER = {("pipedream", "LayerGraphs/bert24_training"), ("pipedream", "LayerGraphs/gnmt_training")}
"""The published program finds masks by ids that hit other nodes there, and contracts nearly everything."""
STAGED = {"kind": "throughput", "contiguous": True, "memory_model": "sum", "transfers": "staged", "wires": False}


def value_of(problem: Problem, placer: DpPlacer | PipeDreamPlacer) -> float:
    """What the judge says of a proposal, which must keep the rules; inf if there is none."""
    proposal = run_placer(placer, problem, Budget())
    if proposal.placement is None:
        assert proposal.infeasible or proposal.notes
        return math.inf
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid
    return judged.value


@examples(20)
@given(problems(max_ops=5, **STAGED))
def test_dpl_is_the_best_split_of_its_line(problem: Problem) -> None:
    """Brute force over all splits of the same line finds nothing better, and dp is at least as good."""
    graph = contract(problem)
    value = value_of(problem, DpPlacer(DpOptions(method="line")))
    assert value == pytest.approx(best_along(problem, graph, sort_last_ready_first(problem, graph)), rel=1e-12)
    assert value >= value_of(problem, DpPlacer()) * (1 - 1e-12)


@examples(25)
@given(problems(max_ops=5, **STAGED))
def test_pipedream_is_the_best_split_of_its_line(problem: Problem) -> None:
    """The same for pipedream's components; the best pipeline of its own contraction is at least as good."""
    graph = contract(coarsen_blocks(problem))
    graph = join(graph, merge_leaves(graph, price_stages(problem, graph.component, graph.n, problem.capacity).costs))
    line = sort_last_ready_first(problem, graph, start="highest")
    value = value_of(problem, PipeDreamPlacer())
    assert value == pytest.approx(best_along(problem, graph, line), rel=1e-12)
    assert value >= value_of(coarsen_blocks(problem), DpPlacer()) * (1 - 1e-12)


@examples(30)
@given(problems(kind="throughput", max_ops=6))
def test_lines_are_topological_and_proposals_keep_the_rules(problem: Problem) -> None:
    """Whatever the links and the memory model: each edge goes forward in both lines, and proposals are valid."""
    for graph in (contract(problem), contract(coarsen_blocks(problem))):
        tail, head = graph.edges()
        for line in (sort_last_ready_first(problem, graph), sort_last_ready_first(problem, graph, start="highest")):
            assert sorted(line.tolist()) == list(range(graph.n))
            assert (line[tail] < line[head]).all()
    for placer in (DpPlacer(DpOptions(method="line")), PipeDreamPlacer()):
        value_of(problem, placer)
        assert run_placer(placer, problem, Budget()).bound is None


@examples(30)
@given(problems(kind="throughput", max_ops=7, rules=False))
def test_components_by_their_definition(problem: Problem) -> None:
    """Blocks are fused exactly if edges that no single vertex separates leave them, or a chain of such pairs."""
    seconds = np.maximum(problem.costs.op_seconds, 1.0)
    problem = problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds))
    graph, vertex = (
        problem.graph,
        [(int(b), bool(w)) for b, w in zip(problem.block, problem.graph.ops.backward, strict=True)],
    )
    arcs = {
        (vertex[producer], vertex[consumer])
        for t, producer in enumerate(graph.tensors.producer.tolist()) if producer >= 0
        for consumer in graph.consumers[graph.consumer_offsets[t] : graph.consumer_offsets[t + 1]].tolist()
        if vertex[producer] != vertex[consumer]
    }  # fmt: skip
    if not any(not one[1] and two[1] and one[0] != two[0] for one, two in arcs):
        arcs = {(one, two) for one, two in arcs if one[0] != two[0]}
    fused = {block: {block} for block in problem.block.tolist()}
    for one, two in itertools.combinations(arcs, 2):
        if all(_are_connected(arcs, one, two, without) for without in set(vertex)):
            together = fused[one[0][0]] | fused[two[0][0]]
            fused |= dict.fromkeys(together, together)
    group = coarsen_blocks(problem).graph.ops.group
    for a, b in itertools.combinations(range(problem.n_ops), 2):
        assert (group[a] == group[b]) == (problem.block[b] in fused[int(problem.block[a])])


def _are_connected(arcs: set, one: tuple, two: tuple, without: tuple) -> bool:
    """Whether two edges still hang together when a vertex is taken away."""
    reached, todo = set(), [end for end in one if end != without]
    while todo:
        at = todo.pop()
        if at not in reached:
            reached.add(at)
            todo += [y for x, y in arcs if x == at and y != without] + [x for x, y in arcs if y == at and x != without]
    return any(end in reached for end in two)


def network(edges: list[tuple[int, int]], seconds: list[float], devices: int = 2) -> Problem:
    """Ops joined by tensors that take 1 s, on equal accelerators."""
    builder = GraphBuilder()
    for op in range(len(seconds)):
        builder.add_op(f"op{op}", "Op")
        builder.add_tensor(op, nbytes=1)
    for tail, head in edges:
        builder.add_edge(tail, head)
    machines = tuple(Device(f"acc{d}") for d in range(devices))
    links = tuple(Link(*ends, 1.0) for d in machines for ends in ((d.name, HOST), (HOST, d.name)))
    transfers = np.tile([[0.0, 1.0]], (len(seconds), 1))
    costs = CostTable.given(np.tile(np.array(seconds)[:, None], (1, devices)), transfers)
    objective = Objective("throughput", memory="sum")
    return Problem(builder.build(), Cluster(machines, links), costs, objective, Constraints(contiguous=True))


def test_the_line_goes_deep() -> None:
    """Two branches from one op: one is followed to its end, the earlier op first, before the other begins."""
    problem = network([(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)], [1.0] * 6)
    order = np.argsort(sort_last_ready_first(problem, contract(problem))).tolist()
    assert order == [0, 1, 3, 2, 4, 5]


def test_residual_blocks_become_single_layers() -> None:
    """Two blocks with a shortcut each, and a tail: what an edge of a block leaves is fused, its last op is not."""
    edges = [(0, 1), (1, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 5), (5, 6)]
    groups = coarsen_blocks(network(edges, [1.0] * 7)).graph.ops.group.tolist()
    assert groups == [0, 1, 1, 2, 2, 3, 4]


def test_a_mask_for_every_layer_ties_nothing() -> None:
    """An input that takes no time and no bytes and goes to every op of a chain is passed over; a slow one is not."""
    edges = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]
    slow = network(edges, [0.0, 1.0, 1.0, 1.0])
    assert len(set(coarsen_blocks(slow).graph.ops.group.tolist())) == 2
    transfers = slow.costs.transfer_seconds.copy()
    transfers[0] = 0.0
    free = slow.with_(costs=CostTable.given(slow.costs.op_seconds, transfers))
    assert len(set(coarsen_blocks(free).graph.ops.group.tolist())) == 4


@examples(40)
@given(problems(max_ops=1, **STAGED))
def test_one_op_is_the_same_for_all(problem: Problem) -> None:
    """With one op there is one line, and dpl, pipedream and dp agree."""
    assert (
        value_of(problem, DpPlacer(DpOptions(method="line")))
        == value_of(problem, DpPlacer())
        == value_of(problem, PipeDreamPlacer())
    )


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
def test_on_chains_all_agree_with_dp(devices: int) -> None:
    """A chain has one line: dpl and pipedream reach dp's proved optimum."""
    seconds = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0]
    problem = network([(i, i + 1) for i in range(8)], seconds, devices)
    best = value_of(problem, DpPlacer())
    assert best == value_of(problem, DpPlacer(DpOptions(method="line"))) == value_of(problem, PipeDreamPlacer())


@pytest.mark.parametrize("placer", [DpPlacer(DpOptions(method="line")), PipeDreamPlacer()])
def test_no_time_and_interrupts(placer: DpPlacer | PipeDreamPlacer) -> None:
    """Without time, or when interrupted, there is no placement and the reason says why; latency is refused."""
    problem = network([(0, 1), (1, 2)], [1.0] * 3)
    assert run_placer(placer, problem, Budget(seconds=0.0)).reason is Reason.TIME_LIMIT

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    assert run_placer(placer, problem, Budget(), on_progress=interrupt).reason is Reason.INTERRUPTED
    assert "latency" in str(placer.supports(problem.with_(objective=Objective("latency"))))


@needs_workloads
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("placer", [DpPlacer(DpOptions(method="line")), PipeDreamPlacer()], ids=["dpl", "pipedream"])
def test_published_values(placer: DpPlacer | PipeDreamPlacer, name: str) -> None:
    """The published programs' max-loads to nine digits, on every workload; two of pipedream's are beaten."""
    problem = read_workload(WORKLOADS / "throughput" / f"{name}.json").problem
    assert problem is not None
    published, value = PUBLISHED[name][placer.info.name]["value"], value_of(problem, placer) * 1e3
    if (placer.info.name, name) in BETTER:
        assert value < published
    else:
        assert value == pytest.approx(published, rel=1e-9)
