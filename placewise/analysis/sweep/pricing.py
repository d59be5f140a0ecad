"""Prices of the clusters of a sweep, and what plans cost by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placewise.analysis.sweep.clusters import SweptCluster
from placewise.catalog.cluster_file import read_file_prices
from placewise.catalog.prices import ClusterPrice, canonical_name, list_prices, model_of, parse_prices, price_cluster
from placewise.errors import InputError
from placewise.files.sweep_file import ListPriceRecord, PointRecord

HOUR, MILLION = 3600.0, 1e6


@dataclass(frozen=True, slots=True, eq=False)
class SweepPrices:
    """The price per hour of each cluster by its label (None: unknown), and the list prices that were taken.

    `given` says whether the user gave any, `missing` which device has none.
    """

    per_hour: Mapping[str, float | None]
    listed: tuple[ListPriceRecord, ...] = ()
    given: bool = False
    missing: str = ""

    @property
    def all_known(self) -> bool:
        return all(price is not None for price in self.per_hour.values())


def price_clusters(clusters: Sequence[SweptCluster], given: Mapping[str, object]) -> SweepPrices:
    """What each cluster costs: by the user's prices, those of its file, and list prices, in this order.

    Raises InputError for a price of a device that no cluster has.
    """
    own = parse_prices(given)
    devices = [device for choice in clusters for device in (choice.cluster or ())]
    known = {name for device in devices for name in (device.name, device.kind, model_of(device))}
    for name in own:
        if name not in known and canonical_name(name) not in known:
            raise InputError(
                f"no cluster has a device {name[:60]!r} to price", remedy="give models or names of devices"
            )
    prices = {choice.label: _price(choice, own) for choice in clusters}
    listed = dict.fromkeys(model for price in prices.values() for model in price.listed)
    missing = next((price.missing for price in prices.values() if price.per_hour is None), "")
    per_hour = {label: price.per_hour for label, price in prices.items()}
    return SweepPrices(per_hour, tuple(map(_list_price, listed)), bool(own), missing)


def add_prices(points: Sequence[PointRecord], prices: SweepPrices) -> tuple[PointRecord, ...]:
    """The points with what they cost."""
    return tuple(_with_price(point, prices.per_hour[point.devices]) for point in points)


def _with_price(point: PointRecord, per_hour: float | None) -> PointRecord:
    return point.model_copy(
        update={
            "price_per_hour": per_hour,
            "price_per_million_tokens": _per_million(per_hour, point.tokens_per_second),
            "price_per_million_samples": _per_million(per_hour, point.throughput),
        }
    )


def _per_million(per_hour: float | None, per_second: float | None) -> float | None:
    return per_hour / HOUR / per_second * MILLION if per_hour is not None and per_second else None


def _price(choice: SweptCluster, own: Mapping[str, float]) -> ClusterPrice:
    if choice.cluster is None:
        return ClusterPrice(None)
    return price_cluster(choice.cluster, {**_file_prices(choice), **own})


def _file_prices(choice: SweptCluster) -> dict[str, float]:
    path = choice.devices
    is_file = isinstance(path, (str, Path)) and str(path).strip().endswith(".toml")
    return parse_prices(read_file_prices(Path(str(path).strip()))) if is_file else {}


def _list_price(model: str) -> ListPriceRecord:
    price = list_prices()[model]
    return ListPriceRecord(device=model, per_hour=price.per_hour, source=price.source, date=price.date)
