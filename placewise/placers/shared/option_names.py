"""Former names of options: users and checkpoints may still give them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from placewise.errors import PlacerError

RENAMED = {
    "failed": "failure_penalty",
    "forgiven": "invalid_grace",
    "leanings": "prior_sets",
    "looks": "refinements",
    "renewed": "restart_after",
    "restless": "extra_exploration",
    "told": "hints",
}
"""Old names of options → their names. Both are read, from users and from checkpoints; the new ones are written."""


def rename_options(values: Mapping[str, Any], known: Collection[str] = frozenset(RENAMED.values())) -> dict[str, Any]:
    """Replace old names of options by current ones, as far as those are `known`.

    Raises PlacerError if an option is given by both of its names.
    """
    renamed: dict[str, Any] = {}
    for name, value in values.items():
        current = RENAMED[name] if name not in known and RENAMED.get(name) in known else name
        if current in renamed:
            raise PlacerError(f"the option {current!r} is given twice", remedy=f"leave out {name!r}")
        renamed[current] = value
    return renamed
