"""Check the op names that a description of devices, or a rule about devices, lists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from placewise.costing.flops import CONTROL, RULES
from placewise.errors import ClusterError, InputError
from placewise.model.cluster import Cluster
from placewise.model.problem import Rule

_PLAIN = re.compile(r"[A-Za-z]\w*")
"""A name without a domain; anything else in a rule is an expression."""


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


def check_rule_names(rules: Iterable[Rule], kinds: Iterable[str]) -> None:
    """Raise InputError for a plain name between bars, as in ``Conv|Relu``, that is neither known nor one of `kinds`."""
    known = RULES.keys() | CONTROL | set(kinds)
    for rule in rules:
        for name in rule.pattern.split("|"):
            if _PLAIN.fullmatch(name) and name not in known:
                raise InputError(f"{name[:60]!r} is not an op", where=rule.pattern[:60], remedy=_suggest(name, known))


def _suggest(name: str, known: Iterable[str]) -> str:
    """The remedy: a near name, whatever its case, or where the names are from."""
    by_case = {kind.lower(): kind for kind in known if "::" not in kind}
    close = difflib.get_close_matches(name.lower()[:60], by_case, n=1, cutoff=0.6)
    listed = "`placewise inspect MODEL` lists those of a model"
    return f"did you mean {by_case[close[0]]!r}? {listed}" if close else f"use names as ONNX has them; {listed}"
