"""Which of Placewise's own columnar files a path holds."""

from __future__ import annotations

import json
import os
import zipfile

from placewise.files.columns import HEADER

_LARGEST_HEADER = 256 * 2**20


def format_name(path: str | os.PathLike[str]) -> str:
    """``"placewise-graph"``, ``"placewise-problem"``, ``"placewise-costs"``, or "" for any other file."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(HEADER).file_size > _LARGEST_HEADER:
                return ""
            header = json.loads(archive.read(HEADER))
    except (OSError, KeyError, ValueError, RecursionError, NotImplementedError, zipfile.BadZipFile):
        return ""
    return str(header.get("format", "")) if isinstance(header, dict) else ""
