"""What to do where nothing fits: the precision in which the weights of the model would."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from placewise.core.place import place
from placewise.errors import PlacewiseError
from placewise.model.cost_error import DENSE, MOVED, OFFLOADED, REREAD, REWRITTEN
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.model.result import Outcome, Result
from placewise.placers.base import Budget
from placewise.targets.place_for import place_for
from placewise.transform.precision import PRECISIONS, cast_floats, quantize_weights

SMALLER = ("fp16", "int8", "int4")
"""The precisions that are tried, the widest first."""
SECONDS = 2.0
"""For each of them."""
ESTIMATED = frozenset({"roofline", "assumed", REWRITTEN, DENSE, REREAD, MOVED, OFFLOADED})
"""Sources of costs that follow a change of precision."""


def advise_precision(result: Result) -> Result:
    """The result; if it proves that memory is too small, `unmet` ends with the widest precision that would fit.

    Nothing is added for training graphs, graphs that are quantized, and costs that were given or measured.
    """
    problem = result.problem
    known = problem.graph.source is not None and ESTIMATED.issuperset(problem.costs.sources)
    if result.status.outcome is not Outcome.INFEASIBLE or " bytes)" not in result.unmet or not known:
        return result
    for name in SMALLER:
        with suppress(PlacewiseError):
            graph = _convert(problem.graph, name)
            shrinks = graph.weights.bytes.sum() < problem.graph.weights.bytes.sum()
            if shrinks and _fits(problem.with_(graph=graph), result.target):
                return replace(result, unmet=f"{result.unmet}; with --precision {name} it fits")
    return result


def _convert(graph: Graph, name: str) -> Graph:
    if graph.ops.backward.any():
        return graph
    cast = cast_floats(graph, name)
    return quantize_weights(cast, name) if PRECISIONS[name].matrices else cast


def _fits(problem: Problem, target: str) -> bool:
    budget = Budget(seconds=SECONDS)
    if target:
        return place_for(problem, target, budget=budget, advise=False, compare=False).placement is not None
    return place(problem, "pack", budget, compare=False).placement is not None
