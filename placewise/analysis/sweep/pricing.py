"""Prices of the clusters of a sweep, what plans cost by them, and the Pareto front of the plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placewise._util.llama_defaults import UBATCH
from placewise.analysis.sweep.clusters import SweptCluster
from placewise.analysis.sweep.goals import figure_of
from placewise.catalog.cluster_file import read_file_prices
from placewise.catalog.prices import ClusterPrice, canonical_name, list_prices, model_of, parse_prices, price_cluster
from placewise.errors import InputError
from placewise.files.sweep_file import ListPriceRecord, PointRecord
from placewise.model.columns import Bools, Floats

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


FIGURES = {"latency": 1, "throughput": -1, "memory": 1, "price": 1}
"""1: less is better, −1: more is better."""
CHOICES = ("batch", "batch_size", "sequences", UBATCH)
"""Sizes that a server chooses; plans for other sizes answer other questions and are not compared."""


def pareto_front(costs: Floats) -> Bools:
    """Which rows of `costs` [n, k] are on the front: no other is nowhere greater and somewhere less; [n].

    Rows in ascending order can be dominated by earlier ones alone, so each is compared with the front so far.

    >>> pareto_front(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0]])).tolist()
    [True, True, False]
    """
    on_front = np.zeros(len(costs), np.bool_)
    front: list[int] = []
    for row in np.lexsort(costs.T[::-1]).tolist() if len(costs) else []:
        best = costs[front]
        on_front[row] = not ((best <= costs[row]).all(axis=1) & (best < costs[row]).any(axis=1)).any()
        if on_front[row]:
            front.append(row)
    return on_front


def mark_front(points: Sequence[PointRecord]) -> tuple[PointRecord, ...]:
    """The points with `pareto`: among those with a plan whose sizes differ in `CHOICES` alone.

    A figure that one of them lacks is left out.
    """
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for row, point in enumerate(points):
        if point.fits:
            key = tuple((name, size) for name, size in point.sizes.items() if name not in CHOICES)
            groups.setdefault(key, []).append(row)
    marked = {row for rows in groups.values() for row in _front_rows(points, rows)}
    return tuple(point.model_copy(update={"pareto": row in marked}) for row, point in enumerate(points))


def _front_rows(points: Sequence[PointRecord], rows: Sequence[int]) -> list[int]:
    columns = []
    for figure, sign in FIGURES.items():
        values = [figure_of(points[row], figure) for row in rows]
        if all(value is not None for value in values):
            columns.append([sign * float(value or 0.0) for value in values])
    front = pareto_front(np.array(columns).T) if columns else np.ones(len(rows), np.bool_)
    return [row for row, kept in zip(rows, front.tolist(), strict=True) if kept]
