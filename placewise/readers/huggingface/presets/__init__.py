"""Published configurations by name: files in the form of `config.json`, reduced to what determines shapes."""

from __future__ import annotations

import difflib
from pathlib import Path

from placewise.errors import ModelFileError

PREFIX = "hf:"
_HERE = Path(__file__).parent


def preset_names() -> tuple[str, ...]:
    """All presets, in alphabetical order."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.json")))


def preset_path(name: str) -> Path:
    """The configuration of a preset; raises ModelFileError for an unknown name."""
    known = preset_names()
    if name not in known:
        near = difflib.get_close_matches(name[:100], known, n=3, cutoff=0.5) or known
        raise ModelFileError(
            f"there is no preset {name[:100]!r}", where=f"{PREFIX}{name[:100]}", remedy=f"choose {', '.join(near)}"
        )
    return _HERE / f"{name}.json"
