"""The roles of ops in a training step: which backward ops make gradients of weights only."""

from __future__ import annotations

import numpy as np
import pytest

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.problem import Objective, Problem
from placewise.simulate.step.orders import BACKWARD, FORWARD, WEIGHT
from placewise.simulate.step.roles import UPDATE, op_roles

OPS = {
    "forward": ("MatMul", 0, ("kernel", "wide"), FORWARD),
    "kernel": ("MatMul", 0, ("update",), WEIGHT),
    "turned": ("Transpose", 0, ("kernel2",), WEIGHT),  # for the gradient of a weight of the same group
    "far": ("Transpose", 5, ("kernel2",), BACKWARD),  # of another
    "kernel2": ("MatMul", 0, ("update", "sum"), WEIGHT),
    "elsewhere": ("MatMul", 1, ("sum",), WEIGHT),  # a part of a weight's gradient
    "mixed": ("MatMul", 0, ("update", "wide"), BACKWARD),
    "wide": ("MatMul", 0, (), BACKWARD),
    "sum": ("Add", 0, ("update",), WEIGHT),
    "update": ("optimizer::Adam", 0, ("renew",), UPDATE),
    "renew": ("optimizer::Renew", 0, (), UPDATE),
}
"""Kind, group, readers and role of each op; all but the first are backward."""


@pytest.mark.parametrize("updates", [True, False])
def test_backward_ops_that_only_make_gradients_of_weights(updates: bool) -> None:
    """Through chains of a group and through sums, to updates; without updates every backward op is one."""
    names = [name for name, (kind, *_) in OPS.items() if updates or not kind.startswith("optimizer::")]
    builder = GraphBuilder()
    for name in names:
        kind, group, _, role = OPS[name]
        builder.add_op(name, kind, backward=role != FORWARD, group=group)
    for op, name in enumerate(names):
        for reader in OPS[name][2]:
            if reader in names:
                builder.add_edge(builder.add_tensor(op, nbytes=1), names.index(reader))
    graph, cluster = builder.build(), Cluster((Device("cpu", kind="cpu"),))
    costs = CostTable.given(np.ones((graph.n_ops, 1)), np.zeros((graph.n_tensors, 1)))
    roles = op_roles(Problem(graph, cluster, costs, Objective("step")))
    wanted = [OPS[name][3] if updates or name == "forward" else BACKWARD for name in names]
    assert dict(zip(names, roles.tolist(), strict=True)) == dict(zip(names, wanted, strict=True))
