"""Everything that a page shows, as plain JSON: numbers in seconds and bytes, columns packed, words ready to read."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewise.report.page.modules import module_tree
from placewise.report.page.opened import Opened
from placewise.report.page.packed import interned, packed, shown

VERSION = 1
"""Of the data inside a page."""


def page_data(opened: Opened) -> dict[str, Any]:
    """The data of a page; a part that cannot be made is None, and `missing` says why."""
    return {
        "version": VERSION,
        "title": shown(opened.name),
        "missing": opened.missing,
        "devices": [{"name": shown(name)} for name in opened.devices],
        "ops": _ops(opened),
        "graph": _graph(opened),
    }


def _ops(opened: Opened) -> dict[str, Any]:
    device, problem = opened.device_of, opened.problem
    found: dict[str, Any] = {"count": len(device), "device": packed(device, "i4")}
    if problem is None:
        return found | {"name": [shown(name) for name in opened.plan.assignment], "seconds": []}
    ops, seconds = problem.graph.ops, problem.costs.op_seconds[np.arange(problem.n_ops), device]
    return found | {
        "name": [shown(name) for name in ops.name],
        "kind": interned(ops.kind),
        "scope": interned(ops.scope),
        "seconds": packed(seconds, "f4"),
    }


def _graph(opened: Opened) -> dict[str, Any] | None:
    if opened.problem is None or opened.placement is None:
        return None
    return module_tree(opened.problem, opened.placement)
