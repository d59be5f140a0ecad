"""`read_cluster`: a line, a file, or memory by device → Cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewise.catalog.cluster_file import read_cluster_file
from placewise.catalog.line import cluster_from_memory, parse_json, parse_line
from placewise.errors import ClusterError
from placewise.model.cluster import Cluster

MAX_TEXT = 1 << 16
"""Characters of a one-line cluster."""


def read_cluster(spec: str | Path | Mapping[Any, object]) -> Cluster:
    """The cluster that `spec` describes; every default that was taken is in a device's notes.

    `spec` is one line (``2xA100-80GB,cpu``; ``this`` is this machine; ``2xA100@20GiB``), a TOML file, or
    memory by device (``{"cuda:0": "20GiB", "cpu": "60GiB"}``, also as a JSON text). Raises ClusterError.
    """
    if isinstance(spec, Mapping):
        return cluster_from_memory(spec)
    if isinstance(spec, Path):
        return read_cluster_file(spec)
    if not isinstance(spec, str) or len(spec) > MAX_TEXT or "\0" in spec:
        raise ClusterError("this is no cluster", where="devices", remedy="write it like '2xA100-80GB,cpu'")
    text = spec.strip()
    if text.startswith(("{", "[")):
        return parse_json(text)
    if text.endswith(".toml"):
        return read_cluster_file(Path(text))
    try:
        return parse_line(text)
    except ClusterError as error:
        raise error.at("devices") from None
