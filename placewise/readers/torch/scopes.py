"""Module paths without what tracers add to them."""

from __future__ import annotations

NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"  # what torch.export writes where it lost the path


def class_of(name: str) -> str:
    """``BertLayer`` for ``transformers.models.bert.modeling_bert.BertLayer@1``."""
    return name.partition("@")[0].rpartition(".")[2]


def clean_scope(path: str) -> str:
    """``model.layers.3`` for ``L['self'].model.layers.3@1``; "" for the model itself and where there is no path."""
    return "" if path == NO_MODULE else path.removeprefix("L['self']").lstrip(".").partition("@")[0]
