"""External data of ONNX models: where it is said to be, and what is loaded of it before a model runs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import onnx

from fuzzing.case_result import Unsound
from fuzzing.seeds import Seed
from fuzzing.tokens import NUMBERS, text
from placewise.core.open_model import open_model
from placewise.readers.onnx.model import load_with_weights

SECRET = b"42 is the secret" * 512
_PLACES = (
    "weights.bin", "../secret.bin", "{above}/secret.bin", "link", "links/secret.bin", "./../models/../secret.bin",
    "pipe", "/dev/zero", "/dev/stdin", "/dev/urandom", "/proc/self/mem", "/proc/self/environ", "folder", ".", "..", "",
    "model.onnx", "weights.bin/", "weights.bin/..", "empty", "loop", "nothing", "file:///etc/passwd", "WEIGHTS.BIN",
)  # fmt: skip


def external_damaged(rng: Random, data: bytes, other: bytes) -> bytes:
    """The model with another place, offset, length or size of its external weight."""
    model: Any = onnx.ModelProto.FromString(data)
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        entries["location"] = rng.choice(_PLACES) if rng.random() < 0.8 else text(rng)[:2_000]
        for key in ("offset", "length", "checksum"):
            if rng.random() < 0.5:
                entries[key] = rng.choice(("0", "64", "-1", "x", "", "1" * 40, str(rng.choice(NUMBERS[:28]))))
            elif rng.random() < 0.5:
                entries.pop(key, None)
        if rng.random() < 0.3:
            tensor.dims[:] = rng.choice(([], [0], [1 << 40], [1 << 62, 4], [-1, 4], [2, 2, 2, 2]))
        if rng.random() < 0.2:
            tensor.data_type = rng.choice((0, 2, 8, 10, 16, 21, 23))
        if rng.random() < 0.2:
            tensor.raw_data = b"\x01" * rng.choice((1, 64))
        del tensor.external_data[:]
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value.replace("{above}", os.path.abspath(".")))
    return bytes(model.SerializeToString())


def journey(path: Path, seed: Seed, rng: Random) -> None:
    """It is read, then loaded with its weights; no byte from outside its folder may become one."""
    folder = _furnished(path.parent)
    case = folder / "model.onnx"
    case.write_bytes(path.read_bytes())
    open_model(str(case))
    content, _ = load_with_weights(case)
    if SECRET[:16] in content.SerializeToString():
        raise Unsound("a file outside the model's folder is read")


def _furnished(above: Path) -> Path:
    folder = above / "models"
    if not folder.is_dir():
        (above / "secret.bin").write_bytes(SECRET)
        folder.mkdir()
        (folder / "weights.bin").write_bytes(b"\x00" * 8_192)
        (folder / "empty").write_bytes(b"")
        (folder / "folder").mkdir()
        with suppress(OSError, AttributeError):
            (folder / "link").symlink_to(above / "secret.bin")
            (folder / "links").symlink_to(above)
            (folder / "loop").symlink_to("loop")
            os.mkfifo(folder / "pipe")
    return folder
