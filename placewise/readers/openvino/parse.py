"""Parse the XML of an IR file in one pass: no entities, no DTD, no network access, all sizes limited."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from placewise._util.safe_open import open_regular
from placewise.errors import ModelFileError
from placewise.readers.openvino.net import IrNet, NetLayer, Port, normalize_type

LARGEST_FILE = 1 << 28  # bytes
LONGEST_TAG = 1 << 23  # bytes
MAX_LAYERS = 500_000
MAX_ELEMENTS = 1 << 23
"""The maximum number of layers, ports, dimensions and edges."""
MAX_DEPTH = 200
LARGEST_NUMBER = 1 << 62
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
MAX_DIMS = 64
_BODIES = frozenset({"body", "then_body", "else_body"})
_CHILDREN: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("net", *_BODIES), frozenset({"layers", "edges"})),
    "layers": frozenset({"layer"}),
    "layer": _BODIES | {"data", "input", "output", "rt_info"},
    "input": frozenset({"port"}),
    "output": frozenset({"port"}),
    "port": frozenset({"dim"}),
    "rt_info": frozenset({"attribute"}),
    "edges": frozenset({"edge"}),
}
"""Relevant child elements by element; all others are skipped with their contents."""
_REMEDY = "convert the model again, with ovc or openvino.save_model"


def parse_ir(path: Path) -> tuple[IrNet, str]:
    """The net in `path` and the file's sha256. Raises ModelFileError with the line but without the path."""
    parser = expat.ParserCreate()
    handler = _IrHandler()
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.EntityDeclHandler = _refuse_doctype
    parser.StartElementHandler = handler.start
    parser.EndElementHandler = handler.end
    parser.CharacterDataHandler = handler.text
    parser.buffer_text = True
    state = hashlib.sha256()
    try:
        with open_regular(path) as file:
            size = 0
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if size > LARGEST_FILE:
                    raise ModelFileError(f"is larger than {LARGEST_FILE >> 20} MiB", remedy="give the .xml file")
                if size == len(chunk) and chunk.startswith(_GZIP):
                    raise ModelFileError("is packed with gzip", remedy="unpack it")
                state.update(chunk)
                parser.Parse(chunk, False)
                if size - parser.CurrentByteIndex > LONGEST_TAG:
                    raise ModelFileError(f"one element takes more than {LONGEST_TAG >> 20} MiB", remedy=_REMEDY)
            if not size:
                raise ModelFileError("the file is empty", remedy=_REMEDY)
            parser.Parse(b"", True)
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror})", remedy="check the path") from None
    except expat.ExpatError as error:
        problem = f"is not well-formed XML ({expat.ErrorString(error.code)})"
        raise ModelFileError(problem, where=f"line {error.lineno}", remedy=_REMEDY) from None
    except (ValueError, LookupError) as error:  # an unknown encoding, or invalid bytes
        raise ModelFileError(f"is not readable XML ({error})", remedy=_REMEDY) from None
    except ModelFileError as error:
        raise error.at(f"line {parser.CurrentLineNumber}") from None
    if handler.net is None:
        raise ModelFileError("this is not an OpenVINO IR (no net in it)", remedy="give the .xml file of an IR")
    return handler.net, state.hexdigest()


def _refuse_doctype(*_: object) -> None:
    raise ModelFileError("it declares a document type or entities, which no IR does", remedy=_REMEDY)


@dataclass(slots=True)
class _IrHandler:
    """Handlers of the XML parser. `path`, `nets` and `layers` are stacks of open elements, nets and layers."""

    net: IrNet | None = None
    path: list[str] = field(default_factory=list)
    nets: list[IrNet] = field(default_factory=list)
    layers: list[NetLayer] = field(default_factory=list)
    digits: list[str] | None = None
    skipped: int = 0
    parts: int = 0
    n_layers: int = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        inside = self.path[-1] if self.path else ""
        if self.skipped or (inside and tag not in _CHILDREN.get(inside, ())):
            self.skipped += 1
            if self.skipped > MAX_DEPTH:
                raise ModelFileError("elements are nested too deeply", remedy=_REMEDY)
            return
        self.parts += 1
        if self.parts > MAX_ELEMENTS or len(self.path) >= MAX_DEPTH:
            raise ModelFileError("it has too many or too deeply nested elements", remedy=_REMEDY)
        self.path.append(tag)
        if not inside or tag in _BODIES:
            self._open_net(tag, attributes)
        elif tag == "layer":
            self._open_layer(attributes)
        elif tag == "edge":
            ends = ("from-layer", "from-port", "to-layer", "to-port")
            source, output, target, entry = (parse_number(_require(attributes, end, "an edge"), end) for end in ends)
            self.nets[-1].edges.append((source, output, target, entry))
        elif tag in ("data", "attribute", "port", "dim"):
            self._open_part(tag, inside, attributes)

    def end(self, tag: str) -> None:
        if self.skipped:
            self.skipped -= 1
            return
        self.path.pop()
        if tag == "dim":
            port = self._ports(self.path[-2])[-1]
            port.dims = (*port.dims, parse_number("".join(self.digits or ()), "a dimension", least=-1))
            self.digits = None
            if len(port.dims) > MAX_DIMS:
                raise ModelFileError(f"{self.layers[-1].place} has too many dimensions", remedy=_REMEDY)
        elif tag == "layer":
            layer = self.layers.pop()
            if not layer.inputs and not layer.outputs:
                raise ModelFileError(f"{layer.place} has no ports", remedy=_REMEDY)
        elif not self.path or tag in _BODIES:
            self.nets.pop()

    def text(self, data: str) -> None:
        if self.digits is not None:
            if len(self.digits) > 9:
                raise ModelFileError("a dimension is not a number", remedy=_REMEDY)
            self.digits.append(data)

    def _open_net(self, tag: str, attributes: Mapping[str, str]) -> None:
        net = IrNet()
        if tag in _BODIES:
            self.layers[-1].bodies.append(net)
        else:
            if tag != "net":
                problem = f"this is not an OpenVINO IR (it begins with <{tag[:40]}>)"
                raise ModelFileError(problem, remedy="give the .xml file of an IR")
            net.version = parse_number(_require(attributes, "version", "the net"), "version")
            self.net = net
        self.nets.append(net)

    def _open_layer(self, attributes: Mapping[str, str]) -> None:
        self.n_layers += 1
        if self.n_layers > MAX_LAYERS:
            raise ModelFileError(f"it has more than {MAX_LAYERS:,} layers", remedy=_REMEDY)
        name = attributes.get("name", "")
        number, kind = (_require(attributes, key, f"layer {name!r}") for key in ("id", "type"))
        layer = NetLayer(parse_number(number, "id"), name, kind, attributes.get("version", ""))
        self.nets[-1].layers.append(layer)
        self.layers.append(layer)

    def _open_part(self, tag: str, inside: str, attributes: Mapping[str, str]) -> None:
        layer = self.layers[-1]
        if tag == "data":
            layer.data = dict(attributes)
        elif tag == "attribute":
            layer.notes.add(attributes.get("name", ""))
        elif tag == "port":
            number = parse_number(_require(attributes, "id", f"a port of {layer.place}"), "id")
            self._ports(inside).append(Port(number, normalize_type(attributes.get("precision", ""))))
        else:
            self.digits = []

    def _ports(self, side: str) -> list[Port]:
        return self.layers[-1].inputs if side == "input" else self.layers[-1].outputs


def _require(attributes: Mapping[str, str], name: str, place: str) -> str:
    try:
        return attributes[name]
    except KeyError:
        raise ModelFileError(f"{place} has no {name!r}", remedy=_REMEDY) from None


def parse_number(text: str, what: str, *, least: int = 0) -> int:
    """Parse a whole number. Raises ModelFileError."""
    plain = text.strip()
    digits = plain.removeprefix("-")
    value = int(plain) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
    if value is None or not least <= value <= LARGEST_NUMBER:
        raise ModelFileError(f"{what} is {text[:40]!r}, not a whole number", remedy=_REMEDY)
    return value
