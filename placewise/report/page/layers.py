"""The numbered modules that each device runs, in words: "layer.0 – 3"."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby

import numpy as np

from placewise.model.graph import Graph
from placewise.model.placement import Placement

_NUMBERED = re.compile(r"(.*?[^./\d][./]?)(\d{1,9})(?=[./]|$)")
"""The first part of a scope that is a number, or ends in one, with all that stands before it."""
ENOUGH, MOST_RANGES, MOST_SPLIT = 0.5, 3, 3
"""The share of all ops that numbered modules must hold; so many ranges of a device are told; so many modules of a
device may run on others as well.
"""


def layers_of(graph: Graph, placement: Placement, n_devices: int) -> list[str]:
    """Which layers each device runs, "" where that cannot be said shortly.

    Layers are the numbered modules of the name that holds the most ops; a layer is a device's if it runs most of the
    ops in it.
    """
    found = [_NUMBERED.match(scope) for scope in graph.ops.scope.values]
    size = np.bincount(graph.ops.scope.codes, minlength=len(found))
    words = Counter[str]()
    for match, count in zip(found, size.tolist(), strict=True):
        if match is not None:
            words[match[1]] += count
    word, held = words.most_common(1)[0] if words else ("", 0)
    if not held or held < ENOUGH * graph.n_ops:
        return [""] * n_devices
    number = np.array([int(match[2]) if match is not None and match[1] == word else -1 for match in found], np.int64)
    layer = number[graph.ops.scope.codes]
    inside = layer >= 0
    layers, which = np.unique(layer[inside], return_inverse=True)
    ops = np.zeros((len(layers), n_devices), np.int64)
    np.add.at(ops, (which, placement.device[inside]), 1)
    if ((ops > 0).sum(axis=1) > 1).sum() > MOST_SPLIT * n_devices:
        return [""] * n_devices
    home = ops.argmax(axis=1)
    return [_said(word, layers[home == d].tolist()) for d in range(n_devices)]


def _said(word: str, numbers: list[int]) -> str:
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    if not runs or len(runs) > MOST_RANGES:
        return ""
    last = ".".join(re.split(r"[./](?=[^./])", word)[-2:])
    return f"{last}{', '.join(str(run[0]) if len(run) == 1 else f'{run[0]} – {run[-1]}' for run in runs)}"
