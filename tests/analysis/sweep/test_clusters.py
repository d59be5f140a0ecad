"""Several clusters: lists, semicolons and counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewise.analysis.sweep.clusters import expand_counts, read_clusters
from placewise.catalog import read_cluster
from placewise.errors import ClusterError


def test_counts_and_semicolons_make_clusters():
    """Each once, in order; every cluster is the one that its label alone describes."""
    found = read_clusters(["1..3xL4,cpu; A100-80GB", "2xL4,cpu", '{"cuda:0": "20GiB"}'])
    assert [choice.label for choice in found] == [
        "1xL4,cpu", "2xL4,cpu", "3xL4,cpu", "A100-80GB", '{"cuda:0": "20GiB"}',
    ]  # fmt: skip
    assert all(choice.cluster.names == read_cluster(choice.label).names for choice in found)
    assert [choice.n_accelerators for choice in found] == [1, 2, 3, 1, 1]


def test_several_counts_make_every_combination():
    """Of one line."""
    assert expand_counts("1..2xL4,1 .. 2 × T4") == ["1xL4,1xT4", "1xL4,2xT4", "2xL4,1xT4", "2xL4,2xT4"]


def test_objects_and_files_are_clusters(tmp_path: Path):
    """A mapping, a Cluster and a path."""
    file = tmp_path / "c.toml"
    file.write_text('[[devices]]\nmodel = "L4"\n')
    found = read_clusters([{"cuda:0": "8GiB"}, read_cluster("T4"), file])
    assert [choice.label for choice in found] == ['{"cuda:0": "8GiB"}', "cluster 2", str(file)]
    assert read_clusters(None)[0].cluster is None


@pytest.mark.parametrize("text", ["3..1xL4", "0..2xL4", "1..999xL4", "1..4xNothing", "; ;", "1..L4", ""])
def test_bad_clusters_are_one_sentence(text: str):
    """An empty range, too many devices, an unknown device, nothing."""
    with pytest.raises(ClusterError) as error:
        read_clusters(text)
    assert "\n" not in str(error.value)
