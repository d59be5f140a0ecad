"""Modules of Placewise that need PyTorch only, as copies that exported scripts stand on."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from placewise.errors import ExportError

_PACKAGE = "placewise.readers.torch"


def read_copy(name: str) -> str:
    """The source of a module of `placewise.readers.torch`, importing its neighbours from its own folder.

    Raises ExportError where the module is not installed.
    """
    spec = find_spec(f"{_PACKAGE}.{name}")
    if spec is None or spec.origin is None:
        raise ExportError(f"the module {name} is not installed")
    return re.sub(rf"from {re.escape(_PACKAGE)}\.", "from ", Path(spec.origin).read_text(encoding="utf-8"))
