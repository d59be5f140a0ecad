"""The value that placers choose by: the judge's where a batch of devices cannot say what a placement decides."""

from __future__ import annotations

import numpy as np
import pytest
from toy_problems import chains

from placewise.model.placement import Placement
from placewise.placers.shared.objective_value import objective_value
from placewise.simulate import Evaluator, judge_placement


@pytest.mark.parametrize(("execution", "decided"), [("subgraph", "call"), ("operator", "order")])
def test_calls_and_orders_are_priced_by_the_judge(execution: str, decided: str) -> None:
    """Two chains on one accelerator, another call or order for each op: another value than without, and the judge's."""
    problem = chains(2, 3, execution)
    device = np.arange(problem.n_ops, dtype=np.int32) % 2
    numbers = np.arange(problem.n_ops, dtype=np.int32)[:: 1 if decided == "call" else -1].copy()
    placement = Placement(device, **{decided: numbers})
    price = Evaluator(problem)
    worth = objective_value(problem, placement, price)
    assert worth == judge_placement(problem, placement).value != float(price(device)[0])
    assert objective_value(problem, Placement(device), price) == float(price(device)[0])


def test_measurements_ignore_calls() -> None:
    """A price that is measured knows devices only: it is asked for placements with calls too."""
    problem = chains(2, 3, "subgraph")
    device = np.zeros(problem.n_ops, np.int32)
    placement = Placement(device, call=np.arange(problem.n_ops, dtype=np.int32))
    assert objective_value(problem, placement, lambda rows: np.full(len(rows), 7.0)) == 7.0
