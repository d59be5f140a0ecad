"""Defaults of llama.cpp that sizes and times both depend on (common/common.h)."""

from __future__ import annotations

MICRO_BATCH = 512
"""Tokens of a micro-batch (``-ub``)."""
