"""Resource locks: processes that share a resource run one after another, others side by side."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import pytest

from placewise.errors import RunError
from placewise.processes.resource_locks import lock_resources


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder for the locks of a test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_shared_resources_are_used_one_after_another():
    """The second lock is taken when the first is released; a lock of another resource need not wait."""
    said, waiting = [], threading.Event()

    def other() -> None:
        waiting.set()
        with lock_resources("core-1", "core-2"):
            said.append("second")

    thread = threading.Thread(target=other)
    with lock_resources("core-0", "core-1", "core-1"):
        thread.start()
        waiting.wait()
        with lock_resources("core-3"):
            thread.join(0.2)
            said.append("first")
    thread.join()
    assert said == ["first", "second"]


def test_a_lock_is_released_when_its_process_is_killed(folder):
    """SIGKILL releases it, and the lock file is private."""
    code = (
        "import os, signal\nfrom placewise.processes.resource_locks import lock_resources\n"
        "with lock_resources('core-0'):\n os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], env={"TMPDIR": str(folder)}, check=False).returncode == -9
    with lock_resources("core-0"):
        made = [*folder.rglob("*")]
        assert len(made) == 2 and not any(path.stat().st_mode & 0o077 for path in made)
    assert not [*folder.iterdir()]


def test_where_nothing_can_be_locked(monkeypatch):
    """As on some network file systems: one sentence."""

    def refuse(*args):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(RunError, match=r"cannot lock the file .*: set TMPDIR"), lock_resources("core-0"):
        pass


def test_a_lock_whose_file_was_removed_is_taken_again(folder):
    """Each removes the file that the others wait for: never two at once, and no file is left."""
    inside, most = 0, 0

    def turn() -> None:
        nonlocal inside, most
        for _ in range(40):
            with lock_resources("core-0"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=turn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1 and not [*folder.iterdir()]


@pytest.mark.parametrize("planted", ["a link", "a file", "open to all"])
def test_a_folder_that_others_may_write_is_refused(folder, planted):
    """Whoever guesses its name can neither lead the locks elsewhere nor put files into it."""
    name, elsewhere = folder / f"placewise-locks-{os.getuid()}", folder / "elsewhere"
    elsewhere.mkdir(0o700)
    if planted == "a link":
        name.symlink_to(elsewhere)
    elif planted == "a file":
        name.touch()
    else:
        name.mkdir()
        name.chmod(0o777)
    with pytest.raises(RunError, match="not private to this user: remove it, or set TMPDIR"), lock_resources("core-0"):
        pass
    assert not [*elsewhere.iterdir()]


def test_no_folder_is_an_error(monkeypatch):
    """In one sentence."""
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(RunError, match="cannot make the folder"), lock_resources("core-0"):
        pass
