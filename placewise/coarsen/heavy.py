"""Heavy edges: groups that send each other much, for the little that they compute, become one.

An edge is worth its flow over the product of both ends' seconds, so that light groups go first and groups stay of a
size. No cycle can come of it (Herrmann, Özkaya, Uçar, Kaya and Çatalyürek, SIAM J. Scientific Computing 41, 2019,
theorem 4.2): a cluster spans two adjacent levels of the graph, a level being the longest path to it, and no edge goes
from the lower level of one cluster to the upper level of another one that spans the same two.
"""

from __future__ import annotations

import numpy as np

from placewise import _native
from placewise.coarsen.quotient import Limits, Quotient
from placewise.model.columns import Floats, Ints

LEAST = 1e-140
"""Mean seconds below which nothing takes time: products of them would be 0."""


def heavy_edges(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n] of clusters along heavy edges, light groups choosing first."""
    mean = float(quotient.flow.mean()) if len(quotient.flow) else 0.0
    graph = quotient._replace(flow=quotient.flow + 1e-9 * mean + 1e-300).native()
    label: Ints = _native.cluster_heavy_edges(graph, _sizes(quotient.seconds), *limits)
    return label


def _sizes(seconds: Floats) -> Floats:
    """What groups count for [n], of which products are taken: their seconds, and no less than a tenth of the mean."""
    mean = float(seconds.mean()) if len(seconds) else 0.0
    return np.maximum(seconds, 0.1 * mean) + 1e-300 if mean > LEAST else np.ones(len(seconds))
