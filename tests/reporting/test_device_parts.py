"""What devices hold, in words that fit a line."""

from __future__ import annotations

import numpy as np

from placewise.coarsen.module_parts import ModulePart, ModuleParts
from placewise.reporting.device_parts import describe_parts


def parts_named(*lists: tuple[str, ...], merged: int = 1) -> ModuleParts:
    """Parts with these names on devices 0, 1, …, the first of each device the last of the model."""
    parts = [
        ModulePart(device, name, name, 1, 0.0, 0, -k, merged if k and k == len(names) - 1 else 1)
        for device, names in enumerate(lists)
        for k, name in enumerate(names)
    ]
    return ModuleParts(tuple(parts), np.zeros(0, np.int32))


def test_few_parts_are_all_named_in_the_order_of_the_model() -> None:
    """One, two or five parts; a device without any has no words; commas inside names part them by semicolons."""
    assert describe_parts(parts_named(("a",), (), ("b", "c")), 3) == ["a", "", "c and b"]
    assert describe_parts(parts_named(tuple("abcde")), 1) == ["e, d, c, b and a"]
    assert describe_parts(parts_named(("layers 0, 2", "norm")), 1) == ["norm; and layers 0, 2"]


def test_of_many_parts_the_largest_are_named() -> None:
    """Small ones are counted, also those that the last part contains; what others hold in full leaves "the rest"."""
    many = tuple(f"p{k}" for k in range(40))
    assert describe_parts(parts_named(many), 1) == ["p3, p2, p1, p0 and 36 smaller parts"]
    assert describe_parts(parts_named(many, ("x",)), 2) == ["the rest: p3, p2, p1, p0 and 36 smaller parts", "x"]
    assert (
        describe_parts(parts_named(many[:6], ("x",), merged=8), 2)[0] == "the rest: p3, p2, p1, p0 and 9 smaller parts"
    )
    assert not any(words.startswith("the rest") for words in describe_parts(parts_named(many, many), 2))
