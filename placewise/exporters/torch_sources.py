"""Modules of Placewise that need PyTorch at most, as copies that exported scripts stand on."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from placewise.errors import ExportError

_OWN_IMPORT = re.compile(r"^from placewise(?:\.\w+)*\.(\w+) import", re.MULTILINE)


def read_copy(module: str) -> str:
    """The source of a module, importing others of the package from its own folder.

    Raises ExportError where the module is not installed.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ExportError(f"the module {module} is not installed")
    return _OWN_IMPORT.sub(r"from \1 import", Path(spec.origin).read_text(encoding="utf-8"))
