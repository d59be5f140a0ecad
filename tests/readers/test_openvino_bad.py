"""The OpenVINO reader on bad input: one sentence with the file, the place and the remedy, and never a traceback."""

import gzip

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from ir_files import edge, layer, net, small
from soak import examples

from placewise.errors import GraphError, InputError, ModelFileError
from placewise.readers.openvino import parse as parser
from placewise.readers.openvino import read_openvino

LAUGHS = "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
BOMB = f'<!DOCTYPE net [<!ENTITY a "lol">{LAUGHS}]>'
X, Y = layer(0, "Parameter", name="x", outputs=[(2, 3)]), layer(1, "Result", name="y", inputs=[(2, 3)])
LINK = edge(0, 0, 1, 0)


def refused(path, match, error=ModelFileError, **options):
    with pytest.raises(error, match=match) as caught:
        read_openvino(path, **options)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text and caught.value.remedy
    assert len(text) < len(str(path)) + 500


def written(folder, content):
    path = folder / "model.xml"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "the file is empty"),
        (b"   ", "no element found"),
        (b"\x08\x07\x12\x04onnx", "not well-formed"),
        (b"<html><body>no</body></html>", "not an OpenVINO IR .it begins with <html>"),
        (b"<net/>", "the net has no 'version'"),
        (b'<net version="eleven"/>', "version is 'eleven'"),
        (b'<net version="7"/>', "IR version 7 is too old"),
        (b'<net version="12"/>', "IR version 12 is newer"),
        (b'<net version="11"/>', "has no layers"),
        (small()[:-30], "no element found|unclosed"),
        (small(before="<!DOCTYPE net>"), "document type"),
        (net([X, Y], [LINK], before=BOMB, after="&j;"), "document type or entities"),
        (small(before='<!DOCTYPE net SYSTEM "file:///etc/passwd">'), "document type"),
        (b'<?xml version="1.0" encoding="klingon"?><net version="11"/>', "unknown encoding"),
        (b'<net version="11"><layers><layer name="x"/></layers></net>', "has no 'id'"),
        (b'<net version="11"><layers><layer id="0"/></layers></net>', "has no 'type'"),
        (net([X, X], []), "two layers have the id 0"),
        (net([X, Y], []), "input port 0 of layer 'y' .Result. has no edge"),
        (net([X, Y], [LINK, LINK]), "input port 0 of layer 'y' .Result. has two edges"),
        (net([X, Y], [edge(7, 0, 1, 0)]), "layer 7, which does not exist"),
        (net([X, Y], [edge(0, 5, 1, 0)]), "layer 'x' .Parameter. has no output port 5"),
        (net([X, Y], [edge(0, 0, 1, 5)]), "layer 'y' .Result. has no input port 5"),
        (net([X, Y], [edge("a", 0, 1, 0)]), "from-layer is 'a'"),
        (net([X, Y], ["<edge/>"]), "an edge has no 'from-layer'"),
        (net([layer(0, "Result", name="y")], []), "layer 'y' .Result. has no ports"),
        (net([layer(0, "Const", name="c", outputs=[(1,), (1,)])], []), "must have one output port"),
        (net([X, layer(1, "Result", name="y", inputs=[(7, 9)])], [LINK]),
         r"layer 'y' .Result. reads 7×9, but layer 'x' .Parameter. outputs 2×3"),
        (net([X, layer(1, "Result", name="y", inputs=[(2, 3, 1)])], [LINK]), "reads 2×3×1, but layer 'x'"),
        (small().replace(b'size="48"', b'size="4611686018427387904"'),
         "layer 'w' .Const. has 4611686018427387904 bytes, but its shape and element type need 48"),
        (small().replace(b'size="48"', b'size="47"'), "has 47 bytes"),
        (gzip.compress(small()), "packed with gzip; unpack it"),
        (net([layer(0, "Parameter", name="x", outputs=[("two",)])], []), "a dimension is 'two'"),
        (net([layer(0, "Parameter", name="x", outputs=[(-2,)])], []), "a dimension is '-2'"),
        (net([layer(0, "Parameter", name="x", outputs=[(10**18,) * 3])], []), "absurd shape"),
        (net([layer(0, "Parameter", name="x", outputs=[("9" * 10_000,)])], []), "a dimension is"),
        (net([layer(0, "Parameter", name="x", outputs=[(1,) * 100])], []), "too many dimensions"),
        (net([layer(0, "Const", name="c", data='offset="0" size="all"', outputs=[(1,)])], []), "the size of layer 'c'"),
    ],
)  # fmt: skip
def test_refused(tmp_path, content, match):
    """Foreign, truncated, hostile and inconsistent files."""
    refused(written(tmp_path, content), match)


def test_missing_file_and_folder(tmp_path):
    """A path that is no file."""
    refused(tmp_path / "absent.xml", "cannot be read")
    refused(tmp_path, "cannot be read")


def test_cycle(tmp_path):
    """Two layers that read each other."""
    layers = [layer(row, "ReLU", name=f"r{row}", inputs=[(2,)], outputs=[(2,)]) for row in (0, 1)]
    refused(written(tmp_path, net(layers, [edge(0, 1, 1, 0), edge(1, 1, 0, 0)])), "cycle: 'r", GraphError)


def test_nested_too_deeply(tmp_path):
    """Elements inside elements, known and unknown ones, without end."""
    for tag in ("rt_info", "layer", "body"):
        content = b'<net version="11"><layers>' + f"<{tag}>".encode() * 100_000
        refused(written(tmp_path, content), "deep|no element found|has no 'id'")
    body = '<layer id="0" type="If"><body><layers>'
    refused(written(tmp_path, ('<net version="11"><layers>' + body * 1000).encode()), "deep")


def test_too_large(tmp_path, monkeypatch):
    """More bytes or more elements than any model has."""
    monkeypatch.setattr(parser, "MAX_ELEMENTS", 10)
    refused(written(tmp_path, small()), "too many")
    monkeypatch.setattr(parser, "LARGEST_FILE", 100)
    refused(written(tmp_path, small()), "larger than")


def test_too_many_layers(tmp_path, monkeypatch):
    """Layers are counted, and one without ports is refused where it ends, not after all the others."""
    monkeypatch.setattr(parser, "MAX_LAYERS", 4)
    refused(written(tmp_path, small()), "line 1: it has more than 4 layers")
    bare = b'<net version="11"><layers>\n' + b'<layer id="1" type="A"/>\n' * 9
    refused(written(tmp_path, bare), "line 2: layer '' .A. has no ports")


@pytest.mark.parametrize("before", ["", '<layer id="0" type="A"><rt_info>'])
def test_endless_attribute(tmp_path, monkeypatch, before):
    """An attribute that does not end is refused before it is held as a whole."""
    monkeypatch.setattr(parser, "LONGEST_TAG", 1 << 20)
    content = f'<net version="11"><layers>{before}<layer name="'.encode() + b"a" * (1 << 22)
    refused(written(tmp_path, content), "one element takes more than 1 MiB")


def test_open_ends_fit(tmp_path):
    """An open dimension at one end of an edge fits any number at the other."""
    layers = [X, layer(1, "Result", name="y", inputs=[(-1, 3)])]
    assert read_openvino(written(tmp_path, net(layers, [LINK]))).graph.n_ops == 2


def test_open_dimensions(tmp_path):
    """Open dimensions are named with what fixes them, and unknown names and misfits are refused."""
    layers = [layer(0, "Parameter", name="x", outputs=[(-1, 3)]), layer(1, "Result", name="y", inputs=[(-1, 3)])]
    path = written(tmp_path, net(layers, [LINK]))
    refused(path, "'x:0' is open; give a number: --dim x:0=1")
    refused(path, "no dimension 'length'.*'x:0'.*'batch'", dims={"length": 3})
    refused(path, "'x:0' is 0", dims={"x:0": 0})
    refused(path, "absurd shape", dims={"x:0": 1 << 60})
    refused(written(tmp_path, small()), "no dimension 'x:0'.*all its shapes are fixed", dims={"x:0": 1})
    layers = [
        *(layer(row, "Parameter", name="xz"[row], outputs=[(-1, 3)]) for row in (0, 1)),
        layer(2, "Add", inputs=[(-1, 3), (-1, 3)], outputs=[(-1, 3)]),
    ]
    path = written(tmp_path, net(layers, [edge(0, 0, 2, 0), edge(1, 0, 2, 1)]))
    refused(path, "layer 'add' .Add. do not fit together.*2×3, 5×3; check", dims={"x:0": 2, "z:0": 5})
    assert read_openvino(path, dims={"batch": 4}).graph.tensors.shape[2] == (4, 3)
    end = layer(1, "Result", name="y", inputs=[(-1, 3)])
    spaced = [layer(0, "Parameter", name="the ids", outputs=[(-1, 3)]), end]
    refused(written(tmp_path, net(spaced, [LINK])), "give a number: --dim 'the ids:0=1'")


@pytest.mark.parametrize("kind", ["MatMul", "Convolution", "Convert"])
def test_layers_without_inputs(tmp_path, kind):
    """A product or a conversion of nothing is an op like others, or refused in one sentence."""
    layers = [layer(0, kind, outputs=[(2, 3)]), layer(1, "Result", name="y", inputs=[(2, 3)])]
    assert read_openvino(written(tmp_path, net(layers, [LINK]))).graph.n_ops == 2


def test_every_truncation(tmp_path):
    """A file cut off anywhere is refused."""
    whole, path = small(), tmp_path / "model.xml"
    for length in range(0, len(whole) - 1, 3):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError) as caught:
            read_openvino(path)
        assert str(caught.value).startswith(str(path))


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes(tmp_path, data):
    """A file with some bytes changed, doubled or cut out is read or refused, and nothing else."""
    content = bytearray(small())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content) - 1))
        stop = min(len(content), start + data.draw(st.integers(0, 40)))
        doubled, words = bytes(content[start:stop]) * 2, [b"-1", b"<", b'"', b"9" * 30]
        content[start:stop] = data.draw(st.one_of(st.binary(max_size=8), st.just(doubled), st.sampled_from(words)))
        if not content:
            break
    path = written(tmp_path, bytes(content))
    try:
        read_openvino(path)
    except InputError as error:
        assert str(error).startswith(str(path))
