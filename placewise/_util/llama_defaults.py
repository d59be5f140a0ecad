"""Defaults of llama.cpp that sizes and times both depend on (common/common.h)."""

from __future__ import annotations

MICRO_BATCH = 512
"""Tokens of a micro-batch (``-ub``)."""
UBATCH = "ubatch"
"""What the dimension of a run is called that changes them."""
BATCH = 2048
"""Tokens of a batch (``-b``), which a micro-batch does not exceed."""
OFFLOADED_ROWS = 32
"""Rows from which an op with weights in host memory runs on an accelerator (``GGML_OP_OFFLOAD_MIN_BATCH``)."""
