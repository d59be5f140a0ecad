"""A Ray cluster of several nodes on this machine, for tests that kill its workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from locations import SEARCH_PATH

LONGEST = 240
"""Seconds after which a cluster gives up, so that no test waits for one that does not come."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_worker_register_timeout_seconds": "200",
    "PYTHONPATH": SEARCH_PATH,
}
SYSTEM = {"health_check_period_ms": 1000, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 3}


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"Ray took more than {LONGEST} s")


@contextmanager
def three_nodes() -> Iterator[Any]:
    """A head without processors, and two nodes with one each."""
    import ray
    from ray.cluster_utils import Cluster

    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        made = Cluster()
        try:
            room = {"object_store_memory": 80 << 20}
            made.add_node(num_cpus=0, include_dashboard=False, _system_config=SYSTEM, **room)
            made.add_node(num_cpus=1, **room)
            made.add_node(num_cpus=1, **room)
            yield made
        finally:
            signal.alarm(0)
            ray.shutdown()
            made.shutdown()
