"""Every command under every fault: what it leaves behind, what it says, and its exit code.

The whole matrix takes minutes and is a soak test; what stands outside it is the quick part. Files that are torn while
they are written (tests/files), signals in a search (test_interrupts.py), standard output of `devices` (test_cli.py) and
trainings that are resumed after kill −9 (tests/placers/learned, tests/training) are tested there.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import crash_runs as crash
import pytest
from cli_runs import run
from crash_runs import COMMANDS, OLD, Ended, Place, ended, left_behind, place_in, send, started, wait_for_worker

pytest.importorskip("onnx")
from onnx_files import make_node, model, saved, weight

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc and signals of POSIX")
NEEDS = {"profile": "onnxruntime", "run": "onnxruntime", "train": "torch"}
WRITERS = [name for name in COMMANDS if name != "run"]
WRITING = """
import os, signal
sync, count = os.fsync, {count}
def fsync(fd):
    if os.path.basename(os.readlink(f"/proc/self/fd/{{fd}}")).startswith(".placewise-") and os.getpid() == me:
        for _ in range(count):
            os.kill(os.getpid(), {number})
    return sync(fd)
os.fsync, me = fsync, os.getpid()
"""
"""A command that sends itself signals when the new content is in a file beside the old one."""
PLAIN = {"LANG": "C", "LC_ALL": "C"}
ENDINGS = {
    "kill −9": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of a few ops, with a name that is not ASCII, and a plan for it."""
    folder = tmp_path_factory.mktemp("größe")
    nodes = [make_node("MatMul", ["x", "w"], ["a"]), make_node("Relu", ["a"], ["b"]), make_node("Tanh", ["a"], ["c"]),
             make_node("Add", ["b", "c"], ["y"])]  # fmt: skip
    path = saved(folder, model(nodes, {"x": [8, 64]}, ["y"], [weight("w", 64, 64)]), "modèle.onnx")
    run("place", path, "-d", "cpu", "--placer", "single", "-o", folder / "plan.json", "-q")
    return path, folder / "plan.json"


@pytest.fixture
def place(tmp_path: Path, small: tuple[Path, Path], request: pytest.FixtureRequest) -> Place:
    """Where the command works; it is skipped where its library is not installed."""
    command = request.node.callspec.params.get("command", "place") if hasattr(request.node, "callspec") else "place"
    if command in NEEDS:
        pytest.importorskip(NEEDS[command])
    return place_in(tmp_path / "here", *small)


def one_sentence(done: Ended, code: int = 2) -> None:
    """An exit code, and an error in one line, without a traceback."""
    errors = [line for line in done.errors.splitlines() if line.startswith("error: ")]
    assert (done.code, len(errors)) == (code, 1) and "Traceback" not in done.errors, done


def nothing_left(place: Place, process: subprocess.Popen[str]) -> None:
    """No process, no temporary file, no shared memory, no hidden file; the output is whole."""
    assert left_behind(place, process.pid) == []
    assert crash.whole(place.out)


def succeeds(command: str, place: Place, *python: str, **surroundings: object) -> Ended:
    """The command ends well, says nothing of Python's, and leaves nothing behind but its new output."""
    with started(command, place, *python, **surroundings) as process:  # type: ignore[arg-type]
        done = ended(process)
    assert done.code == 0 and not {"Traceback", "Warning"} & set(done.errors.split()), done
    nothing_left(place, process)
    assert command == "run" or place.out.read_text(encoding="utf-8") != OLD
    return done


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[None]:
    """A file system of its own at `folder`."""
    tried = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"nothing can be mounted here: {tried.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("command", ["profile", "export"])
def test_in_strange_surroundings(place: Place, command: str) -> None:
    """``env -i LANG=C python -O -W error`` in another folder: everything as ever."""
    succeeds(command, place, "-O", "-W", "error", variables=crash.environment(place, bare=True) | PLAIN, cwd=Path("/"))


@pytest.mark.parametrize(("command", "ending"), [("profile", "kill −9"), ("place", "SIGINT twice")])
def test_ended_as_it_works(place: Place, command: str, ending: str) -> None:
    """As soon as a worker runs."""
    ended_at_work(place, command, ending)


def ended_at_work(place: Place, command: str, ending: str, later: float = 0.0) -> None:
    with started(command, place) as process:
        wait_for_worker(process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(later)
        send(process, ENDINGS[ending])
        done = ended(process)
    after_the_end(place, command, ending, done, process)


def after_the_end(place: Place, command: str, ending: str, done: Ended, process: subprocess.Popen[str]) -> None:
    """What must hold when a command was ended: after kill −9, once the next command is through."""
    assert "Traceback" not in done.errors, done
    assert crash.whole(place.out)
    if ending == "kill −9":
        assert done.code in (-signal.SIGKILL, 0), done
        assert [left for left in left_behind(place, process.pid) if not left.startswith("/")] == []
        succeeds(command, place)
        return
    assert done.code in (0, 130, -ENDINGS[ending][0]), done  # the last: when it was done, as Python ended
    if done.code == 130:
        assert done.errors.strip().splitlines()[-1] == "interrupted", done
    nothing_left(place, process)


def ended_as_it_writes(place: Place, command: str, ending: str) -> None:
    numbers = ENDINGS[ending]
    with started(command, place, script=WRITING.format(number=int(numbers[0]), count=len(numbers))) as process:
        done = ended(process)
    after_the_end(place, command, ending, done, process)


def test_killed_as_it_writes(place: Place) -> None:
    """kill −9 when the new plan is beside the old one: the old one stays, and the next command clears up."""
    ended_as_it_writes(place, "place", "kill −9")


def on_a_full_disk(place: Place, command: str) -> None:
    with small_disk(place.out.parent, "size=64k"):
        place.out.write_text(OLD)
        with place.out.with_name("filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"x" * 4096)
        with started(command, place) as process:
            done = ended(process)
        one_sentence(done)
        assert place.out.read_text() == OLD and left_behind(place, process.pid) == []
        assert {path.name for path in place.out.parent.rglob("*")} - {"kept"} == {"filler", "out.json"}


def in_a_read_only_folder(place: Place, command: str) -> None:
    with small_disk(place.out.parent, "size=64k"):
        place.out.write_text(OLD)
        subprocess.run(["mount", "-o", "remount,ro", place.out.parent], check=True)
        with started(command, place) as process:
            done = ended(process)
        one_sentence(done)
        assert place.out.read_text() == OLD and left_behind(place, process.pid) == []


def test_on_a_full_disk(place: Place) -> None:
    """64 KiB, all of them taken: one sentence, and the old page is whole."""
    on_a_full_disk(place, "export")


def test_two_at_once(place: Place) -> None:
    """Two measurements with one output and one cache: both end well, and both files are whole."""
    pytest.importorskip("onnxruntime")
    two_at_once(place, "profile")


def two_at_once(place: Place, command: str) -> None:
    with started(command, place) as one, started(command, place) as other:
        done = [ended(one), ended(other)]
    assert [each.code for each in done] == [0, 0] and "Traceback" not in done[0].errors + done[1].errors, done
    for process in (one, other):
        nothing_left(place, process)
    for path in (place.folder / "cache").rglob("*.json"):
        json.loads(path.read_text())


def standard_output(place: Place, command: str, redirected: str) -> None:
    """One sentence and exit code 2 where it cannot be written; 0, or 141 in silence, where nobody reads on."""
    words = [sys.executable, "-m", "placewise", *place.words(command)]
    line = f'"$@" {redirected}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", line, "bash", *words], capture_output=True, text=True, env=crash.environment(place),
        cwd=place.folder, timeout=crash.LONGEST,
    )  # fmt: skip
    if redirected.startswith("|"):
        assert done.returncode in (0, 141) and "Traceback" not in done.stderr and "error" not in done.stderr, done
    else:
        one_sentence(Ended(done.returncode, done.stdout, done.stderr))
    assert crash.whole(place.out)
    assert crash.files_left(place) == []


@pytest.mark.soak
class TestMatrix:
    """Every command under every fault."""

    @pytest.mark.parametrize("later", [0.0, 0.8])
    @pytest.mark.parametrize("ending", ENDINGS)
    @pytest.mark.parametrize("command", COMMANDS)
    def test_ended_as_it_works(self, place: Place, command: str, ending: str, later: float) -> None:
        """As soon as a worker runs, or some time after."""
        ended_at_work(place, command, ending, later)

    @pytest.mark.parametrize("ending", ENDINGS)
    @pytest.mark.parametrize("command", WRITERS)
    def test_ended_as_it_writes(self, place: Place, command: str, ending: str) -> None:
        """When the new content is beside the old one."""
        ended_as_it_writes(place, command, ending)

    @pytest.mark.parametrize("command", WRITERS)
    def test_on_a_full_disk(self, place: Place, command: str) -> None:
        """One sentence, and the old file is whole."""
        on_a_full_disk(place, command)

    @pytest.mark.parametrize("command", WRITERS)
    def test_in_a_read_only_folder(self, place: Place, command: str) -> None:
        """One sentence, and the old file is whole."""
        in_a_read_only_folder(place, command)

    @pytest.mark.parametrize("redirected", ["| head -n 1", ">&-", "> /dev/full"])
    @pytest.mark.parametrize("command", COMMANDS)
    def test_standard_output(self, place: Place, command: str, redirected: str) -> None:
        """Closed, full, or read to its first line only."""
        standard_output(place, command, redirected)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_two_at_once(self, place: Place, command: str) -> None:
        """With one output and one cache."""
        two_at_once(place, command)

    @pytest.mark.parametrize("command", ["place", "compare", "run", "train", "report"])
    def test_in_strange_surroundings(self, place: Place, command: str) -> None:
        """The commands that the quick test leaves out."""
        variables = crash.environment(place, bare=True) | PLAIN
        succeeds(command, place, "-O", "-W", "error", variables=variables, cwd=Path("/"))
