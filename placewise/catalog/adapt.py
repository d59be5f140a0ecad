"""A cluster as a user wants it to be used: with other memory, without some devices, without some kinds of op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from placewise._util.regex import compiled, in_time
from placewise.catalog.device_specs import add_notes, set_memory
from placewise.errors import ClusterError, InputError
from placewise.model.cluster import Cluster, Device
from placewise.model.problem import Rule


def adapt_cluster(
    cluster: Cluster,
    *,
    max_memory: Mapping[str, float],
    excluded: Sequence[str],
    offload: bool,
    unsupported: Sequence[Rule],
    kinds: Iterable[str],
) -> Cluster:
    """The cluster with the bytes of `max_memory` (see `set_memory`), and without what patterns of `excluded` name.

    Without `offload` no CPU and no disk is used. `unsupported` are rules from patterns of op kinds, those in `kinds`,
    to devices. Names and kinds are matched whole. Raises ClusterError, InputError.
    """
    max_memory = {f"cuda:{name}" if name.isdigit() else name: memory for name, memory in max_memory.items()}
    out = {name for pattern in excluded for name in _match_devices(cluster, pattern)}
    if not offload:
        out |= {device.name for device in cluster if device.is_host}
    for name in max_memory:
        cluster.index(name)
    lacking: dict[str, set[str]] = {}
    for rule in unsupported:
        cluster.index(rule.device)
        lacking.setdefault(rule.device, set()).update(_match_kinds(rule.pattern, kinds))
    devices = tuple(
        _adapt_device(device, max_memory.get(device.name), device.name in out, lacking.get(device.name, set()))
        for device in cluster
    )
    if not any(device.available for device in devices):
        alone = not offload and cluster.is_host.all()
        problem = "every device is a CPU or a disk, and these may not be used" if alone else "no device may be used"
        raise ClusterError(problem, where="devices", remedy="add one, or leave one of the devices in use")
    return cluster if devices == cluster.devices else Cluster(devices, cluster.links, cluster.transfers)


def _adapt_device(device: Device, memory: float | None, out: bool, lacking: set[str]) -> Device:
    if memory is not None:
        device = set_memory(device, memory)
    if lacking:
        device = replace(device, unsupported=device.unsupported | lacking)
    if out and device.available:
        device = add_notes(replace(device, available=False), "out of use: nothing is placed here")
    return device


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
