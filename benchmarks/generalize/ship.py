"""Put the weights of a checkpoint into the package, without what only training goes on from.

    python benchmarks/generalize/ship.py CHECKPOINT [FOLDER]

FOLDER is the one that `gdp` reads if it is not told another. The header keeps corpus, seed, time and trials, and of the
options those that shape the network: how to train on is not for the weights to say.
"""

from __future__ import annotations

import sys
from pathlib import Path

from placewise.files.policy_file import header_path, load_policy, save_policy
from placewise.placers.learned.gdp import SHAPE

FOLDER = Path(__file__).parents[2] / "placewise" / "placers" / "learned" / "pretrained" / "gdp"
LARGEST = 5_000_000
"""Bytes."""


def ship(checkpoint: str, folder: Path = FOLDER) -> int:
    """Write the weights alone; how many bytes they take."""
    header, arrays = load_policy(checkpoint)
    weights = {name: array for name, array in arrays.items() if name.startswith("policy/")}
    size = sum(array.nbytes for array in weights.values())
    if size > LARGEST:
        raise SystemExit(f"{size} bytes of weights are more than {LARGEST}")
    folder.mkdir(parents=True, exist_ok=True)
    for older in folder.glob("*.safetensors"):
        older.unlink()
    options = {name: value for name, value in header.options.items() if name in SHAPE}
    save_policy(header.model_copy(update={"options": options}), weights, header_path(folder))
    return size


if __name__ == "__main__":
    print(f"{ship(*sys.argv[1:2], *map(Path, sys.argv[2:3]))} bytes of weights")
