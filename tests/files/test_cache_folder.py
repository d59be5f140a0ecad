"""The user's cache: private, bounded, emptied at will, and never needed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cli_runs import run

import placewise as pw
from placewise.files.cache_folder import GRAPHS, cache_folder, clear_cache, measure_cache, open_cache, remove_oldest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLACEWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fill(folder: Path, *sizes: int) -> list[Path]:
    """Files of these sizes, the first used least recently."""
    files = [folder / f"{number}.npz" for number in range(len(sizes))]
    for age, (path, size) in enumerate(zip(files, sizes, strict=True)):
        path.write_bytes(b"x" * size)
        os.utime(path, (1000 + age, 1000 + age))
    return files


def test_only_the_user_reads_the_cache() -> None:
    """The folder is made for its owner alone, and one that others may enter is closed to them."""
    folder = open_cache(GRAPHS)
    assert folder is not None and stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    folder.parent.chmod(0o777)
    assert open_cache(GRAPHS) == folder and stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another user may have written is not read."""
    assert open_cache(GRAPHS) is not None
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert open_cache(GRAPHS) is None


def test_nothing_of_somebody_else_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emptying the cache leaves a folder alone that another user made where ours should be."""
    folder = open_cache(GRAPHS)
    assert folder is not None
    fill(folder, 400)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert clear_cache() == 0 and pw.cache_info().bytes == 0 and len([*folder.iterdir()]) == 1


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can make what belongs to others")
def test_a_link_that_somebody_else_made_is_not_followed(tmp_path: Path) -> None:
    """It may lead to a folder of this user: that keeps its files and its mode."""
    papers = tmp_path / "papers"
    (papers / GRAPHS).mkdir(parents=True)
    papers.chmod(0o755)
    kept = papers / GRAPHS / "thesis.npz"
    kept.touch()
    (tmp_path / "cache").mkdir()
    link = tmp_path / "cache" / "placewise"
    link.symlink_to(papers)
    os.chown(link, 4711, 4711, follow_symlinks=False)
    assert open_cache(GRAPHS) is None and clear_cache() == 0
    assert kept.exists() and stat.S_IMODE(papers.stat().st_mode) == 0o755


@pytest.mark.parametrize("place", ["relative", "a file"])
def test_a_place_that_cannot_be_is_no_cache(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative XDG_CACHE_HOME is invalid by its specification; a file holds no folder."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", "cache" if place == "relative" else str(tmp_path / "file"))
    assert open_cache(GRAPHS) is None and clear_cache() == 0 and not any(usage.files for usage in measure_cache())


def test_the_environment_switches_the_cache_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """By PLACEWISE_NO_CACHE, unless it is empty or 0."""
    for value, is_on in (("1", False), ("yes", False), ("0", True), ("", True)):
        monkeypatch.setenv("PLACEWISE_NO_CACHE", value)
        assert (open_cache(GRAPHS) is not None) is is_on


def test_what_was_not_used_for_longest_goes_first() -> None:
    """Until the limit is kept; a file that is being written stays."""
    folder = open_cache(GRAPHS)
    assert folder is not None
    oldest, old, new = fill(folder, 400, 300, 200)
    hidden = folder / ".placewise-0.tmp"
    hidden.write_bytes(b"x" * 1000)
    remove_oldest(folder, 500)
    assert not oldest.exists() and old.exists() and new.exists() and hidden.exists()
    remove_oldest(folder, 0)
    assert [*folder.iterdir()] == [hidden]


def test_the_command_shows_and_empties_the_cache() -> None:
    """`placewise cache` and Python give place and size; `--clear` removes files, and nothing beside them."""
    folder = open_cache(GRAPHS)
    assert folder is not None
    fill(folder, 2048, 1024)
    own = folder.parent / "notes.txt"
    own.touch()
    assert "graphs" in (text := run("cache").stdout) and "3 KiB" in text and str(cache_folder()) in text
    assert pw.cache_info().bytes == 3072 and pw.cache_info().folder == folder.parent
    assert "3 KiB" in run("cache", "--clear").stdout
    assert pw.cache_info().bytes == 0 and own.exists() and pw.clear_cache() == 0
