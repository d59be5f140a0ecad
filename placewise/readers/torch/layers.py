"""Layers of torch.nn that correspond to one ATen call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Arguments = Callable[[Any, Any], dict[str, Any]]


def arguments_of_layer(module: nn.Module, args: Any, kwargs: Any) -> tuple[str, dict[str, Any]] | None:
    """The ATen call and its arguments for a layer with torch's own forward; None for other modules.

    Layers with parametrizations are excluded: their weight is computed, not a parameter.
    """
    entry = next(((kind, *rest) for kind, *rest in _LAYERS if isinstance(module, kind)), None)
    if entry is None:
        return None
    kind, target, arguments = entry
    plain = type(module).forward is kind.forward and not getattr(module, "parametrizations", None)
    data = args[0] if args else kwargs.get("input")
    if not plain or not hasattr(data, "shape"):
        return None
    return target, arguments(module, (data, *args[1:], *(kwargs[name] for name in ("hx",) if name in kwargs)))


def _linear(module: Any, args: Any) -> dict[str, Any]:
    return {"input": args[0], "weight": module.weight, "bias": module.bias}


def _convolution(module: Any, args: Any) -> dict[str, Any]:
    return {
        **_linear(module, args),
        "stride": list(module.stride),
        "padding": module.padding if isinstance(module.padding, str) else list(module.padding),
        "dilation": list(module.dilation),
        "groups": module.groups,
    }


def _normalization(module: Any, args: Any) -> dict[str, Any]:
    return {"input": args[0], "weight": module.weight, "bias": getattr(module, "bias", None), "eps": module.eps}


def _batch_normalization(module: Any, args: Any) -> dict[str, Any]:
    statistics = {"running_mean": module.running_mean, "running_var": module.running_var}
    training = module.training or module.running_mean is None
    return {**_normalization(module, args), **statistics, "training": training}


def _embedding(module: Any, args: Any) -> dict[str, Any]:
    return {"weight": module.weight, "indices": args[0]}


def _recurrent(module: Any, args: Any) -> dict[str, Any]:
    """Omitted initial states are zeros, which are not read."""
    states = args[1] if len(args) > 1 else None
    listed = list(states) if isinstance(states, (list, tuple)) else [states]
    return {
        "input": args[0],
        "hx": listed,
        "params": [weight for layer in module.all_weights for weight in layer],
        "num_layers": module.num_layers,
        "bidirectional": module.bidirectional,
        "batch_first": module.batch_first,
    }


_LAYERS: tuple[tuple[Any, str, Arguments], ...] = (
    (nn.Linear, "aten::linear.default", _linear),
    *((getattr(nn, f"Conv{n}d"), f"aten::conv{n}d.default", _convolution) for n in (1, 2, 3)),
    *((getattr(nn, f"ConvTranspose{n}d"), f"aten::conv_transpose{n}d.input", _convolution) for n in (1, 2, 3)),
    (nn.LayerNorm, "aten::layer_norm.default", _normalization),
    (nn.RMSNorm, "aten::rms_norm.default", _normalization),
    (nn.GroupNorm, "aten::group_norm.default", _normalization),
    *((getattr(nn, f"BatchNorm{n}d"), "aten::batch_norm.default", _batch_normalization) for n in (1, 2, 3)),
    (nn.Embedding, "aten::embedding.default", _embedding),
    (nn.LSTM, "aten::lstm.input", _recurrent),
    (nn.GRU, "aten::gru.input", _recurrent),
)
