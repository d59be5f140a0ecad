"""Trace equal layers once: repeated layers leave a mark, which `expand_repeats` replaces by a copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placewise.readers.huggingface.operators import operators

_IGNORED_ATTRIBUTES = frozenset(("layer_idx", "layer_id", "training"))
"""Attributes in which equal layers may differ."""


@dataclass(slots=True)
class RepeatTracker:
    """Decides, while a model runs, which layers are traced and which are marked as repeats.

    `bodies[n]` is the module path of the layer traced as body n. `known` maps the signature of a layer and its
    arguments to the body, its results, and the result tensors behind its mark.
    """

    bodies: list[str] = field(default_factory=list)
    known: dict[Any, tuple[int, Any, list[torch.Tensor]]] = field(default_factory=dict)

    def reset(self) -> None:
        """Start again before the model runs once more."""
        self.bodies.clear()
        self.known.clear()

    def watch(self, model: nn.Module) -> None:
        """Make every layer of every module list of `model` mark itself as a repeat of an equal layer."""
        for path, layer in _layers(model):
            _LayerHook(self, path, layer, _sign_layer(layer)).install()


@dataclass(slots=True)
class _LayerHook:
    repeats: RepeatTracker
    path: str
    layer: nn.Module
    likeness: Any

    def install(self) -> None:
        forward = self.layer.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            return self.run(forward, args, kwargs)

        self.layer.forward = watched

    def run(self, forward: Any, args: Any, kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [leaves[place] for place in places]
        key = (self.likeness, repr(structure), tuple(map(_sign_leaf, leaves)))
        repeats, known = self.repeats, self.repeats.known.get(key)
        if known is not None:
            body, shape, results = known
            return pytree.tree_unflatten(
                _replace_tensors(shape[0], operators().again(tensors, results, body)), shape[1]
            )
        body = len(repeats.bodies)
        repeats.bodies.append(self.path)
        for place, tensor in zip(places, operators().enter(tensors, body), strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        outputs, shape = pytree.tree_flatten(forward(*args, **kwargs))
        results = operators().leave([leaf for leaf in outputs if isinstance(leaf, torch.Tensor)], body)
        repeats.known[key] = (body, (outputs, shape), results)
        return pytree.tree_unflatten(_replace_tensors(outputs, results), shape)


def _replace_tensors(leaves: list[Any], tensors: list[torch.Tensor]) -> list[Any]:
    fresh = iter(tensors)
    return [next(fresh) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 1:
            for name, layer in module.named_children():
                if id(layer) not in seen and next(layer.parameters(), None) is not None:
                    seen.add(id(layer))
                    yield f"{path}.{name}", layer


def _sign_layer(layer: nn.Module) -> Any:
    """What equal layers have in common: classes, shapes, and plain attributes of all their modules."""
    rows: list[tuple[Any, ...]] = []
    for path, module in layer.named_modules():
        plain = tuple(
            (name, value)
            for name, value in sorted(vars(module).items())
            if name not in _IGNORED_ATTRIBUTES
            and not name.startswith("_")
            and isinstance(value, (bool, int, float, str, type(None)))
        )
        rows.append((path, type(module), plain))
    for tensors in (layer.named_parameters(), layer.named_buffers()):
        rows += [(path, tuple(tensor.shape), tensor.dtype) for path, tensor in tensors]
    return tuple(rows)


def _sign_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (tuple(leaf.shape), leaf.dtype)
    return leaf if isinstance(leaf, (bool, int, float, str, type(None))) else type(leaf)
