"""A configuration file → its plain values, checked before any library sees them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewise._util.safe_open import open_regular
from placewise.errors import ModelFileError
from placewise.readers.huggingface.presets import PREFIX, preset_path

CONFIG = "config.json"
MAX_BYTES = 4 << 20
MAX_LAYERS, MAX_EXPERTS = 1_000, 10_000
"""More than any published model has, for keys that contain a word of `_COUNTED` and none of `_MEASURED`."""
MAX_LABELS = 100_000
"""Of `num_labels`: transformers makes a name for each label."""
MOST = 1 << 31
DEEPEST = 30
_COUNTED = ("layer", "block", "depth", "stage", "expert")
_NUMBERS = re.compile(r"(num|n)_\w*(layer|block|stage|head|expert)|\w*_layers$")
"""Keys that hold a count, which is never negative (other keys count layers from the end)."""
_REPEATED = "attention_types"
"""GPT-Neo's lists of layer kinds with their repeat counts."""
_MEASURED = ("size", "dim", "width", "len", "capacity", "freq")


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of one configuration, and its origin."""

    path: str
    sha256: str
    values: Mapping[str, Any]


def read_settings(source: str | Path) -> Settings:
    """Read ``hf:`` and a preset or an id of the hub, a configuration file, or the `config.json` in a folder.

    Raises ModelFileError, naming the file, for anything but the configuration of a model.
    """
    text = str(source)
    path = preset_path(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else Path(source)
    name = f"{PREFIX}{path.stem}" if text.startswith(PREFIX) else str(path)
    try:
        if path.is_dir():
            path = path / CONFIG
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"cannot be read ({reason})", where=name, remedy="check the path") from None
    try:
        values = _parse(content)
        check_values(values)
    except ModelFileError as error:
        raise error.at(name) from None
    return Settings(name, hashlib.sha256(content).hexdigest(), values)


def _parse(content: bytes) -> Mapping[str, Any]:
    if len(content) > MAX_BYTES:
        raise ModelFileError("the file is too long for a configuration", remedy="give the config.json of a model")
    if not content.strip():
        raise ModelFileError("the file is empty", remedy="give the config.json of a model")
    try:
        values = json.loads(content)
    except RecursionError:
        raise ModelFileError("it is nested too deeply", remedy="give the config.json of a model") from None
    except (ValueError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0][:120]
        raise ModelFileError(f"this is not JSON ({reason})", remedy="give the config.json of a model") from None
    if not isinstance(values, dict):
        raise ModelFileError(
            "this is not a configuration (not a JSON object)", remedy="give the config.json of a model"
        )
    return values


def check_values(values: Mapping[str, Any]) -> None:
    """Raise ModelFileError for a missing model type, or sizes out of range."""
    for part in list(_parts(values)):
        for key, value in part.items():
            _check_size(str(key), value)
    kind = values.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ModelFileError("it has no model_type", remedy="give the config.json of a model of transformers")


def asks_for_code(values: Mapping[str, Any]) -> bool:
    """Whether a configuration names code of its own (``auto_map``), which Placewise never runs."""
    return any("auto_map" in part or bool(part.get("trust_remote_code")) for part in _parts(values))


def _parts(values: Any) -> Iterator[Mapping[str, Any]]:
    stack = [(values, 0)]
    while stack:
        part, depth = stack.pop()
        if depth > DEEPEST:
            raise ModelFileError("it is nested too deeply", remedy="give the config.json of a model")
        if isinstance(part, dict):
            yield part
            stack.extend((item, depth + 1) for item in part.values())
        elif isinstance(part, list):
            stack.extend((item, depth + 1) for item in part)


def _flat(value: Any) -> Iterator[Any]:
    """Flatten nested lists; `_parts` has limited their depth."""
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _check_size(key: str, value: Any) -> None:
    numbers = [value] if isinstance(value, (int, float)) else value if isinstance(value, list) else []
    counts = any(word in key.lower() for word in _COUNTED) and not any(word in key.lower() for word in _MEASURED)
    if key == _REPEATED:
        numbers, counts = list(_flat(value)), True
    most = MOST if not counts else MAX_EXPERTS if "expert" in key.lower() else MAX_LAYERS
    most = MAX_LABELS if key == "num_labels" else most
    if isinstance(value, int) and value < 0 and _NUMBERS.match(key):
        raise ModelFileError(f"{key} is {value}, but must not be negative", remedy="check the configuration")
    for number in numbers:
        if isinstance(number, (int, float)) and not isinstance(number, bool) and not -MOST <= number <= MOST:
            raise ModelFileError(f"{key} is {str(number)[:20]}, which no model has", remedy="check the configuration")
        if isinstance(number, int) and number > most:
            raise ModelFileError(f"{key} is {number}: the limit is {most}", remedy="check the configuration")
