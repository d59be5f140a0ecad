"""Damage to zip archives: a member is damaged and packed again, or the archive says what is not true."""

from __future__ import annotations

import io
import json
import struct
import warnings
import zipfile
from random import Random

import numpy as np

from fuzzing.leaves import leaf_swapped
from fuzzing.raw import damaged
from fuzzing.tokens import text
from fuzzing.tree import json_damaged

Members = list[tuple[str, bytes]]


def zip_damaged(rng: Random, data: bytes, other: bytes) -> bytes:
    """The archive with members damaged, exchanged, renamed, doubled or taken away."""
    members, donors = unpacked(data), unpacked(other)
    for _ in range(1 + min(rng.randrange(3), rng.randrange(3))):
        row = rng.randrange(len(members))
        name, content = members[row]
        kind = rng.random()
        if kind < 0.7:
            members[row] = name, _content(rng, name, content, donors)
        elif kind < 0.8:
            members[row] = rng.choice(("../" + name, "/" + name, text(rng)[:60_000], members[0][0])), content
        elif kind < 0.9 and len(members) > 1:
            del members[row]
        else:
            members.append((name, rng.choice(donors)[1]))
    return packed(members, rng)


def unpacked(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def packed(members: Members, rng: Random | None = None) -> bytes:
    out = io.BytesIO()
    stored = rng is not None and rng.random() < 0.5
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", 0 if stored else zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore", UserWarning)  # two members of one name
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name.replace("\x00", "") or "x"), content)
    return out.getvalue()


def _content(rng: Random, name: str, content: bytes, donors: Members) -> bytes:
    alike = [data for other, data in donors if other.rpartition(".")[2] == name.rpartition(".")[2]] or [content]
    other = rng.choice(alike)
    if name.endswith(".json") and rng.random() < 0.85 and _is_json(content):
        change = leaf_swapped if rng.random() < 0.3 else json_damaged
        return change(rng, content, other if _is_json(other) else content)
    if name.endswith(".npy") and rng.random() < 0.7:
        return (_numbers if rng.random() < 0.7 else _recast)(rng, content)
    return damaged(rng, content, other)


def _is_json(data: bytes) -> bool:
    """Whether it is still, after what was done to it."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _numbers(rng: Random, content: bytes) -> bytes:
    """One of the array's numbers is another; its header stays as it is."""
    begin = 10 + int.from_bytes(content[8:10], "little")
    if len(content) - begin < 8:
        return content
    place = begin + rng.randrange((len(content) - begin) // 8) * 8
    value = rng.choice((-1, 0, 1, 2**31, 2**62, 2**63 - 1, -(2**63)))
    new = struct.pack("<q", value) if rng.random() < 0.6 else struct.pack(
        "<d", rng.choice((float("nan"), float("inf"), -1.0, 1e308, 0.0))
    )  # fmt: skip
    return content[:place] + new + content[place + 8 :]


def _recast(rng: Random, content: bytes) -> bytes:
    """The array with elements of another type, or of another shape."""
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
        kinds = ("<i1", "<u8", "<f2", "<f8", "<c16", "?", "<U3", "S5", "<M8[s]", ">i4", [("a", "<i4"), ("b", "<f8")])
        new = [array.astype("<f8").astype(rng.choice(kinds)), array[:0], array[None], array.reshape(-1), array[..., :1]]
    except Exception:  # it is damaged already
        return content
    out = io.BytesIO()
    np.save(out, rng.choice((new[0], rng.choice(new))), allow_pickle=False)
    return out.getvalue()
