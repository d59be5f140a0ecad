"""What a cluster costs per hour: prices of the user, of a cluster file, or list prices with their date."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Annotated

from pydantic import Field

from placewise.catalog.entries import catalog, find_device
from placewise.catalog.fields import Table, validate_table
from placewise.errors import ClusterError, InputError
from placewise.model.cluster import ASSUMED, Cluster, Device

HOST_NAMES = ("cpu", "disk")
"""Devices that cost nothing of their own unless a price says so: a machine's price holds its CPU and its disk."""


class ListPrice(Table):
    """The price of one accelerator per hour, in USD, as a cloud lists it at a date."""

    per_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    date: str
    source: str
    url: str


class _PriceTable(Table):
    prices: Mapping[str, ListPrice]


@dataclass(frozen=True, slots=True)
class ClusterPrice:
    """The price of a cluster per hour, None if that of a device is not known: `missing` names it.

    `listed` are the models whose list price was taken.
    """

    per_hour: float | None
    missing: str = ""
    listed: tuple[str, ...] = ()


@functools.cache
def list_prices() -> Mapping[str, ListPrice]:
    """List prices by the catalogue's name of the device."""
    text = resources.files("placewise.catalog").joinpath("data", "prices.toml").read_text("utf-8")
    return validate_table(_PriceTable, tomllib.loads(text), "the list prices").prices


def parse_prices(prices: Mapping[str, object]) -> dict[str, float]:
    """Prices per hour by model (any name of the catalogue) or by name of the device. Raises InputError.

    >>> parse_prices({"A100": 2.5, "cpu": "0.1"})
    {'A100': 2.5, 'cpu': 0.1}
    """
    if not isinstance(prices, Mapping):
        raise InputError("the prices are no mapping", remedy="give them like {'L4': 0.70}")
    parsed = {}
    for name, value in prices.items():
        try:
            price = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            price = float("nan")
        if not 0 <= price < float("inf"):
            problem = f"the price of {str(name)[:60]} is {str(value)[:40]!r}"
            raise InputError(problem, remedy="give an amount per hour, as --price L4=0.70")
        parsed[str(name)] = price
    return parsed


def model_of(device: Device) -> str:
    """The catalogue's name of a device's model; "" if it is unknown, or assumed."""
    if not device.notes or any(note.startswith(ASSUMED) for note in device.notes):
        return ""
    return _models_by_title().get(device.notes[0].partition(": ")[0], "")


def price_cluster(cluster: Cluster, own: Mapping[str, float]) -> ClusterPrice:
    """The price of all devices together; `own` prices (of `parse_prices`) go before list prices.

    Hosts without a price cost nothing beside what is priced, and where `own` prices are given.
    """
    by_model = {canonical_name(name): price for name, price in own.items()}
    total, priced, listed = 0.0, False, dict[str, None]()
    for device in cluster:
        model = model_of(device)
        price = own.get(device.name, by_model.get(model))
        if price is None and device.is_host:
            price = own.get(device.kind)
            if price is None:
                continue
        if price is None and model in list_prices():
            price = list_prices()[model].per_hour
            listed[model] = None
        if price is None:
            return ClusterPrice(None, model or device.name)
        total, priced = total + price, True
    known = priced or (bool(own) and bool(cluster.is_host.all()))
    return ClusterPrice(total, "", tuple(listed)) if known else ClusterPrice(None, cluster.names[0])


def canonical_name(name: str) -> str:
    """The catalogue's name of a model, or the name of a device as it is."""
    try:
        return name if name in HOST_NAMES else find_device(name)
    except ClusterError:
        return name


@functools.cache
def _models_by_title() -> Mapping[str, str]:
    return {entry.title: name for name, entry in catalog().devices.items()}
