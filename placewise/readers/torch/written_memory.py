"""Which calls of a program must share a device, because one of them writes in place to memory that others use."""

from __future__ import annotations

from collections import defaultdict

from placewise.model.disjoint_sets import DisjointSets
from placewise.readers.torch.kinds import SKIPPED, convert_call, is_in_place
from placewise.readers.torch.traced_program import TracedCall, TracedProgram


def group_writes(listing: TracedProgram) -> list[int]:
    """The group of each call, −1 for none: calls that use memory that one of them writes are one group.

    A write that nobody else observes binds nothing, since runs replace it by an op that makes a new value.
    """
    sets = DisjointSets(len(listing.calls))
    if not any(call.mutates for call in listing.calls):
        return sets.groups()
    root, written = _find_roots(listing)
    users: dict[str, list[int]] = defaultdict(list)
    for number, call in enumerate(listing.calls):
        for memory in {root.get(name, name) for name in (*call.refs, *call.results)}:
            users[memory].append(number)
    for memory in written:
        for number in users[memory]:
            sets.join(users[memory][0], number)
    return sets.groups()


def _find_roots(listing: TracedProgram) -> tuple[dict[str, str], set[str]]:
    """The value whose memory each value shares, and whose memory a call writes, so that others observe it."""
    root = {parameter.value: f"storage {parameter.storage}" for parameter in listing.parameters}
    outside = {*root.values(), *listing.inputs}
    last_use = {name: number for number, call in enumerate(listing.calls) for name in call.refs}
    last_use |= dict.fromkeys((*listing.outputs, *listing.written), len(listing.calls))
    members: dict[str, list[str]] = defaultdict(list)
    written: set[str] = set()
    for number, call in enumerate(listing.calls):
        shared = _shared_value(call, listing)
        memory = None if shared is None else root.get(shared, shared)
        if call.mutates and memory is not None:
            observed = memory in outside or any(last_use.get(name, -1) > number for name in (memory, *members[memory]))
            if len(call.mutates) == 1 and not observed and is_in_place(call.op.partition("::")[2]):
                memory = None
            else:
                written.update(root.get(name, name) for name in call.mutates)
        for name in call.results:
            root[name] = name if memory is None else memory
            members[root[name]].append(name)
    return root, written


def _shared_value(call: TracedCall, listing: TracedProgram) -> str | None:
    """The argument with which the results of a call share memory, if any."""
    if call.mutates:
        return call.mutates[0]
    if call.op in SKIPPED or not any(name in listing.metas for name in call.results):
        return None
    spec = convert_call(call, listing.metas)
    return spec.arguments[0] if spec.view and spec.arguments else None
