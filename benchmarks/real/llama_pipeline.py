"""Prompts over two devices of the real llama.cpp, with its pipeline of micro-batches and without.

    python benchmarks/real/llama_pipeline.py

Devices are two RPC servers on this machine, each with one thread on a core of its own. A dense model of zeros has half
of its layers on each; a prompt has four micro-batches. Both ways are loaded in turns, and times are the least of all
rounds. Needs llama-server and ggml-rpc-server of late 2026 on PATH, built with `-DGGML_RPC=ON`, two idle cores and
Linux. Writes results/real_llama_pipeline.json and .md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from common import report
from llama_servers import start_server

from placewise.exporters.llama_cpp.words import NO_PIPELINE, OVERRIDE
from placewise.profiling.llama_probes import Probe, write_probe
from placewise.runtimes.llama_cpp.program import LlamaProgram
from placewise.runtimes.llama_cpp.runtime import time_round

MODEL, PROMPT, MICRO_BATCH, ROUNDS, TURNS = Probe("Q8_0", 1024, 4096, 12), 2048, 512, 3, 2
WAYS = {"a pipeline": [], "one after another": [OVERRIDE, NO_PIPELINE]}
PIPELINED = "pipeline parallelism enabled"


def main() -> int:
    """Time both ways; the exit code."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        path = write_probe(Path(folder) / "model.gguf", MODEL)
        addresses = []
        for core in sorted(os.sched_getaffinity(0))[:2]:
            process, address = running.enter_context(start_server("-t", "1"))
            os.sched_setaffinity(process.pid, {core})
            addresses.append(address)
        half = MODEL.layers // 2
        words = ["-c", str(2 * PROMPT), "-np", "1", "-ub", str(MICRO_BATCH), "--rpc", ",".join(addresses)]
        words += ["--device", "RPC0,RPC1", "-ngl", str(MODEL.layers + 1), "--split-mode", "layer"]
        words += ["--tensor-split", f"{half},{MODEL.layers + 1 - half}", "--fit", "off", "-t", "1", "-lv", "5"]
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for way, more in (pair for _ in range(TURNS) for pair in WAYS.items()):
            with LlamaProgram(path, [*words, *more]) as program:
                assert (PIPELINED in program.read_log()) == (not more), "llama.cpp does not do what is asked for"
                times[way] += [time_round(program, [(PROMPT, 4)])[0][0] for _ in range(ROUNDS + 1)][1:]
    lines = "\n".join(f"| {way} | {min(seconds):.2f} | {max(seconds):.2f} |" for way, seconds in times.items())
    gain = min(times["one after another"]) / min(times["a pipeline"])
    text = f"""# A prompt over two devices of llama.cpp, as a pipeline and not

`python benchmarks/real/llama_pipeline.py`: {PROMPT} tokens in micro-batches of {MICRO_BATCH}, {MODEL.layers} layers of
{MODEL.width} × {MODEL.inner} in {MODEL.kind}, half of them on each of two RPC servers with one thread on a core of its
own; seconds of {TURNS * ROUNDS} rounds.

| micro-batches | least | most |
|---|---|---|
{lines}

The pipeline is {gain:.2f} times as fast.
"""
    return report("llama_pipeline", [{"way": way, "seconds": seconds} for way, seconds in times.items()], [], text, [])


if __name__ == "__main__":
    sys.exit(main())
