"""Real architectures: products as torch's own counter counts them, every kind priced, fused attention or not."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="the models under test are PyTorch's")
transformers = pytest.importorskip("transformers", reason="the models under test are those of transformers")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_models import Sequence, UNet, products  # noqa: E402

from placewise.costing.work import work_of  # noqa: E402
from placewise.readers.torch.module import trace_module  # noqa: E402
from placewise.transform.fold import fold  # noqa: E402

IDS = torch.zeros(2, 12, dtype=torch.long)
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 50}
GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 50}
TEXT = {"input_ids": IDS, "use_cache": False}
IMAGE = {"pixel_values": torch.zeros(2, 3, 32, 32)}
MODELS = {
    "bert": ("BertModel", SMALL, {"input_ids": IDS}),
    "gpt2": ("GPT2LMHeadModel", GPT2, TEXT),
    "llama": ("LlamaForCausalLM", {**SMALL, "num_key_value_heads": 2, "vocab_size": 50}, TEXT),
    "vit": ("ViTModel", {**SMALL, "image_size": 32, "patch_size": 8}, IMAGE),
    "t5": ("T5ForConditionalGeneration", T5, {**TEXT, "decoder_input_ids": IDS}),
    "resnet": ("ResNetModel", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2]}, IMAGE),
}


def model_of(name, attention):
    model, options, inputs = MODELS[name]
    model = getattr(transformers, model)
    options = options if name == "resnet" else {**options, "attn_implementation": attention}
    torch.manual_seed(0)
    return model(model.config_class(**options)).eval(), inputs


def counted(module, inputs):
    """What torch counts, with attention and LSTM in pieces: its counter does not know the CPU's fused kernels."""
    with warnings.catch_warnings(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        warnings.simplefilter("ignore")
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            module(**inputs)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        (name, attention)
        for name in MODELS
        for attention in ("sdpa", "eager")
        if (name, attention) != ("resnet", "eager")
    ],
)
def test_products_of_real_models(name, attention):
    """Products, convolutions and attention equal torch's count exactly; nothing is unpriced, and ops have paths."""
    module, inputs = model_of(name, attention)
    reading = trace_module(module, (), inputs)
    assert reading.warnings == ()
    graph = fold(reading.graph)
    assert products(graph) == counted(module, inputs)
    assert work_of(graph).warnings == ()
    assert ("Attention" in set(graph.ops.kind)) == (attention == "sdpa" and name != "resnet")
    paths = {name for name, _ in module.named_modules()}
    assert set(graph.ops.scope) <= paths
    assert set(reading.graph.weights.name) >= {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize(("module", "inputs"), [(UNet(), {"x": torch.zeros(2, 3, 16, 16)}), (Sequence(), {"ids": IDS})])
def test_products_of_other_layers(module, inputs):
    """Transposed and grouped convolutions, and a bidirectional LSTM of two layers."""
    graph = fold(trace_module(module.eval(), (), inputs).graph)
    assert products(graph) == counted(module, inputs)


def test_a_meta_model_is_the_same_graph():
    """GPT-2 on the meta device folds to the graph of the model with data."""
    model, options, inputs = MODELS["gpt2"]
    model = getattr(transformers, model)
    with torch.device("meta"):
        module = model(model.config_class(**options)).eval()
    meta, real = (fold(trace_module(item, (), inputs).graph) for item in (module, model_of("gpt2", "sdpa")[0]))
    assert meta.digest() == real.digest()
    assert meta.ops.name == real.ops.name
    assert meta.weights.name == real.weights.name
    assert meta.weights.storage.tolist() == real.weights.storage.tolist()
