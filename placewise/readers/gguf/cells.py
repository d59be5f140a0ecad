"""Positions of llama.cpp's KV caches (src/llama-context.cpp, src/llama-kv-cache-iswa.cpp)."""

from __future__ import annotations

from placewise._util.llama_defaults import MICRO_BATCH

MULTIPLE = 256
"""The positions of a cache come in multiples of this."""


def count_cells(context: int, window: int = 0, micro_batch: int = MICRO_BATCH) -> int:
    """Positions of the cache of a layer, for one sequence.

    A layer with a sliding `window` (0: none) has room for it and for a micro-batch.

    >>> count_cells(8000), count_cells(8000, 1024)
    (8192, 1536)
    """
    cells = _pad(context)
    return min(cells, _pad(window + micro_batch)) if window else cells


def _pad(positions: int) -> int:
    return -(-positions // MULTIPLE) * MULTIPLE
