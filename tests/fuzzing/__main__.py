"""``python -m fuzzing``: damaged files by the hundred thousand, and a report of what they did (`make fuzz`)."""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.cases import SHARES, case, run
from fuzzing.journeys import JOURNEYS
from fuzzing.pool import PATIENCE, Done, run_all
from fuzzing.report import document_of, merged, written
from fuzzing.seeds import Seed, furnished, model_seeds, other_seeds
from fuzzing.verdict import FAULT, Verdict, kind_of


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    asked = _asked()
    if asked.merge:
        written(merged([json.loads(path.read_bytes()) for path in asked.merge]), asked.report)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    out = asked.out.resolve()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        os.chdir(folder)
        os.environ["XDG_CACHE_HOME"] = str(
            folder / "cache"
        )  # empty: what reading takes is imported once, before all cases
        furnished(folder)
        seeds = model_seeds() | other_seeds()
        if asked.family:
            seeds = {name: seeds[name] for name in asked.family}
        if asked.repeat:
            _repeat(asked.repeat, seeds, asked.seed, folder, out)
            return
        _sound(seeds, folder)
        begin = time.monotonic()
        done = _all(asked, seeds, folder, out)
        document = document_of(done, asked.seed, time.monotonic() - begin, asked.processes)
    if asked.report:
        written(document, asked.report)
    print(json.dumps(document["families"], indent=1))
    faults = sum(one.verdict.outcome == FAULT for one in done)
    raise SystemExit(f"{faults} faults: {out}" if faults else 0)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzzing", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="how many (default: 100000)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same cases (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each family (default: 0)")
    parser.add_argument("--family", action="append", choices=[*SHARES], help="only these; may be repeated")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at once (default: one per core)")
    parser.add_argument("--out", type=Path, default=Path("fuzz-faults"), help="folder for what is at fault")
    parser.add_argument(
        "--report", type=lambda text: Path(text).resolve(), help="where the report is written, as .json and .md"
    )
    parser.add_argument("--merge", type=Path, nargs="+", help="make --report of these reports, and run nothing")
    parser.add_argument("--repeat", metavar="FAMILY:NUMBER", help="one case, in this process, with its traceback")
    return parser.parse_args()


def _sound(seeds: dict[str, tuple[Seed, ...]], folder: Path) -> None:
    """Every file is read once undamaged; what is imported or compiled by that, all processes share."""
    for family, files in seeds.items():
        for one in files:
            path = folder / f"case{one.suffix}"
            path.write_bytes(one.data)
            try:
                JOURNEYS[family](path, one, _Plain())
            except Exception as error:
                raise SystemExit(f"{family}, {one.name} is no sound file: {error}") from error
            path.unlink()


class _Plain(Random):
    """Chance that takes the way on which nothing is odd."""

    def random(self) -> float:
        return 0.99

    def choice(self, seq: Any) -> Any:
        return seq[0]


def _all(asked: argparse.Namespace, seeds: dict[str, tuple[Seed, ...]], folder: Path, out: Path) -> list[Done]:
    families = asked.family or [*SHARES]
    total = sum(SHARES[name] for name in families)
    counts = {name: round(asked.cases * SHARES[name] / total) for name in families}
    in_turn = sorted((number / counts[name], name, number) for name in families for number in range(counts[name]))
    cases = [(name, asked.first + number) for _, name, number in in_turn]
    for place in range(asked.processes):
        (folder / str(place)).mkdir()
        furnished(folder / str(place))
        for tensors in folder.glob("policy-*.safetensors"):
            (folder / str(place) / tensors.name).write_bytes(tensors.read_bytes())

    def runner(family: str, number: int, where: Path) -> Verdict:
        return run(*case(family, number, seeds[family], asked.seed), where)

    done: list[Done] = []
    seen: dict[str, int] = defaultdict(int)
    begin = time.monotonic()
    for one in _until_interrupted(run_all(cases, runner, folder, asked.processes)):
        done.append(one)
        if one.verdict.outcome == FAULT:
            kind = kind_of(one.verdict.words)
            seen[kind] += 1
            if seen[kind] <= 3:
                print(f"{one.family}:{one.number} {kind}", flush=True)
                _keep(out, one, seeds, asked.seed)
        if len(done) % 1_000 == 0:
            rate = len(done) / (time.monotonic() - begin)
            print(f"{len(done)} of {len(cases)}, {rate:.0f} a second, {sum(seen.values())} faults", flush=True)
    for kind, count in Counter(seen).most_common():
        print(f"{count} × {kind}")
    return done


def _until_interrupted(found: Iterator[Done]) -> Iterator[Done]:
    """After Ctrl-C, what is there is told."""
    with suppress(KeyboardInterrupt):
        yield from found


def _keep(out: Path, one: Done, seeds: dict[str, tuple[Seed, ...]], chance: int) -> None:
    """The file of a case, what became of it, and the command that repeats it."""
    made, _ = case(one.family, one.number, seeds[one.family], chance)
    stem = f"{one.family.replace(' ', '_')}-{one.number}"
    (out / f"{stem}{made.suffix}").write_bytes(made.data)
    command = f"PYTHONPATH=tests/helpers:tests python -m fuzzing --seed {chance} --repeat '{made.name}'"
    (out / f"{stem}.said.txt").write_text(
        f"{command}\nfrom {made.seed.name}, {one.seconds:.1f} s (limit {PATIENCE:.0f} s)\n\n{one.verdict.words}\n",
        "utf-8",
    )


def _repeat(name: str, seeds: dict[str, tuple[Seed, ...]], chance: int, folder: Path, out: Path) -> None:
    family, _, number = name.rpartition(":")
    made, rng = case(family, int(number), seeds[family], chance)
    kept = out / f"repeated{made.suffix}"
    kept.write_bytes(made.data)
    verdict = run(made, rng, folder)
    print(f"{made.name}, from {made.seed.name}: {verdict.outcome}\n{verdict.words}\nthe file is kept as {kept}")


if __name__ == "__main__":
    main()
