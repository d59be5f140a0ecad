"""External data of ONNX models: only files beside the model are opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.helper import make_node
from onnx_files import model, weight

from placewise.errors import ModelFileError
from placewise.readers.onnx.model import load_with_weights

SECRET = np.full(12, 42.0, np.float32).tobytes()


def absolute(folder: Path, secret: Path) -> str:
    return str(secret)


def above(folder: Path, secret: Path) -> str:
    return f"../{secret.name}"


def link(folder: Path, secret: Path) -> str:
    (folder / "link").symlink_to(secret)
    return "link"


def linked_folder(folder: Path, secret: Path) -> str:
    (folder / "links").symlink_to(secret.parent)
    return f"links/{secret.name}"


def hard_link(folder: Path, secret: Path) -> str:
    (folder / "hard").hardlink_to(secret)
    return "hard"


def pipe(folder: Path, secret: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


def device(folder: Path, secret: Path) -> str:
    return "/dev/zero"


@pytest.mark.skipif(os.name == "nt", reason="links and pipes of POSIX")
@pytest.mark.parametrize("where", [absolute, above, link, linked_folder, hard_link, pipe, device])
def test_nothing_else_is_read(tmp_path: Path, where: Callable[[Path, Path], str]) -> None:
    """Refused, or taken for missing: a secret outside never becomes a weight, and nobody waits for a pipe."""
    secret, folder = tmp_path / "secret", tmp_path / "models"
    secret.write_bytes(SECRET)
    folder.mkdir()
    whole = model([make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 3]}, ["y"], [weight("w", 3, 4)])
    (tensor,) = whole.graph.initializer
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", where(folder, secret)
    (folder / "model.onnx").write_bytes(whole.SerializeToString())
    try:
        loaded, notes = load_with_weights(folder / "model.onnx")
    except ModelFileError as error:
        assert "cannot be read from" in str(error)
    else:
        assert "are missing" in notes[0] and loaded.graph.initializer[0].raw_data != SECRET


def test_texts_that_are_not_here(tmp_path: Path) -> None:
    """A weight of texts is not drawn at random (found by the family `external` of the fuzzer)."""
    whole = model([make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 3]}, ["y"], [])
    whole.graph.initializer.add(name="w", data_type=onnx.TensorProto.STRING, dims=[3, 4])
    (tensor,) = whole.graph.initializer
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="nothing")
    (tmp_path / "model.onnx").write_bytes(whole.SerializeToString())
    with pytest.raises(ModelFileError, match="its texts cannot be drawn"):
        load_with_weights(tmp_path / "model.onnx")
