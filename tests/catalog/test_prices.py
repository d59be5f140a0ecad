"""Prices: the user's, those of a cluster file, and dated list prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewise.analysis.sweep.clusters import read_clusters
from placewise.analysis.sweep.pricing import price_clusters
from placewise.catalog import read_cluster
from placewise.catalog.entries import catalog
from placewise.catalog.prices import list_prices, model_of, parse_prices, price_cluster
from placewise.errors import ClusterError, InputError


def test_list_prices_have_a_device_a_source_and_a_date() -> None:
    """Of a machine with one such device, so that the price of its CPU is in it."""
    for name, price in list_prices().items():
        assert name in catalog().devices
        assert price.per_hour > 0 and "on-demand" in price.source and "(1 ×" in price.source
        assert price.url.startswith("https://")
        year, month = price.date.split("-")
        assert int(year) >= 2020 and 1 <= int(month) <= 12


def test_models_are_known_by_their_figures() -> None:
    """Of every accelerator of the catalogue; an assumed model has no price."""
    for name, entry in catalog().devices.items():
        if entry.kind != "cpu":
            assert model_of(read_cluster(name).devices[0]) == name
    assert model_of(read_cluster({"cuda:0": "24GiB"}).devices[0]) == ""
    assert model_of(read_cluster("2xL4@20GiB,cpu").devices[1]) == "L4"


def test_a_cluster_costs_what_its_devices_do() -> None:
    """The user's prices go before list prices; hosts cost nothing of their own unless they are priced."""
    listed = price_cluster(read_cluster("2xL4,cpu"), {})
    assert listed.per_hour == pytest.approx(2 * list_prices()["L4"].per_hour) and listed.listed == ("L4",)
    own = parse_prices({"A100": 2, "cpu": "0.5", "NVIDIA L4": 0.25})
    assert own == {"A100": 2.0, "cpu": 0.5, "NVIDIA L4": 0.25}
    assert price_cluster(read_cluster("2xL4,A100,cpu"), own).per_hour == 2 * 0.25 + 2 + 0.5
    assert price_cluster(read_cluster({"cuda:0": "8GiB", "cuda:1": "8GiB"}), {"cuda:0": 1, "cuda:1": 2}).per_hour == 3


def test_a_price_that_is_not_known_is_none() -> None:
    """And it is said which device has none; hosts alone have none either."""
    unknown = price_cluster(read_cluster("L4,H100"), {})
    assert (unknown.per_hour, unknown.missing) == (None, "H100")
    assert price_cluster(read_cluster("cpu"), {}).per_hour is None
    assert price_cluster(read_cluster("cpu"), {"cpu": 0.0}).per_hour == 0.0


@pytest.mark.parametrize("price", ["x", "-1", "nan", "inf", None, True, [1]])
def test_bad_prices_are_one_sentence(price: object) -> None:
    """Amounts are numbers, zero or more."""
    with pytest.raises(InputError, match="the price of L4 is"):
        parse_prices({"L4": price})


def test_a_cluster_file_may_hold_prices(tmp_path: Path) -> None:
    """By model or name; what the user says goes before them, and they change nothing else."""
    plain = '[[devices]]\nmodel = "L4"\ncount = 2\n[[devices]]\nname = "npu"\nmemory = "8GiB"\n'
    file = tmp_path / "c.toml"
    file.write_text(plain + "[prices]\nL4 = 0.5\nnpu = 1\n")
    clusters = read_clusters(str(file))
    assert price_clusters(clusters, {}).per_hour == {str(file): 2.0}
    assert price_clusters(clusters, {"L4": 0.25}).per_hour == {str(file): 1.5}
    other = tmp_path / "d.toml"
    other.write_text(plain)
    assert read_cluster(other) == clusters[0].cluster or read_cluster(other).names == ("cuda:0", "cuda:1", "npu")
    file.write_text(plain + "[prices]\nL4 = -0.5\n")
    with pytest.raises(ClusterError, match=r"prices\.L4"):
        read_cluster(file)
