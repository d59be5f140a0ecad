"""Which of Placewise's own columnar files a path holds."""

from __future__ import annotations

import os

from placewise.errors import ModelFileError
from placewise.files.columns import read_header


def format_name(path: str | os.PathLike[str]) -> str:
    """``"placewise-graph"``, ``"placewise-problem"``, ``"placewise-costs"``, or "" for any other file."""
    try:
        header = read_header(path)
    except ModelFileError:
        return ""
    name = header.get("format") if isinstance(header, dict) else None
    return name if isinstance(name, str) and name.startswith("placewise-") else ""
