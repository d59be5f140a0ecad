"""Small files that unfold into large ones."""

from __future__ import annotations

import io
import warnings
import zipfile
from random import Random

_UNFOLDED = 64 << 20


def xml_bomb(rng: Random, data: bytes, other: bytes) -> bytes:
    """Entities that stand for entities, before the text of a sound file."""
    entities = "".join(f'<!ENTITY e{row} "{f"&e{row - 1};" * 10}">' for row in range(1, 9))
    body = data.partition(b"?>")[2] if data.startswith(b"<?xml") else data
    place = rng.choice((b'<net name="', b"<net "))
    used = body.replace(place, place + (b"&e8;" if place.endswith(b'"') else b'x="&e8;" '), 1)
    return f'<?xml version="1.0"?><!DOCTYPE net [<!ENTITY e0 "lol">{entities}]>'.encode() + used


def zip_bomb(rng: Random, data: bytes, other: bytes) -> bytes:
    """An archive with one member that unfolds a thousand times."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        names = archive.namelist()
        chosen = rng.choice(names)
        for name in names:
            packed.writestr(zipfile.ZipInfo(name), archive.read(name))
        info = zipfile.ZipInfo(chosen)
        info.compress_type = zipfile.ZIP_DEFLATED
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # two members of one name
            packed.writestr(info, rng.choice((b" ", b"\0", b"[")) * _UNFOLDED)
    return out.getvalue()
