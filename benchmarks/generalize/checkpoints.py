"""Train the policies that the tables of this folder read: `python benchmarks/generalize/checkpoints.py [NAME ...]`.

Each is one `placewise train --corpus` into checkpoints/NAME; one that was begun goes on. `batch` is trained on the
problems of gdp.py together, `without-…` on corpora/default.toml without one family. Without names, all of them.
`--answers FOLDER`: what a search found for another training on the same problems, which is not searched again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES = ("batch", "without-wavenet", "without-transformer-xl")
"""Policies; each is trained on the corpus of its name."""


def command(name: str, minutes: float | None = None) -> list[str]:
    """What is run, from the root of the repository."""
    folder = Path("benchmarks/generalize/checkpoints") / name
    told = ["train", "--corpus", f"benchmarks/generalize/corpora/{name}.toml", "--checkpoint", str(folder)]
    told += ["--time-limit", f"{minutes:g}m"] if minutes is not None else []
    return [*told, *(["--resume"] if (ROOT / folder / "policy.json").exists() else [])]


def main() -> int:
    """Train, one after the other; the exit code of the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--minutes", type=float, help="at most so long each")
    parser.add_argument("--answers", type=Path, help="the folder `answers` of another training")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no policy {unknown[0]!r}: {', '.join(NAMES)}")
    for name in options.names or NAMES:
        if options.answers is not None:
            shutil.copytree(options.answers, HERE / "checkpoints" / name / "answers", dirs_exist_ok=True)
        told, started = command(name, options.minutes), time.perf_counter()
        print(f"{name}: placewise {' '.join(told)}", flush=True)
        code = subprocess.run([sys.executable, "-m", "placewise", *told], cwd=ROOT).returncode
        print(f"{name}: {time.perf_counter() - started:.0f} s, exit code {code}", flush=True)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
