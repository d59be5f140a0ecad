"""What the real llama.cpp allocates on one CPU, and what is counted from the header of the model and its flags.

    python benchmarks/real/llama_cpp.py

Models have random weights: a small one of every family, and two layers at the widths of published models. Figures of
llama.cpp are those of its log. Weights are in its own order of entries where the processor reads that faster. Writes
results/real_llama_cpp.json and .md, and exits with 1 if anything is more than 3 % off.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from common import report
from gguf_models import FAMILIES, write_model
from llama_models import PUBLISHED, write_published

from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_memory import count_bytes, count_compute
from placewise.runtimes.llama_cpp.log import MEBIBYTE, ROUNDED
from placewise.runtimes.llama_cpp.runtime import run_llama

LIMIT = 0.03
CASES = {
    "context 2048": LlamaFlags(context=2048),
    "q8_0 cache": LlamaFlags(context=2048, cache=("q8_0", "q8_0")),
    "no flash attention": LlamaFlags(context=2048, flash="off"),
    "context 16384, -ub 128": LlamaFlags(context=16384, ubatch=128),
}


def compare(model: str, path: Path, case: str) -> dict[str, Any]:
    """The bytes of a model under flags, counted and allocated."""
    header, flags = read_header(path), CASES[case]
    counted = count_bytes(header, flags)["CPU"]
    found = run_llama(path, flags, prompt=4, tokens=1, repeats=1).allocation
    buffers = {"weights": found.buffers["model"], "cache": found.buffers["KV"], "compute": 1}
    pairs = {
        "weights": (counted.weights, sum(found.weights.values())),
        "cache": (counted.cache, sum(found.cache.values())),
        "compute": (count_compute(header, flags)["CPU"], sum(found.compute.values())),
    }
    near = {what: abs(ours - real) <= LIMIT * real + buffers[what] * ROUNDED for what, (ours, real) in pairs.items()}
    return {"model": model, "flags": case, "bytes": pairs, "near": near}


def main() -> int:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for family in FAMILIES:
            write_model(path, family)
            rows.append(compare(family, path, "context 2048"))
        for name, (arch, sizes) in PUBLISHED.items():
            write_published(path, arch, sizes, layers=2)
            rows += [compare(name, path, case) for case in CASES]
    wrong = [
        f"{row['model']}, {row['flags']}: {what}" for row in rows for what, near in row["near"].items() if not near
    ]
    lines = ["| model | flags | weights, MiB | cache, MiB | compute, MiB | compute off |", "|---|---|---|---|---|---|"]
    for row in rows:
        sizes = [f"{ours / MEBIBYTE:.2f} ({real / MEBIBYTE:.2f})" for ours, real in row["bytes"].values()]
        ours, real = row["bytes"]["compute"]
        lines.append(f"| {row['model']} | {row['flags']} | {' | '.join(sizes)} | {ours / real - 1:+.1%} |")
    near = sum(row["near"]["compute"] for row in rows)
    text = f"""# Bytes that llama.cpp allocates

`python benchmarks/real/llama_cpp.py`: counted, and in brackets llama.cpp's log, on one CPU. {near} of {len(rows)}
compute buffers are within 3 %. The rules were written beside these families and the log.

""" + "\n".join(lines)
    return report("llama_cpp", rows, wrong, text, ["xllamacpp", "gguf"])


if __name__ == "__main__":
    sys.exit(main())
