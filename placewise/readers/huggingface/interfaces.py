"""What transformers calls for attention, masks and experts while a model is traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from placewise.readers.huggingface.operators import NAMESPACE, operators

_CHOICES = ("_attn_implementation_internal", "_experts_implementation_internal")
"""Where a configuration says what is called: the public setters check against lists of their own."""


def use_operators(model: nn.Module) -> None:
    """Let every attention and every mixture of experts in `model` be one operator; causal masks are its own matter."""
    from transformers.integrations.moe import ExpertsInterface
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAMESPACE, _attention)
    AttentionMaskInterface.register(NAMESPACE, _no_mask)
    ExpertsInterface.register(NAMESPACE, _experts)
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        for choice in _CHOICES:
            if hasattr(config, choice):
                setattr(config, choice, NAMESPACE)


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """A mask, a bias on positions and learned sinks are further arguments; a window bounds the keys of a query."""
    del module
    more = [attention_mask, *(kwargs.get(name) for name in ("position_bias", "s_aux"))]
    window = kwargs.get("sliding_window")
    tensors = [tensor for tensor in more if isinstance(tensor, torch.Tensor)]
    return operators().attention(query, key, value, tensors, int(window or 0)), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    del args, kwargs


def _experts(module: nn.Module, hidden: torch.Tensor, index: torch.Tensor, scores: torch.Tensor) -> Any:
    """All parameters of the module belong to its experts, one slice of their first dimension each."""
    weights = list(module.parameters())
    return operators().experts(hidden, index, scores, weights, int(weights[0].shape[0]))
