"""Limits that make a worker process as slow as another device: a quota of processor time, and links of a bandwidth.

Both need Linux and root. Networks end with their processes. The control group of a command that was killed stays until
the next command that makes one removes it.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from placewise.errors import RunError
from placewise.processes.scratch import ScratchFolder

CONTROL = Path("/sys/fs/cgroup")
PERIOD, LEAST = 5000, 1000
"""Microseconds of a period, and the least part of one that Linux grants."""
BURST, QUEUE = "16kb", "2000ms"
"""What leaves at once after a pause, and how long a packet may wait."""
INTERFACE = "eth0"
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.EROFS)
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_NEW_NETWORK, _NETWORK = 0x40000000, "/proc/thread-self/ns/net"


class ProcessorQuota:
    """A control group whose processes together get so many seconds of processor time per second (`share`).

    With 0.4 they run for 2 ms of every 5 ms, so work much longer than that takes 2.5 times as long. Of cgroups, version
    1 and 2 are known. Raises RunError where control groups cannot be made.
    """

    def __init__(self, share: float, root: Path = CONTROL) -> None:
        first = (root / "cpu").is_dir()
        period = max(PERIOD, math.ceil(LEAST / share))
        quota = round(share * period)
        limits = {"cpu.cfs_period_us": f"{period}", "cpu.cfs_quota_us": f"{quota}"}
        limits = limits if first else {"cpu.max": f"{quota} {period}"}
        try:
            self._folder = ScratchFolder(root / "cpu" if first else root)
        except OSError as error:
            raise _refuse_quota(error) from None
        try:
            for name, value in limits.items():
                (self._folder.path / name).write_text(value)
        except OSError as error:
            self.close()
            raise _refuse_quota(error) from None

    @property
    def path(self) -> Path:
        """The folder of the control group."""
        return self._folder.path

    def add(self, pid: int) -> None:
        """Limit a process and those that it will start. Raises RunError."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            return  # it has ended, which its worker will report
        except OSError as error:
            raise _refuse_quota(error) from None

    def close(self) -> None:
        """Remove the group, whose processes have ended."""
        self._folder.close()


def _refuse_quota(error: OSError) -> RunError:
    reason = (error.strerror or str(error)).lower()
    remedy = "run as root, or without quota" if error.errno in _FORBIDDEN else "run without quota"
    return RunError(f"no control group (cgroup) for a quota can be made here ({reason}): {remedy}")


class Network:
    """Network namespaces joined by a switch, one for each of `bandwidths`, the bytes per second that may leave it.

    inf is no limit, and where none has one, there are no namespaces (−1) and processes use loopback. `environment`
    makes gloo and NCCL use it. Raises RunError where namespaces or their links cannot be made.
    """

    def __init__(self, bandwidths: Sequence[float]) -> None:
        self.namespaces: tuple[int, ...] = (-1,) * len(bandwidths)
        self._switch = -1
        limited = any(math.isfinite(bandwidth) for bandwidth in bandwidths)
        self.environment = dict.fromkeys(_INTERFACES, INTERFACE) if limited else name_interfaces()
        if not limited:
            return
        try:
            self._switch = _open_namespace()
            _configure(self._switch, ["ip link add switch type bridge", "ip link set switch up"])
            for number, bandwidth in enumerate(bandwidths):
                own = _open_namespace()
                self.namespaces = (*self.namespaces[:number], own, *self.namespaces[number + 1 :])
                self._join(own, number, bandwidth)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the namespaces: they end with their processes."""
        for namespace in (self._switch, *self.namespaces):
            if namespace >= 0:
                os.close(namespace)
        self._switch, self.namespaces = -1, (-1,) * len(self.namespaces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self, own: int, number: int, bandwidth: float) -> None:
        """Connect a namespace to the switch by a link of this bandwidth."""
        there = f"/proc/{os.getpid()}/fd/{self._switch}"
        lines = [
            "ip link set lo up",
            f"ip link add {INTERFACE} type veth peer name port{number} netns {there}",
            f"ip addr add 10.77.{number // 200}.{number % 200 + 1}/16 dev {INTERFACE}",
            f"ip link set {INTERFACE} up",
        ]
        if math.isfinite(bandwidth):
            rate = f"rate {max(round(8 * bandwidth), 8)}bit burst {BURST} latency {QUEUE}"
            lines.append(f"tc qdisc add dev {INTERFACE} root tbf {rate}")
        _configure(own, lines)
        _configure(self._switch, [f"ip link set port{number} master switch up"])


def name_interfaces() -> dict[str, str]:
    """The network interfaces over which gloo and NCCL join processes: those of this environment, or loopback."""
    return {name: os.environ.get(name, "lo") for name in _INTERFACES}


@contextmanager
def enter_network(namespace: int) -> Iterator[None]:
    """Have what this thread starts meanwhile in a network namespace; −1 is where it is. Raises RunError."""
    if namespace < 0:
        yield
        return
    here = os.open(_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", namespace, _NEW_NETWORK)
        try:
            yield
        finally:
            _call("setns", here, _NEW_NETWORK)
    finally:
        os.close(here)


def _open_namespace() -> int:
    """A descriptor of a new network namespace; this thread stays where it is."""
    try:
        here = os.open(_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(f"there are no network namespaces here ({error.strerror}): run without bandwidth") from None
    try:
        _call("unshare", _NEW_NETWORK)
        try:
            return os.open(_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _call("setns", here, _NEW_NETWORK)
    finally:
        os.close(here)


def _call(name: str, *args: int) -> None:
    """Call a function of the C library. Raises RunError with the system's reason."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*args):
        reason = os.strerror(ctypes.get_errno()).lower()
        raise RunError(f"no network namespace can be made here ({reason}): run as root, or without bandwidth")


def _configure(namespace: int, lines: Sequence[str]) -> None:
    """Run commands of iproute2 in a namespace. Raises RunError with what the first that fails says."""
    with enter_network(namespace):
        for line in lines:
            try:
                ended = subprocess.run(line.split(), capture_output=True, text=True)
            except OSError:
                program = line.split()[0]
                raise RunError(f"{program!r} of iproute2 is not installed, which links of a bandwidth take") from None
            if ended.returncode:
                said = [text for text in ended.stderr.splitlines() if text.strip()] or [f"exit code {ended.returncode}"]
                raise RunError(f"no link of a bandwidth can be made here ({line.split()[0]}: {said[-1].strip()})")
