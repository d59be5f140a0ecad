"""How well the rates that `placewise profile --runtime llama.cpp` fits predict the real llama.cpp at other sizes.

    nice -n -10 python benchmarks/real/llama_times.py

On one core, of each type of weights, a model of four layers at the width 1024 is timed at several sizes, and its rates
are fitted. They predict the same model at other lengths of prompts, a model of eight layers, and one of twice the
width.
All models are loaded, and timed in turns: the rates of a round predict what was timed in the same round, because a busy
machine is twice as fast in one minute as in the next. Errors are medians over rounds. Writes
results/real_llama_times.json and .md.
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

from placewise.profiling.llama_cpp import fit_rates, observe
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.runtimes.llama_cpp.runtime import LlamaTiming, open_llama, summarize_rounds, time_round

TYPES = ("Q4_0", "Q8_0")
NARROW, WIDE = Sizes(1024, 4096, 16, 4, 64, 4096), Sizes(2048, 8192, 32, 8, 64, 4096)
FITTED, SAME = (16, 64, 256, 768), (128, 400)
MODELS = (("4 layers", NARROW, 4, FITTED + SAME), ("8 layers", NARROW, 8, (64, 256)),
          ("twice the width, 2 layers", WIDE, 2, (64, 256)))  # fmt: skip
TOKENS, ROUNDS, LIMIT = 9, 5, 0.15


def time_models(paths: Sequence[Path]) -> list[list[list[LlamaTiming]]]:
    """Timings by round, model and size."""
    sizes = [[(length, TOKENS) for length in lengths] for *_, lengths in MODELS]
    flags = LlamaFlags(context=1024, threads=1)
    with ExitStack() as stack:
        workers = [stack.enter_context(open_llama(path, flags)) for path in paths]
        rounds = []
        for _ in range(ROUNDS + 1):
            found = [time_round(worker, each) for worker, each in zip(workers, sizes, strict=True)]
            rounds.append([summarize_rounds([one], each) for one, each in zip(found, sizes, strict=True)])
    return rounds[1:]


def predict(paths: Sequence[Path], timings: list[list[LlamaTiming]]) -> dict[tuple[str, str, int], tuple[float, float]]:
    """Measured and predicted seconds of one round, by model, what, and length of the prompt."""
    first = [timing for timing in timings[0] if timing.prompt in FITTED]
    rates = fit_rates(*observe(paths[0], "f16", first))
    found = {}
    for (name, *_), path, each in zip(MODELS, paths, timings, strict=True):
        for what, observations, rate in zip(
            ("prompt", "token"), observe(path, "f16", each), (rates.prompt, rates.token), strict=True
        ):
            for timing, one in zip(each, observations, strict=True):
                found[name, what, timing.prompt] = one.seconds, float(one.work @ rate)
    return found


def main() -> int:
    rows: list[dict[str, Any]] = []
    for kind in TYPES:
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{number}.gguf" for number in range(len(MODELS))]
            for path, (_, sizes, layers, _) in zip(paths, MODELS, strict=True):
                write_published(path, "llama", sizes, layers=layers, kind=kind)
            rounds = [predict(paths, timings) for timings in time_models(paths)]
        for name, what, length in rounds[0]:
            pairs = [one[name, what, length] for one in rounds]
            group = name if name != MODELS[0][0] else "fitted" if length in FITTED else "other lengths"
            off = [guess / seconds - 1 for seconds, guess in pairs]
            rows.append({"type": kind, "model": group, "what": what, "length": length,
                         "seconds": statistics.median(seconds for seconds, _ in pairs),
                         "off": statistics.median(off), "least": min(off), "most": max(off)})  # fmt: skip
    lines = ["| weights | model | prompt of | measured | off | in single rounds |", "|---|---|---|---|---|---|"]
    for row in rows:
        what = f"{row['length']}" if row["what"] == "prompt" else f"a token after {row['length']}"
        off = f"{row['off']:+.1%} | {row['least']:+.0%} to {row['most']:+.0%}"
        lines.append(f"| {row['type']} | {row['model']} | {what} | {1e3 * row['seconds']:.4g} ms | {off} |")
    summary = []
    for group in dict.fromkeys(row["model"] for row in rows):
        for what in ("prompt", "token"):
            off = [abs(row["off"]) for row in rows if (row["model"], row["what"]) == (group, what)]
            near = sum(each <= LIMIT for each in off)
            summary.append(
                f"| {group} | {what} | {statistics.median(off):.1%} | {max(off):.1%} | {near} of {len(off)} |"
            )
    text = f"""# Times of llama.cpp, and what the rates of a profile predict

`nice -n -10 python benchmarks/real/llama_times.py`: one core, {ROUNDS} rounds, in which all models took turns; the
rates of a round predict that round, and errors are medians over rounds. "Fitted" are the sizes to which the rates were
fitted.

| model | of | median error | largest | within 15 % |
|---|---|---|---|---|
""" + "\n".join((*summary, "", *lines))
    return report("llama_times", rows, [], text, ["xllamacpp", "gguf"])


if __name__ == "__main__":
    sys.exit(main())
