"""What the system says of its cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewise._util import cores
from placewise._util.cores import allowed_cores, largest_cache


def test_the_largest_cache_is_that_of_the_first_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are in KiB; what cannot be read, or is not there, is passed over."""
    monkeypatch.setattr(cores, "allowed_cores", lambda: (3, 5))
    for core, sizes in ((3, ("48K", "36608K", "lots", "")), (5, ("99999K",))):
        for number, size in enumerate(sizes):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{number}"
            folder.mkdir(parents=True)
            (folder / "size").write_text(f"{size}\n")
    assert largest_cache(tmp_path) == 36608 << 10
    assert largest_cache(tmp_path / "nowhere") == 0
    assert len(allowed_cores()) > 0
