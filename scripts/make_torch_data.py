"""Write tests/data/torch/layered.pt2, an exported program with a tie and an open batch, as torch.export saves it."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from torch_models import Layered, exported  # noqa: E402


def main() -> None:
    """Export with a symbolic batch, and save."""
    torch.manual_seed(0)
    shapes = {"ids": {0: torch.export.Dim("batch", max=64)}, "mask": None, "twice": None}
    example = (torch.zeros(4, 5, dtype=torch.long),)
    program = exported(Layered().eval(), example, {"mask": None, "twice": True}, dynamic_shapes=shapes)
    target = ROOT / "tests" / "data" / "torch" / "layered.pt2"
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, target)
    without_paths(target)


def without_paths(path: Path) -> None:
    """Leave out where on this machine each call was written."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = next(name for name in members if name.endswith("models/model.json"))
    program = json.loads(members[name])
    for node in program["graph_module"]["graph"]["nodes"]:
        node["metadata"].pop("stack_trace", None)
    members[name] = json.dumps(program).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member), data)


if __name__ == "__main__":
    main()
