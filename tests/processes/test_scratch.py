"""Folders for a moment: gone in the end, also when the process that made them was killed."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import tempfile

import pytest

from placewise.processes.scratch import remove_stale_folders, scratch_folder

fcntl = pytest.importorskip("fcntl")
MAKER = "from placewise.processes.scratch import ScratchFolder; s = ScratchFolder(); print(s.path, flush=True); input()"


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_folder_goes_with_its_context(tmp_path):
    """With all that is in it, also after an error; nobody's sweep takes it before."""
    with pytest.raises(ZeroDivisionError), scratch_folder() as folder:
        (folder / "file").write_text("x")
        remove_stale_folders()
        assert list(tmp_path.iterdir()) == [folder] and (folder / "file").exists()
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_locked(tmp_path, monkeypatch):
    """As on some network file systems: there is one folder all the same, and it goes with its context."""

    def refuse(*args):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    made = []
    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **more: made.append(0) or (len(made) < 5 and mkdtemp(**more)))
    with scratch_folder() as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_swept(tmp_path):
    """While it lives its folder stays; the next sweep after a kill -9 removes it, and nothing of anybody else."""
    (tmp_path / "placewise-of-the-user").mkdir()
    ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", MAKER], **ends) as maker:
        path = maker.stdout.readline().strip()
        remove_stale_folders()
        assert path in map(str, tmp_path.iterdir())
        maker.send_signal(signal.SIGKILL)
    remove_stale_folders()
    assert [left.name for left in tmp_path.iterdir()] == ["placewise-of-the-user"]
