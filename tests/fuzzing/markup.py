"""Damage to XML: elements, attributes and texts, and what stands before the first element."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from xml.etree import ElementTree as ET

from fuzzing.tokens import COUNTS, NUMBERS, RAW, text

_BOMB = b'<!DOCTYPE net [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>'
_BEFORE = (
    _BOMB, b'<!DOCTYPE net SYSTEM "file:///etc/passwd">', b"<!DOCTYPE net>", b"<?xml-stylesheet href='x'?>",
    b"<!-- " + b"-" * 1_000 + b" -->", b"\xef\xbb\xbf", b"<![CDATA[", b'<?xml version="1.0" encoding="utf-7"?>',
)  # fmt: skip


def xml_damaged(rng: Random, data: bytes, other: bytes) -> bytes:
    """A document with one or a few of its parts changed."""
    root, donor = ET.fromstring(data), ET.fromstring(other)
    for _ in range(rng.choice(COUNTS)):
        elements = [*root.iter()]
        rng.choice(_CHANGES)(rng, rng.choice(elements), elements if rng.random() < 0.6 else [*donor.iter()])
    try:
        out = ET.tostring(root, "utf-8")
    except RecursionError:
        return data  # nested more deeply than can be written
    if rng.random() < 0.05:
        out = rng.choice(_BEFORE) + out
    if rng.random() < 0.03:
        out = out.replace(b">", b">&c;", rng.randrange(1, 5))
    return out


def _word(rng: Random) -> str:
    kind = rng.randrange(3)
    word = text(rng) if kind == 0 else rng.choice(RAW) if kind == 1 else str(rng.choice(NUMBERS[:28]))
    return "".join(letter if letter >= " " or rng.random() < 0.01 else "?" for letter in word)


def _attribute(rng: Random, element: ET.Element, elements: list[ET.Element]) -> None:
    if element.attrib:
        key = rng.choice([*element.attrib])
        donor = rng.choice(elements).get(key)
        element.set(key, _word(rng) if donor is None or rng.random() < 0.6 else donor)


def _unsaid(rng: Random, element: ET.Element, _: list[ET.Element]) -> None:
    if element.attrib:
        del element.attrib[rng.choice([*element.attrib])]


def _text(rng: Random, element: ET.Element, _: list[ET.Element]) -> None:
    element.text = _word(rng)


def _remove(rng: Random, element: ET.Element, _: list[ET.Element]) -> None:
    if len(element):
        element.remove(rng.choice([*element]))


def _again(rng: Random, element: ET.Element, _: list[ET.Element]) -> None:
    if len(element):
        child = rng.choice([*element])
        element.extend([child] * (rng.choice((1, 2, 300)) if len(child) < 20 else 1))


def _graft(rng: Random, element: ET.Element, elements: list[ET.Element]) -> None:
    found = copy.deepcopy(rng.choice(elements))
    if sum(1 for _ in found.iter()) < 3_000:
        element.append(found)


def _rename(rng: Random, element: ET.Element, elements: list[ET.Element]) -> None:
    element.tag = rng.choice((rng.choice(elements).tag, "body", "data", "input", "x"))


def _deepen(rng: Random, element: ET.Element, _: list[ET.Element]) -> None:
    for _depth in range(rng.choice((3, 50, 400))):
        inner = ET.Element(rng.choice(("body", "layer", "port", "data", element.tag)))
        inner.extend([*element])
        element[:] = [inner]


def _shuffle(rng: Random, element: ET.Element, _: list[ET.Element]) -> None:
    children = [*element]
    rng.shuffle(children)
    element[:] = children


_CHANGES: tuple[Callable[[Random, ET.Element, list[ET.Element]], None], ...] = (
    _attribute, _attribute, _attribute, _attribute, _unsaid, _text, _text, _remove, _again, _graft, _rename, _deepen,
    _shuffle,
)  # fmt: skip
