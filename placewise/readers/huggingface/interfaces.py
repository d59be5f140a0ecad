"""The functions that transformers calls for attention, masks, experts and normalization during a trace."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from placewise.errors import ModelFileError
from placewise.readers.huggingface.operators import NAMESPACE, operators

_CHOICES = ("_attn_implementation_internal", "_experts_implementation_internal")
"""Attributes of a configuration that select implementations; the public setters reject names of our own."""

_ROOT_MEAN_SQUARE = ("RMSNorm", "T5LayerNorm", "Llama4TextL2Norm")
"""Suffixes of class names that normalize by the root mean square, and may scale."""
_DENSE_MIXTURE = "Llama4TextMoe"
"""The mixture that computes all experts of every token in transformers, times 0 for those that a token is not sent to.
Other runtimes send tokens to the experts that they choose, and so do all other mixtures of transformers."""


def use_operators(model: nn.Module, *, masks: bool = False) -> None:
    """Replace every attention, mixture of experts and RMS normalization in `model` by one operator, as runtimes do.

    Attention itself accounts for causal masks and windows, so no mask is built unless `masks` requests it, for models
    that compute their attention themselves.
    """
    from transformers.integrations.moe import ExpertsInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_utils import AttentionInterface

    name = f"{NAMESPACE}_masks" if masks else NAMESPACE
    AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(name, eager_mask if masks else _no_mask)
    ExpertsInterface.register(name, _experts)
    for module in model.modules():
        if (
            type(module).__name__.endswith(_ROOT_MEAN_SQUARE)
            and "forward" not in vars(module)
            and _at_most_scales(module)
        ):
            _fuse_normalization(module)
        if type(module).__name__ == _DENSE_MIXTURE:
            _route_mixture(module)
        config: Any = getattr(module, "config", None)
        for choice in _CHOICES:
            if hasattr(config, choice):
                setattr(config, choice, name)


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Masks, position biases and learned sinks are additional arguments; a window limits the keys of a query."""
    del module
    heads, shared = query.shape[1], key.shape[1]
    if shared < 1 or heads % shared:
        raise ModelFileError(
            f"{heads} attention heads cannot share the keys and values of {shared}",
            remedy="check num_attention_heads and num_key_value_heads",
        )
    more = [attention_mask, *(kwargs.get(name) for name in ("position_bias", "s_aux"))]
    window = kwargs.get("sliding_window")
    tensors = [tensor for tensor in more if isinstance(tensor, torch.Tensor)]
    return operators().attention(query, key, value, tensors, int(window or 0)), None


def _at_most_scales(module: nn.Module) -> bool:
    return [name for name, _ in module.named_parameters()] in ([], ["weight"])


def _fuse_normalization(module: Any) -> None:
    """Scales by the weight, if there is one; variants that add 1 to it cost the same."""
    scales = "weight" in dict(module.named_parameters())

    def normalized(hidden: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(hidden, hidden.shape[-1:], module.weight if scales else None)

    module.forward = normalized


def _route_mixture(mixture: Any) -> None:
    """Sends every token to the experts that its router chooses."""
    router, experts = mixture.router, mixture.experts
    if not 0 < mixture.top_k <= router.out_features:
        raise ModelFileError(
            f"{mixture.top_k} of {router.out_features} experts cannot be chosen for a token",
            remedy="check num_experts_per_tok and num_local_experts",
        )

    def routed(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = hidden.reshape(-1, mixture.hidden_dim)
        logits = router(hidden)
        scores, index = torch.topk(logits, mixture.top_k, dim=1)
        return mixture.shared_expert(hidden) + experts(hidden, index, scores.sigmoid()), logits

    router.forward = partial(nn.Linear.forward, router)
    experts.forward = partial(_experts, experts)
    mixture.forward = routed


def _no_mask(*args: Any, **kwargs: Any) -> None:
    del args, kwargs


def _experts(module: nn.Module, hidden: torch.Tensor, index: torch.Tensor, scores: torch.Tensor) -> Any:
    """All parameters of the module belong to its experts, one slice of the first dimension each."""
    if index.shape[-1] < 1:
        raise ModelFileError("no expert is selected for a token", remedy="check num_experts_per_tok")
    weights = list(module.parameters())
    return operators().experts(hidden, index, scores, weights, int(weights[0].shape[0]))
