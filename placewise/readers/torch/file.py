"""read_pt2: read archives of torch.export.save without PyTorch, weights or unpickling."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewise._util.safe_open import open_regular
from placewise.errors import ModelFileError, locate_errors
from placewise.model.graph import Graph, Source
from placewise.readers.base import NO_DIMS, ImportedModel
from placewise.readers.torch.archive import parse_json, read_descriptions
from placewise.readers.torch.assemble import assemble
from placewise.readers.torch.inline import inline_bodies
from placewise.readers.torch.serialized import KNOWN_VERSION, parse_modules, parse_program

_ZIP = b"PK\3\4"


def looks_like_pt2(path: Path) -> bool:
    """Whether a file may be an archive of torch.export: by its suffix, or because it is a zip file."""
    if path.suffix == ".pt2":
        return True
    try:
        with open_regular(path) as file:
            return file.read(len(_ZIP)) == _ZIP
    except OSError:
        return False


def read_pt2(path: Path, *, dims: Mapping[str, int] | None = None) -> ImportedModel:
    """The raw view of the program in a ``.pt2`` archive: one op per call, `origin` its number in the archive.

    `dims` sets symbolic dimensions by symbol (``s77``), by input and axis (``input_ids:0``), or all first axes at once
    (``batch``). Only descriptions are read, so memory use does not depend on the weights; `sha256` is that of the
    descriptions. Raises ModelFileError or GraphError, naming the file.
    """
    dims = NO_DIMS if dims is None else dims
    with locate_errors(path):
        texts = read_descriptions(Path(path))
        name = _program_name(texts)
        program = parse_json(texts[f"models/{name}.json"], "program")
        source = Source(str(path), _sha256(texts), "torch-export", options={"dims": dict(dims)}, view="raw")
        graph = _build_graph(program, _weight_locations(texts, name), dims, source)
    warnings = (*_version_warnings(program), *_weight_warnings(texts, name, graph))
    return ImportedModel(graph, warnings=warnings, modules=parse_modules(program))


def _build_graph(program: Any, weights: Mapping[str, Any], dims: Mapping[str, int], source: Source) -> Graph:
    try:
        listing = inline_bodies(parse_program(program, weights, dims))
        if not listing.calls:
            raise ModelFileError("the program has no operations", remedy="export the model again")
        return assemble(listing, source)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        problem = f"its program is not in the format of torch.export ({type(error).__name__}: {str(error)[:80]})"
        raise ModelFileError(problem, remedy="save the program again with torch.export.save") from None


def _program_name(texts: Mapping[str, bytes]) -> str:
    names = sorted(name for name in texts if name.startswith("models/"))
    if len(names) > 1:
        shown = ", ".join(Path(name).stem for name in names[:8])
        raise ModelFileError(f"holds {len(names)} programs ({shown})", remedy="save each in a separate archive")
    return names[0].removeprefix("models/").removesuffix(".json")


def _weight_locations(texts: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The archive entries of weights and constants by name."""
    locations: dict[str, Any] = {}
    for part in ("weights", "constants"):
        path = f"data/{part}/{name}_{part}_config.json"
        config = parse_json(texts[path], f"list of {part}") if path in texts else {}
        entries = config.get("config", {}) if isinstance(config, dict) else {}
        locations.update(entries if isinstance(entries, dict) else {})
    return locations


def _sha256(texts: Mapping[str, bytes]) -> str:
    state = hashlib.sha256()
    for name in sorted(texts):
        state.update(name.encode() + b"\0" + texts[name])
    return state.hexdigest()


def _version_warnings(program: Any) -> list[str]:
    version = program.get("schema_version")
    version = version.get("major", KNOWN_VERSION) if isinstance(version, dict) else KNOWN_VERSION
    if version == KNOWN_VERSION:
        return []
    return [f"the program has schema version {version}; it is read as version {KNOWN_VERSION}, the only one supported"]


def _weight_warnings(texts: Mapping[str, bytes], name: str, graph: Graph) -> list[str]:
    if f"data/weights/{name}_weights_config.json" in texts or not len(graph.weights):
        return []
    return ["the archive does not list the storage of its weights: tied weights are counted separately"]
