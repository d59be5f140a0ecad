"""Module paths without what tracers add to them."""

from __future__ import annotations

NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"  # what torch.export writes where it lost the path


def clean_scope(path: str) -> str:
    """``model.layers.3`` for ``L['self'].model.layers.3@1``; "" for the model itself and where there is no path."""
    return "" if path == NO_MODULE else path.removeprefix("L['self']").lstrip(".").partition("@")[0]
