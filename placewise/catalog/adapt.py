"""Adapt a cluster to the user's options: memory limits, excluded devices, kinds of op that they run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from placewise._util.regex import compiled, in_time
from placewise.catalog.device_specs import add_notes, set_memory, share_rest
from placewise.errors import ClusterError, InputError
from placewise.model.cluster import Cluster, Device
from placewise.model.problem import Rule


def adapt_cluster(
    cluster: Cluster,
    *,
    max_memory: Mapping[str, float],
    excluded: Sequence[str],
    offload: bool,
    supported: Sequence[Rule] = (),
    unsupported: Sequence[Rule],
    kinds: Collection[str],
) -> Cluster:
    """The cluster with memory limits in bytes (`max_memory`) and without the devices that match `excluded`.

    Without `offload`, CPUs and disks are not used. `supported` and `unsupported` map patterns of op kinds to devices; a
    device with a pattern in `supported` runs no other kinds. `kinds` are those of the model. Patterns match whole
    names. Raises ClusterError for devices and InputError for kinds that do not exist.
    """
    max_memory = {f"cuda:{name}" if name.isdigit() else name: memory for name, memory in max_memory.items()}
    excluded_names = {name for pattern in excluded for name in _match_devices(cluster, pattern)}
    if not offload:
        excluded_names |= {device.name for device in cluster if device.is_host}
    for name in max_memory:
        cluster.index(name)
    max_memory = share_rest(cluster.devices, max_memory)
    unsupported_kinds = _kinds_by_device(cluster, unsupported, kinds)
    for name, listed in _kinds_by_device(cluster, supported, kinds).items():
        unsupported_kinds.setdefault(name, set()).update(set(kinds) - listed)
    devices = tuple(
        _adapt_device(device, max_memory.get(name), name in excluded_names, unsupported_kinds.get(name, set()))
        for name, device in zip(cluster.names, cluster, strict=True)
    )
    if not any(device.available for device in devices):
        problem = "no device may be used"
        if not offload and cluster.is_host.all():
            problem = "every device is a CPU or a disk, and these may not be used"
        raise ClusterError(problem, where="devices", remedy="add one, or leave one of the devices in use")
    return cluster if devices == cluster.devices else Cluster(devices, cluster.links, cluster.transfers)


def _adapt_device(device: Device, memory: float | None, is_excluded: bool, kinds: set[str]) -> Device:
    if memory is not None:
        device = set_memory(device, memory)
    if kinds:
        device = replace(device, unsupported=device.unsupported | kinds)
    if is_excluded and device.available:
        device = add_notes(replace(device, available=False), "out of use: nothing is placed here")
    return device


def _kinds_by_device(cluster: Cluster, rules: Iterable[Rule], kinds: Collection[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule in rules:
        cluster.index(rule.device)
        found.setdefault(rule.device, set()).update(_match_kinds(rule.pattern, kinds))
    return found


def _match_devices(cluster: Cluster, pattern: str) -> list[str]:
    regex = compiled(pattern)
    with in_time(pattern, len(cluster)):
        matches = [name for name in cluster.names if regex.fullmatch(name)]
    if not matches:
        remedy = f"the cluster has {', '.join(cluster.names)}"
        raise ClusterError(f"there is no device {pattern!r} to leave out", remedy=remedy)
    return matches


def _match_kinds(pattern: str, kinds: Iterable[str]) -> set[str]:
    regex = compiled(pattern)
    with in_time(pattern, 0):
        matches = {kind for kind in kinds if regex.fullmatch(kind)}
    if not matches:
        raise InputError(f"no op of the model is of a kind {pattern!r}", remedy="see `placewise inspect` for the kinds")
    return matches
