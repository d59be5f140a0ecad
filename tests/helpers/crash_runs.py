"""Commands in processes of their own, hit by faults, and what they leave behind."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

from locations import ROOT

COMMANDS: Mapping[str, str] = MappingProxyType({
    "place": "place {model} -d 2xV100-16GB,cpu --objective throughput --time-limit 5s -o {out}",
    "compare": "compare {model} -d 2xV100-16GB,cpu --placers balanced,single --objective latency -o {out}",
    "sweep": "sweep {model} -d 1..4xV100-16GB --objective latency --workers 2 --time-limit 1s -o {out}",
    "profile": "profile {model} -d cpu --runtime onnxruntime --repeats 3 -o {out}",
    "run": "run {plan} --rounds 1 --measure-time 1s",
    "train": "train {model} -d 2xV100-16GB,cpu --objective latency --policy colocrl --updates 2 "
             "--controllers 1 --checkpoint {kept} -o {out}",
    "export": "export {plan} --to trace -o {out}",
    "report": "report {plan} -o {out}",
})  # fmt: skip
"""Every command that writes files or starts processes; `run` writes none."""
OLD = "old content\n"
TORCH = f"torchinductor_{getpass.getuser()}"
"""PyTorch's own cache folder of a user, which it makes in the folder for temporary files when it is imported."""
LONGEST = 120.0
"""Seconds that a command may take on a busy machine."""
PRIVATE = 'mount --bind "$0" /dev/shm && exec "$@"'
"""Shared memory of its own for a command, in a mount namespace."""


class Place(NamedTuple):
    """Where a command works: everything that it can write is in `folder`."""

    folder: Path
    model: Path
    plan: Path
    out: Path

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def shared(self) -> Path:
        return self.folder / "shm"

    def words(self, command: str) -> list[str]:
        paths = {"model": self.model, "plan": self.plan, "out": self.out, "kept": self.out.with_name("kept")}
        return [
            word.format_map({name: str(path) for name, path in paths.items()}) for word in COMMANDS[command].split()
        ]


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    errors: str


def place_in(folder: Path, model: Path, plan: Path) -> Place:
    """A place with an old output file."""
    made = Place(folder, model, plan, folder / "target" / "out.json")
    for needed in (made.temporary, made.shared, made.out.parent):
        needed.mkdir(parents=True)
    made.out.write_text(OLD)
    return made


def can_mount() -> bool:
    """Whether this process may mount in a namespace of its own, as root mostly may."""
    tried = subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True)
    return tried.returncode == 0


MOUNTS = shutil.which("unshare") is not None and can_mount()


def environment(place: Place, *, bare: bool = False) -> dict[str, str]:
    """The variables of a command; `bare`: none that it can do without, as after ``env -i``."""
    ours = {"PYTHONPATH": str(ROOT), "TMPDIR": str(place.temporary)}
    cache = {"XDG_CACHE_HOME": str(place.folder / "cache"), "PLACEWISE_NO_CACHE": "0"}
    return ours if bare else {**os.environ, **ours, **cache, "NO_COLOR": "1"}


@contextmanager
def started(
    command: str,
    place: Place,
    *python: str,
    script: str = "",
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: int | IO[str] = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    """A command in a session of its own. `python` are options of the interpreter, `script` goes before the command."""
    way = ["-c", f"{script}\nfrom placewise.cli import main\nmain()"] if script else ["-m", "placewise"]
    argv = [sys.executable, *python, *way, *place.words(command)]
    if MOUNTS:
        argv = ["unshare", "-m", "sh", "-c", PRIVATE, str(place.shared), *argv]
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd or place.folder,
        env=environment(place) if variables is None else dict(variables),
        errors="replace",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end of a command."""
    out, errors = process.communicate(timeout=LONGEST)
    return Ended(process.returncode, out or "", errors)


def alive_in(session: int) -> list[str]:
    """The processes of a session that run, by command line."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX" and int(fields[3]) == session:
                found.append((stat.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def workers_of(pid: int) -> list[str]:
    """The worker processes of a command, by command line."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = [Path(f"/proc/{child}/cmdline").read_text() for child in children]
    except OSError:
        return []
    return [line for line in lines if "placewise.processes.child" in line]


def wait_for_worker(process: subprocess.Popen[str]) -> None:
    """Until a command has a worker process, or has ended."""
    until = time.monotonic() + LONGEST
    while process.poll() is None and not workers_of(process.pid) and time.monotonic() < until:
        time.sleep(0.005)


def send(process: subprocess.Popen[str], numbers: tuple[signal.Signals, ...], between: float = 0.05) -> None:
    """Send signals: those of the keyboard to everyone in the session, as a terminal does, the others to the command."""
    for count, number in enumerate(numbers):
        time.sleep(between if count else 0.0)
        if process.poll() is None:
            to_all = number is signal.SIGINT
            (os.killpg if to_all else os.kill)(process.pid, number)


def left_behind(place: Place, session: int, within: float = 60.0) -> list[str]:
    """What a command has left: processes, shared memory, temporary files, hidden files beside its output."""
    until = time.monotonic() + within
    while (running := alive_in(session)) and time.monotonic() < until:
        time.sleep(0.05)
    return [*running, *map(str, files_left(place))]


def files_left(place: Place) -> list[Path]:
    """Temporary files, shared memory, and hidden files beside the output."""
    found = [*place.temporary.rglob("*"), *place.shared.iterdir(), *place.out.parent.rglob(".placewise-*")]
    return [path for path in found if path.relative_to(place.folder).parts[:2] != ("tmp", TORCH)]


def whole(path: Path) -> bool:
    """Whether an output file has all of its old content, or all of a new one."""
    text = path.read_text(encoding="utf-8")
    if text == OLD:
        return True
    if text.startswith("<"):
        return text.rstrip().endswith("</html>")
    json.loads(text)
    return True
