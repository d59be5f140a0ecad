"""Published configurations by name: files in the form of `config.json`, reduced to what determines shapes."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from placewise.errors import ModelFileError
from placewise.readers.huggingface.presets.hub_ids import HUB_IDS

PREFIX = "hf:"
_HERE = Path(__file__).parent


def preset_names() -> tuple[str, ...]:
    """All presets, in alphabetical order."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.json")))


def find_preset(name: str) -> str:
    """The preset with this name, or this id on the Hugging Face hub with or without its owner, whatever their case.

    Raises ModelFileError for an unknown name, with the nearest preset, and how to read another model's configuration.
    """
    presets = preset_names()
    ids = {hub_id.lower(): preset for preset, ids in HUB_IDS.items() for hub_id in ids}
    short = {hub_id.rpartition("/")[2]: preset for hub_id, preset in ids.items()}
    short |= {preset.lower(): preset for preset in presets}
    wanted = name.strip().lower()
    known = short | ids
    if wanted in known:
        return known[wanted]
    close = difflib.get_close_matches(wanted.rpartition("/")[2][:100], short, n=12, cutoff=0.5)
    near = list(dict.fromkeys(short[match] for match in close))[:3]
    where = f"{PREFIX}{name[:100]}"
    if wanted.count("/") != 1 or not all(wanted.split("/")) or "." in wanted.split("/"):
        raise ModelFileError(
            f"there is no preset {name[:100]!r}",
            where=where,
            remedy=f"choose {', '.join(near or presets)}; for another model, save its config.json "
            "(`hf download OWNER/NAME config.json --local-dir model`) and give that file",
        )
    family = _family_of(wanted.rpartition("/")[2])
    kin = [preset for preset in near if difflib.get_close_matches(family, [_family_of(preset)])]
    raise ModelFileError(
        "no preset has the shapes of this model, and nothing is downloaded",
        where=where,
        remedy=f"save its config.json (`hf download {name[:100]} config.json --local-dir model`) and give that file, "
        + (f"or take the nearest preset, hf:{kin[0]}" if kin else "or take a preset, such as hf:llama-3-8b"),
    )


def _family_of(name: str) -> str:
    """How the names of a family of models begin: "llama" for "llama-3-8b"."""
    return re.split(r"[^a-z]", name, maxsplit=1)[0]


def preset_path(name: str) -> Path:
    """The configuration of a preset, by its name or an id of the hub; raises ModelFileError for an unknown name."""
    return _HERE / f"{find_preset(name)}.json"
