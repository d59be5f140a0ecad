"""How well the rates that `placewise profile --runtime llama.cpp` fits predict the real llama.cpp on other models.

    nice -n -19 python benchmarks/real/llama_times.py

On one core, for some types of weights, one model is profiled: the probes of its types are timed, and the model itself.
The rates predict it at other lengths of prompts, and other models of these types: of more layers, of twice the width,
of one of two types, of more experts.
All models are loaded, and timed in turns; the least times of all rounds count, as in a profile, since other work on the
machine only adds to them. "Worst round" is the largest time of a round over the least one, which shows how busy it was.
Writes results/real_llama_times.json and .md.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from common import report
from llama_models import Sizes, write_published

from placewise.costing.llama_rates import add_seconds
from placewise.profiling.llama_cpp import OWN_PROMPTS, TOKENS, fit_rates, observe
from placewise.profiling.llama_probes import Probe, list_probes, write_probe
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.runtimes.llama_cpp.runtime import LlamaTiming, open_llama, summarize_rounds, time_round

NARROW, WIDE = Sizes(1024, 4096, 16, 4, 64, 4096), Sizes(2048, 8192, 32, 8, 64, 4096)
MIXED, MORE = Sizes(1024, 512, 16, 4, 64, 4096, 32, 4), Sizes(2048, 768, 32, 4, 64, 4096, 64, 8)
SAME, OTHER = (400, 1000), (64, 256)
Kinds = dict[str, str]
Model = tuple[str, Sizes, int, Kinds]
"""A name, sizes, layers, and types of matrices."""
Q4, Q8, K4, K6 = ({"kind": kind} for kind in ("Q4_0", "Q8_0", "Q4_K", "Q6_K"))
K4_K6, MX = {"kind": "Q4_K", "down": "Q6_K"}, {"kind": "Q8_0", "experts": "MXFP4"}
GROUPS: dict[str, tuple[Model, ...]] = {
    "Q4_0": (("8 layers", NARROW, 8, Q4), ("20 layers", NARROW, 20, Q4), ("twice the width", WIDE, 4, Q4)),
    "Q8_0": (("8 layers", NARROW, 8, Q8), ("20 layers", NARROW, 20, Q8), ("twice the width", WIDE, 3, Q8)),
    "Q4_K, Q6_K": (("8 layers", NARROW, 8, K4_K6), ("Q4_K alone", NARROW, 20, K4), ("Q6_K, wide", WIDE, 3, K6)),
    "Q8_0, experts MXFP4": (("4 layers", MIXED, 4, MX), ("12 layers", MIXED, 12, MX), ("64 wide experts", MORE, 2, MX)),
}  # fmt: skip
"""By types; the first model is the one that is profiled."""
ROUNDS, LIMIT = 4, 0.15


def time_models(
    paths: Sequence[Path], lengths: Sequence[Sequence[int]]
) -> tuple[list[list[LlamaTiming]], list[list[LlamaTiming]]]:
    """The least and the largest times, by model and size."""
    sizes = [[(length, TOKENS + 1) for length in each] for each in lengths]
    with ExitStack() as stack:
        flags = [LlamaFlags(context=max(each) + TOKENS + 1, threads=1) for each in lengths]
        workers = [stack.enter_context(open_llama(path, each)) for path, each in zip(paths, flags, strict=True)]
        rounds = [
            [time_round(worker, each) for worker, each in zip(workers, sizes, strict=True)] for _ in range(ROUNDS + 1)
        ][1:]
    least, largest = (
        [summarize_rounds([one[number] for one in rounds], each, pick) for number, each in enumerate(sizes)]
        for pick in (min, max)
    )
    return least, largest


def predict(
    names: Sequence[str], paths: Sequence[Path], timings: Sequence[Sequence[LlamaTiming]], probed: Sequence[Probe]
) -> dict[tuple[str, str, int], tuple[float, float]]:
    """Measured and predicted seconds, by model, what, and length; `probed` are the first paths, `names` the others."""
    probes = len(probed)
    tiny = [probe.fits_caches for probe in probed] + [False] * len(names)
    observed = [
        observe(path, "f16", each, fits_caches=fits) for path, each, fits in zip(paths, timings, tiny, strict=True)
    ]
    rates = fit_rates(*([one for each in observed[:probes] for one in each[part]] for part in range(2)))
    found = {}
    for part, (what, each_rate) in enumerate((("prompt", rates.prompt), ("token", rates.token))):
        own = [
            one.seconds / float(add_seconds(one.work, each_rate).sum())
            for timing, one in zip(timings[probes], observed[probes][part], strict=True) if timing.prompt in OWN_PROMPTS
        ]  # fmt: skip
        for place, name in enumerate(names, probes):
            factor = statistics.median(own) if place == probes else 1.0
            for timing, one in zip(timings[place], observed[place][part], strict=True):
                guess = factor * float(add_seconds(one.work, each_rate).sum())
                found[name, what, timing.prompt] = one.seconds, guess
    return found


def main() -> int:
    rows: list[dict[str, Any]] = []
    for kind, models in GROUPS.items():
        names = [name for name, *_ in models]
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{number}.gguf" for number in range(len(models))]
            for path, (_, sizes, layers, kinds) in zip(paths, models, strict=True):
                write_published(path, "llama", sizes, layers=layers, **kinds)
            probes = list_probes(read_header(paths[0]))
            files = [write_probe(Path(folder) / f"probe{number}.gguf", probe) for number, probe in enumerate(probes)]
            lengths = [probe.prompts for probe in probes] + [OWN_PROMPTS + SAME] + [OTHER] * (len(models) - 1)
            least, largest = time_models(files + paths, lengths)
            found = predict(names, files + paths, least, probes)
            worst = {
                (name, timing.prompt): (timing.prompt_seconds, timing.token_seconds)
                for name, each in zip(names, largest[len(files) :], strict=True) for timing in each
            }  # fmt: skip
        for (name, what, length), (seconds, guess) in found.items():
            group = name if name != names[0] else "profiled" if length in OWN_PROMPTS else "other lengths"
            rows.append({"type": kind, "model": group, "what": what, "length": length,
                         "seconds": seconds, "off": guess / seconds - 1,
                         "worst": worst[name, length][what == "token"] / seconds})  # fmt: skip
    lines = ["| weights | model | prompt of | measured | off | worst round |", "|---|---|---|---|---|---|"]
    for row in rows:
        what = f"{row['length']}" if row["what"] == "prompt" else f"a token after {row['length']}"
        off = f"{row['off']:+.1%} | {row['worst']:.2f}×"
        lines.append(f"| {row['type']} | {row['model']} | {what} | {1e3 * row['seconds']:.4g} ms | {off} |")
    summary = []
    for kind in GROUPS:
        for what in ("prompt", "token"):
            for words, known in (("the profiled model", True), ("other models", False)):
                off = [
                    abs(row["off"]) for row in rows
                    if (row["type"], row["what"], row["model"] in ("profiled", "other lengths")) == (kind, what, known)
                ]  # fmt: skip
                near = sum(each <= LIMIT for each in off)
                middle = statistics.median(off)
                summary.append(f"| {kind} | {words} | {what} | {middle:.1%} | {max(off):.1%} | {near} of {len(off)} |")
    text = f"""# Times of llama.cpp, and what the rates of a profile predict

`nice -n -19 python benchmarks/real/llama_times.py`: one core, the least times of {ROUNDS} rounds, in which all models
took turns; "worst round" is the largest over the least. "Profiled" are the sizes that were measured of the profiled
model, "other lengths" other prompts of it. Other models were not measured: rates are those of the types of their
matrices.

| weights | model | of | median error | largest | within 15 % |
|---|---|---|---|---|---|
""" + "\n".join((*summary, "", *lines))
    return report("llama_times", rows, [], text, ["xllamacpp", "gguf"])


if __name__ == "__main__":
    sys.exit(main())
