"""IR files for tests: the committed ones, unpacked, and small ones written here."""

import gzip

from locations import DATA

DATA = DATA / "openvino"


def unpacked(folder, name):
    """A committed IR as an .xml file in `folder`."""
    path = folder / f"{name}.xml"
    path.write_bytes(gzip.decompress((DATA / f"{name}.xml.gz").read_bytes()))
    return path


def port(number, dims, precision="FP32"):
    inner = "".join(f"<dim>{dim}</dim>" for dim in dims)
    return f'<port id="{number}" precision="{precision}">{inner}</port>'


def layer(number, kind, *, name=None, data="", inputs=(), outputs=(), more="", precision="FP32"):
    """One layer; ports are numbered through, inputs first; dims are tuples."""
    read = "".join(port(place, dims, precision) for place, dims in enumerate(inputs))
    made = "".join(port(len(inputs) + place, dims, precision) for place, dims in enumerate(outputs))
    return (
        f'<layer id="{number}" name="{kind.lower() if name is None else name}" type="{kind}" version="opset1">{more}'
        f"<data {data}/>" + (f"<input>{read}</input>" if read else "") + (f"<output>{made}</output>" if made else "")
        + "</layer>"
    )  # fmt: skip


def edge(source, output, target, entry):
    return f'<edge from-layer="{source}" from-port="{output}" to-layer="{target}" to-port="{entry}"/>'


def net(layers, edges, *, version=11, before="", after=""):
    """A whole file, as bytes."""
    text = f'<?xml version="1.0"?>{before}<net name="n" version="{version}"><layers>{"".join(layers)}</layers>'
    return f"{text}<edges>{''.join(edges)}</edges>{after}</net>".encode()


def small(**changes):
    """input [2, 3] · weight [4, 3]ᵀ → ReLU → output."""
    layers = [
        layer(0, "Parameter", name="x", data='shape="2,3" element_type="f32"', outputs=[(2, 3)]),
        layer(1, "Const", name="w", data='element_type="f32" shape="4, 3" offset="0" size="48"', outputs=[(4, 3)]),
        layer(2, "MatMul", name="product", data='transpose_a="false" transpose_b="true"',
              inputs=[(2, 3), (4, 3)], outputs=[(2, 4)]),
        layer(3, "ReLU", name="relu", inputs=[(2, 4)], outputs=[(2, 4)]),
        layer(4, "Result", name="y", inputs=[(2, 4)]),
    ]  # fmt: skip
    edges = [edge(0, 0, 2, 0), edge(1, 0, 2, 1), edge(2, 2, 3, 0), edge(3, 1, 4, 0)]
    return net(layers, edges, **changes)
