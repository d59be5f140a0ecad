"""A sweep as the text of a file: JSON, CSV, a page or the table."""

from __future__ import annotations

from placewise.files.records import json_bytes
from placewise.files.sweep_file import SweepFile
from placewise.reporting.plain import plain
from placewise.reporting.sweep import sweep_csv, sweep_view
from placewise.reporting.sweep_page import sweep_page


def render_sweep(sweep: SweepFile, form: str) -> str:
    """The sweep as json, csv, page or table, with a line break at the end."""
    if form == "json":
        return json_bytes(sweep).decode("utf-8")
    if form == "csv":
        return sweep_csv(sweep)
    if form == "page":
        return sweep_page(sweep)
    return plain(sweep_view(sweep), width=10_000)
