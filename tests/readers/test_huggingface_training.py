"""Configurations as training graphs: what generates reads a text once and answers for every token of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.costing.work import work_of
from placewise.errors import ModelFileError

pytest.importorskip("transformers", reason="the extra 'transformers' is not installed")

DECODER = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
    "tie_word_embeddings": False,
}  # fmt: skip
TRANSLATOR = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16, "d_ff": 128,
    "num_layers": 2, "num_heads": 4, "vocab_size": 320, "feed_forward_proj": "relu",
}  # fmt: skip
ADAM = 8
"""Bytes of state per parameter: two moments of 32 bits."""


@pytest.mark.parametrize("config", [DECODER, TRANSLATOR], ids=["decoder", "translator"])
def test_a_model_that_generates_is_trained(tmp_path: Path, config: dict[str, Any]) -> None:
    """No phases and no cache; every matrix works three times, every parameter has its optimizer state."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    reading = open_model(path, ProblemOptions(graph="training", dims={"batch": 2, "length": 24}, dtype="float32"))
    graph = reading.graph
    assert not graph.phases and graph.ops.backward.any()
    weights = graph.weights
    shapes = {name: weights.shape[w] for w, name in enumerate(weights.name) if name.endswith(".weight")}
    assert graph.ops.state_bytes.sum() == ADAM * sum(math.prod(shape) for shape in shapes.values())
    tables = ("embed", "shared", "relative_attention_bias")
    matrices = [shape for name, shape in shapes.items() if len(shape) == 2 and not any(part in name for part in tables)]
    work = work_of(graph)
    products = float(work.flops[work.op_class.equals("matmul")].sum())
    assert products >= 3 * 2 * 24 * 2 * sum(a * b for a, b in matrices)
    with pytest.raises(ModelFileError, match="no dimension 'tokens'"):
        open_model(path, ProblemOptions(graph="training", dims={"tokens": 3}))
