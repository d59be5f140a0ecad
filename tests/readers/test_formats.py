"""Which reader a path goes to, and what is said of paths that no reader takes."""

from pathlib import Path

import pytest

from placewise.errors import ModelFileError
from placewise.readers.formats import detect_format, read_model
from placewise.readers.torch.file import read_pt2

GRAPH_TEXT = 'node { name: "x" op: "Placeholder" }'


def refused(path, match, reader=read_model):
    with pytest.raises(ModelFileError, match=match) as caught:
        reader(path)
    assert str(caught.value).startswith(f"{path}: ") and caught.value.remedy


@pytest.mark.parametrize("name", ["folder", "folder.onnx", "folder.npz", "folder.json", "folder.pt2"])
def test_folders_of_no_model(tmp_path, name):
    """A folder is a model only by what is in it, whatever it is called."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("nothing")
    refused(tmp_path / name, "the folder holds neither config.json nor saved_model.pb")


@pytest.mark.parametrize(("name", "hinted"), [("gpt2", True), ("meta-llama/Llama-3.1-8B", True), ("a.onnx", False)])
def test_names_that_are_no_paths(name, hinted):
    """A name without a known suffix may be meant for a preset, which begins with hf: or zoo:."""
    with pytest.raises(ModelFileError, match="No such file or directory") as caught:
        detect_format(Path(name))
    assert ("models by name begin with hf: or zoo:" in str(caught.value)) == hinted


@pytest.mark.parametrize("inside", ["saved_model.pb", "saved_model.pbtxt"])
def test_folders_of_saved_models(tmp_path, inside):
    """The folder of a SavedModel, binary or text, is TensorFlow's; a Hugging Face folder is told by its file."""
    (tmp_path / inside).write_text("")
    assert detect_format(tmp_path) == "tensorflow"
    (tmp_path / "config.json").write_text("{}")
    assert detect_format(tmp_path) == "huggingface"


@pytest.mark.parametrize("content", [b"", b" \r\n\t", b"\xef\xbb\xbf\n"])
@pytest.mark.parametrize("suffix", ["", ".json", ".onnx", ".pb", ".pbtxt", ".pt2", ".xml"])
def test_empty_files(tmp_path, suffix, content):
    """An empty or blank file is called empty under every name."""
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    refused(path, "the file is empty")


def test_an_empty_archive(tmp_path):
    """An empty .pt2 is not cut off, but empty."""
    path = tmp_path / "model.pt2"
    path.write_bytes(b"")
    refused(path, "the file is empty", read_pt2)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (GRAPH_TEXT, "tensorflow"),
        ('{"nodes": [], "edges": []}', "workload"),
        ('{"model_type": "gpt2"}', "huggingface"),
        ("<net name='a'>", "openvino"),
        ("hello", "workload"),
    ],
)
def test_content_decides_behind_json(tmp_path, content, expected):
    """A file called .json goes by its content, and only what nothing knows is read as JSON."""
    path = tmp_path / "model.json"
    path.write_text(content)
    assert detect_format(path) == expected
