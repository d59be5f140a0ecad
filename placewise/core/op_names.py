"""Check the op names that a description of devices lists."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from placewise.costing.flops import CONTROL, RULES
from placewise.errors import ClusterError
from placewise.model.cluster import Cluster


def check_op_names(cluster: Cluster, kinds: Iterable[str] = ()) -> None:
    """Raise ClusterError for a listed op name that is neither known, nor one of `kinds`, nor of a domain of its own."""
    known = RULES.keys() | CONTROL | set(kinds)
    for device in cluster:
        for key, names in (("supported", device.supported or ()), ("unsupported", device.unsupported)):
            for name in sorted(names):
                if name not in known and "::" not in name:
                    raise ClusterError(
                        f"{key} lists {name[:60]!r}, which is not an op",
                        where=device.name,
                        remedy=_suggest(name, known),
                    )


def _suggest(name: str, known: Iterable[str]) -> str:
    """The remedy: a near name, whatever its case, or where the names are from."""
    by_case = {kind.lower(): kind for kind in known if "::" not in kind}
    close = difflib.get_close_matches(name.lower()[:60], by_case, n=1, cutoff=0.6)
    listed = "`placewise inspect MODEL` lists those of a model"
    return f"did you mean {by_case[close[0]]!r}? {listed}" if close else f"use names as ONNX has them; {listed}"
