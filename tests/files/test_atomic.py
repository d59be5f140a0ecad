"""Files are written whole or not at all."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from placewise.errors import OutputError
from placewise.files.atomic import atomic_write


def test_content_replaces_what_was_there(tmp_path: Path) -> None:
    """The new content takes the old one's place, and nothing else stays in the directory."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    with atomic_write(path) as file:
        file.write("größer → new\n")
        assert path.read_text() == "old"
    assert path.read_bytes() == "größer → new\n".encode()
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("failure", [RuntimeError("ours"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_file_whole(tmp_path: Path, failure: BaseException) -> None:
    """Whatever interrupts the writing, the old content stays and the temporary file goes."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    with pytest.raises(type(failure)), atomic_write(path) as file:
        file.write("half")
        raise failure
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    """When the system refuses more bytes, the error is ours, the old file whole and the rest removed."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    refused = pytest.raises(OutputError, match=r"plan\.json: cannot be written; file too large")
    with refused, limited_file_size(4096), atomic_write(path, "wb") as file:
        file.write(b"x" * 100_000)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_devices_are_written_directly() -> None:
    """A device file is never replaced: /dev/full refuses the bytes and stays what it is."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with (
        pytest.raises(OutputError, match="no space left on device; free some space"),
        atomic_write("/dev/full") as file,
    ):
        file.write("x")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_bad_places_are_named_with_a_remedy(tmp_path: Path) -> None:
    """A missing directory, a directory, and a file where a directory should be."""
    (tmp_path / "file").write_text("")
    for path, remedy in (
        (tmp_path / "no" / "plan.json", "make the directory"),
        (tmp_path, "is a directory"),
        (tmp_path / "file" / "plan.json", "make the directory"),
    ):
        with pytest.raises(OutputError, match=remedy) as caught, atomic_write(path) as file:
            file.write("x")
        assert str(path) in str(caught.value)
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_only_a_full_disk_asks_for_space() -> None:
    """Where files cannot be made at all, room would not help."""
    if not Path("/proc/self").exists():
        pytest.skip("this system has no /proc")
    with pytest.raises(OutputError, match="choose another path") as caught, atomic_write("/proc/x.json") as file:
        file.write("x")
    assert "space" not in str(caught.value)


def test_a_place_without_permission(tmp_path: Path) -> None:
    """A directory that may not be written to is named with a remedy."""
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="choose a writable directory"), atomic_write(tmp_path / "x"):
        pass


def test_links_are_followed_and_modes_kept(tmp_path: Path) -> None:
    """A symbolic link stays one; its target gets the content and keeps its permissions."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    with atomic_write(link) as file:
        file.write("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
