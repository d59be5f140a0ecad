"""What a person meets first: commands on a fresh install with empty caches. `python benchmarks/cold.py`.

A wheel of this checkout is built and installed into a new virtual environment (`--venv FOLDER` takes one that is
there); every run has a home and a cache folder of its own, which are empty. Three parts:

- `commands`: nine searches with a time limit, three runs each. A run fails if the whole process takes longer than
  its limit plus 10 % plus 1 s; where a model takes seconds to read, the seconds of reading it alone, measured the same
  way, come on top. The first run must answer as well as the last, within 0.5 %.
- `startup`: `import placewise`, `placewise --version`, and a search that proves its answer at once, beside what each
  may take.
- `stop`: seconds from SIGINT and SIGTERM to the end of a search that had minutes left, with a plan.

Writes results/cold.json and cold.md. The exit code is 1 if anything takes longer than it may.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cold"
RUNS, WORSE = 3, 0.005
MODELS = ROOT / "examples" / "models"
RESNET, BERT = f"{MODELS / 'resnet50.onnx'} --dim batch=8", f"{MODELS / 'bert_base.onnx'} --dim batch=8 --dim seq=128"
COMMANDS = {
    "ResNet-50, throughput": (f"{RESNET} -d 2xL4,cpu --objective throughput", 5, False),
    "ResNet-50, latency": (f"{RESNET} -d 2xL4,cpu --objective latency", 5, False),
    "BERT-base, throughput, contiguous": (f"{BERT} -d 2xL4,cpu --objective throughput --contiguous", 5, False),
    "BERT-base, throughput, free": (f"{BERT} -d 2xL4,cpu --objective throughput --free", 5, False),
    "BERT-base, training": (f"{BERT} -d 4xV100-16GB,cpu --objective throughput --graph training", 5, True),
    "hf:bert-base, latency": ("hf:bert-base -d 2xL4,cpu --objective latency", 5, True),
    "zoo:rnnlm-4, latency": ("zoo:rnnlm-4 -d 4xP100,cpu --objective latency", 10, True),
    "zoo:random-layered (30,000 ops), latency": (
        "zoo:random-layered --dim n_ops=30000 -d 16xV100-16GB --objective latency",
        10,
        True,
    ),
    "zoo:gnmt-8 (65,000 ops), throughput": ("zoo:gnmt-8 --graph training -d 8xP100 --objective throughput", 30, True),
}
"""A model with its options, the time limit in seconds, and whether reading it is counted apart."""
STARTUP = {
    "import placewise": (["-c", "import placewise"], 0.060),
    "placewise --version": (["-m", "placewise", "--version"], 0.2),
    "placewise --help": (["-m", "placewise", "--help"], 0.4),
    "BERT-base, proved": (
        ["-m", "placewise", "place", *f"{BERT} -d 2xL4,cpu --objective throughput --time-limit 5s -q".split()],
        1.5,
    ),
}
"""Arguments of Python, and the seconds that they may take; importing is counted without Python's own start."""
STOP_SECONDS = 0.5


def main() -> int:
    """Measure what is asked for, write the results; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, help="A virtual environment with Placewise installed from a wheel.")
    parser.add_argument("--only", help="Only commands whose name contains this.")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it
    with environment(options.venv) as python:
        done: dict[str, Any] = {
            "command": "python benchmarks/cold.py" + (" --venv FOLDER" if options.venv else ""),
            "machine": {
                "cores": os.cpu_count(),
                "load": os.getloadavg()[0],
                "python": platform.python_version(),
                "loop": loop_seconds(),
            },
            "commands": {
                name: searched(python, *row) for name, row in COMMANDS.items() if (options.only or "") in name
            },
        }
        if not options.only:
            done["startup"] = {name: started(python, *row) for name, row in STARTUP.items()}
            done["stop"] = {number.name: stopped(python, number) for number in (signal.SIGINT, signal.SIGTERM)}
    done["missed"] = failures = missed(done)
    for failure in failures:
        print("missed:", failure, file=sys.stderr)
    if not options.only:
        RESULTS.with_suffix(".json").write_text(json.dumps(done, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(document(done))
    return int(bool(failures))


@contextmanager
def environment(venv: Path | None) -> Iterator[Path]:
    """The Python of a virtual environment that has Placewise from a wheel; a new one, if none is given."""
    if venv is not None:
        yield venv.resolve() / "bin" / "python"
        return
    with tempfile.TemporaryDirectory() as folder:
        pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        python = Path(folder, "venv", "bin", "python")
        subprocess.run([python, *pip, "wheel", "--no-deps", "-w", folder, ROOT], check=True)
        wheel = next(Path(folder).glob("*.whl"))
        subprocess.run([python, *pip, "install", "-c", ROOT / "constraints.txt", f"{wheel}[transformers]"], check=True)
        yield python


def loop_seconds() -> float:
    """Seconds of ten million multiplications in Python: how fast this machine is."""
    begun, total = time.perf_counter(), 0
    for number in range(10_000_000):
        total += number * number
    return time.perf_counter() - begun


@contextmanager
def empty_home() -> Iterator[dict[str, str]]:
    """Environment variables under which no cache holds anything."""
    with tempfile.TemporaryDirectory() as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTHON"))}
        yield {**kept, "HOME": home, "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}


def searched(python: Path, model: str, limit: float, reads: bool) -> dict[str, Any]:
    """Runs of one search: seconds of the whole process, and the value of each answer."""
    command = [python, "-m", "placewise", "place", *model.split(), "--time-limit", f"{limit}s", "-o", "plan.json"]
    row: dict[str, Any] = {"model": model.replace(f"{ROOT}/", ""), "limit": limit, "seconds": [], "values": []}
    row["reading"] = read(python, model) if reads else 0.0
    for _ in range(RUNS):
        with empty_home() as variables:
            begun = time.perf_counter()
            subprocess.run(command, env=variables, cwd=variables["HOME"], check=True, capture_output=True)
            row["seconds"].append(time.perf_counter() - begun)
            plan = json.loads(Path(variables["HOME"], "plan.json").read_bytes())
            row["values"].append(plan["value"])
            row["bounds"] = [*row.get("bounds", []), plan["lower_bound"]]
    print(model, json.dumps(row), flush=True)
    return row


def read(python: Path, model: str) -> float:
    """Seconds of a process that only reads the model and prices it."""
    kept = model.split(" --objective")[0].split()
    script = (
        "import sys, time, placewise as pw\n"
        "from placewise.core.build import build\n"
        "words, dims, graph, devices = sys.argv[2:], {}, None, None\n"
        "for name, value in zip(words[::2], words[1::2]):\n"
        "    if name == '--dim': dims[value.split('=')[0]] = int(value.split('=')[1])\n"
        "    if name == '--graph': graph = value\n"
        "    if name == '-d': devices = value\n"
        "build(sys.argv[1], devices, pw.ProblemOptions(objective='throughput', graph=graph, dims=dims))\n"
    )
    words = [*kept, *(["--graph", "training"] if "--graph training" in model else [])]
    with empty_home() as variables:
        begun = time.perf_counter()
        subprocess.run([python, "-c", script, *words], env=variables, cwd="/", check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun


def started(python: Path, arguments: list[str], most: float) -> dict[str, Any]:
    """Seconds of a short command, without those of Python itself where only an import is asked for."""
    runs = []
    for _ in range(7):
        with empty_home() as variables:
            variables.pop("PYTHONDONTWRITEBYTECODE")
            bare = seconds_of([python, "-c", "pass"], variables) if arguments[0] == "-c" else 0.0
            runs.append(seconds_of([python, *arguments], variables) - bare)
    return {"arguments": arguments, "seconds": runs, "median": statistics.median(runs), "most": most}


def seconds_of(command: list[Any], variables: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, env=variables, cwd="/", check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def stopped(python: Path, number: signal.Signals) -> dict[str, Any]:
    """Seconds from a signal to the end of a search, sent after different times."""
    command = [python, "-m", "placewise", "place", "zoo:rnnlm-4", "-d", "4xP100,cpu", "--objective"]
    runs = []
    for objective in ("throughput", "latency"):
        for delay in (4.0, 6.0, 9.0):
            with empty_home() as variables:
                running = subprocess.Popen(
                    [*command, objective, "--time-limit", "100s", "--json", "-q"],
                    env=variables, cwd="/", stdout=subprocess.PIPE,
                )  # fmt: skip
                time.sleep(delay)
                begun = time.perf_counter()
                running.send_signal(number)
                output, _ = running.communicate(timeout=60)
                runs.append(time.perf_counter() - begun)
                assert json.loads(output)["reason"] == "interrupted" and running.returncode == 0
    return {"seconds": runs, "most": STOP_SECONDS}


def missed(done: dict[str, Any]) -> list[str]:
    """What takes longer, or answers worse, than it may."""
    found = []
    for name, row in done["commands"].items():
        most = 1.1 * row["limit"] + 1 + row["reading"]
        found += [f"{name}: {seconds:.1f} s, at most {most:.1f} s" for seconds in row["seconds"] if seconds > most]
        best = min(row["values"])
        if row["values"][0] > best * (1 + WORSE):
            found.append(f"{name}: the first run answers {row['values'][0] / best - 1:.1%} worse than the best")
    for name, row in done.get("startup", {}).items():
        if row["median"] > row["most"]:
            found.append(f"{name}: {row['median']:.3f} s, at most {row['most']} s")
    for name, row in done.get("stop", {}).items():
        if max(row["seconds"]) > row["most"]:
            found.append(f"{name}: {max(row['seconds']):.2f} s, at most {row['most']} s")
    return found


def document(done: dict[str, Any]) -> str:
    """The tables of results/cold.md."""
    machine = done["machine"]
    lines = [
        "# A fresh install, with empty caches",
        "",
        f"{machine['cores']} cores, load {machine['load']:.1f} at the start; ten million multiplications in a loop of "
        f"Python take {machine['loop']:.2f} s. `{done['command']}`",
        "",
        "| search | limit | may take | run 1 | run 2 | run 3 | value, runs 1 to 3 |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for name, row in done["commands"].items():
        most = 1.1 * row["limit"] + 1 + row["reading"]
        runs = " | ".join(f"{seconds:.1f} s" for seconds in row["seconds"])
        values = ", ".join(f"{1e3 * value:.5g} ms" for value in row["values"])
        lines.append(f"| {name} | {row['limit']} s | {most:.1f} s | {runs} | {values} |")
    lines += ["", "| start | median of 7 | may take |", "|---|--:|--:|"]
    lines += [f"| {name} | {row['median']:.3f} s | {row['most']} s |" for name, row in done["startup"].items()]
    lines += ["", "| signal | seconds to the end, with a plan | may take |", "|---|---|--:|"]
    for name, row in done["stop"].items():
        lines.append(f"| {name} | {', '.join(f'{s:.2f}' for s in row['seconds'])} | {row['most']} s |")
    lines += ["", "What takes longer than it may:", ""] + [f"- {failure}" for failure in done["missed"] or ["nothing"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
