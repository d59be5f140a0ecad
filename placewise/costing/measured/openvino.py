"""OpenVINO's performance counters: reports of benchmark_app, and the execution graph with times in it.

``benchmark_app -pc -report_type detailed_counters`` (or average_counters) writes CSV or, with -json_stats, JSON.
``-exec_graph_path`` writes the executed graph, whose ``originalLayersNames`` list the layers in a kernel.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any
from xml.parsers import expat

from placewise.costing.measured.content import load_json, open_measurement, read_text
from placewise.costing.measured.table import TimingRow, Timings, read_seconds, spread_over_runs
from placewise.errors import CostError

_MILLI, _MICRO = 1e-3, 1e-6
_COLUMNS = ("layerName", "execStatus", "layerType", "realTime (ms)")
_CHUNK, _LARGEST = 1 << 20, 1 << 30
_RAN = "EXECUTED"

Counter = tuple[str, str, str, object, str]
"""Layer, status, type, milliseconds, place in the file."""


def read_counters_csv(path: Path) -> Timings:
    """Read a CSV report, in which requests follow each other. Raises CostError with the line."""
    return _build_timings(_csv_counters(read_text(path)))


def read_counters_json(path: Path) -> Timings:
    """Read a JSON report. Raises CostError."""
    return _build_timings(_json_counters(load_json(path)))


def _build_timings(counters: Iterator[Counter]) -> Timings:
    times_of: dict[tuple[str, str], list[float]] = {}
    for name, status, kind, value, place in counters:
        if status.removeprefix("Status.") == _RAN:
            times_of.setdefault((name, kind), []).append(read_seconds(value, place, unit=_MILLI))
    if not times_of:
        raise CostError("holds no layer that ran", remedy="run benchmark_app with -pc")
    rows = tuple(
        TimingRow(
            name, float(median(times)), kind=kind, aliases=_parent_names(name), spread=spread_over_runs((0.0, *times))
        )
        for (name, kind), times in times_of.items()
    )
    requests = max(map(len, times_of.values()))
    return Timings(f"OpenVINO counters of {requests} {'request' if requests == 1 else 'requests'}", rows)


def _parent_names(*names: str) -> tuple[str, ...]:
    """Names of ONNX nodes that became several layers: ``node_Gemm_7/WithoutBiases``."""
    return tuple(name.rpartition("/")[0] for name in names if "/" in name)


def build_kernel_row(name: str, seconds: float, kind: str, layers: Iterable[str]) -> TimingRow:
    """The row of a kernel that lists its layers; a kernel without layers changes the memory layout."""
    ops = tuple(layers)
    return TimingRow(
        name, seconds, kind=kind, ops=(*ops, *_parent_names(*ops)), aliases=_parent_names(name) if ops else ()
    )


def _csv_counters(text: str) -> Iterator[Counter]:
    places: list[int] = []
    lines = csv.reader(StringIO(text, newline=""), delimiter=";")
    try:
        for row in lines:
            if row and row[0] == _COLUMNS[0]:
                missing = next((name for name in _COLUMNS if name not in row), None)
                if missing is not None:
                    problem = f"has no column {missing!r}"
                    raise CostError(problem, where=f"line {lines.line_num}", remedy="give benchmark_app's own file")
                places = [row.index(name) for name in _COLUMNS]
            elif len(row) > max(places, default=0) and row[0] != "Total":
                name, status, kind, value = (row[place] for place in places)
                yield name, status, kind, value, f"line {lines.line_num}"
    except csv.Error as error:
        raise CostError(f"is not CSV ({error})", remedy="give benchmark_app's own file") from None


def _json_counters(value: Any) -> Iterator[Counter]:
    reports = value.get("detailed_performance", value.get("avg_performance")) if isinstance(value, Mapping) else None
    reports = [reports] if isinstance(reports, Mapping) else reports
    if not isinstance(reports, list):
        raise CostError("holds no counters", remedy="give benchmark_app's own file, of -report_type detailed_counters")
    for number, report in enumerate(reports):
        nodes = report.get("nodes") if isinstance(report, Mapping) else None
        for row, node in enumerate(nodes if isinstance(nodes, list) else ()):
            if isinstance(node, Mapping):
                texts = (str(node.get(key, "")) for key in ("name", "status", "node_type"))
                name, status, kind = texts
                yield name, status, kind, node.get("real_time"), f"request {number}, node {row}"


def read_execution_graph(path: Path) -> Timings:
    """Read the XML of -exec_graph_path, with average times and the layers in every kernel."""
    rows: list[TimingRow] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag == "layer":
            layer.update(name=attributes.get("name", ""), type=attributes.get("type", ""))
        elif tag == "data" and attributes.get("execTimeMcs", "not_executed") != "not_executed" and layer:
            seconds = read_seconds(attributes["execTimeMcs"], f"line {parser.CurrentLineNumber}", unit=_MICRO)
            layers = filter(None, attributes.get("originalLayersNames", "").split(","))
            rows.append(build_kernel_row(layer["name"], seconds, layer["type"], layers))

    def refuse(*_: object) -> None:
        raise CostError("it declares a document type or entities", remedy="give the file as OpenVINO wrote it")

    layer: dict[str, str] = {}
    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    size = 0
    try:
        with open_measurement(path) as file:
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if size > _LARGEST:
                    raise CostError(f"is larger than {_LARGEST >> 30} GiB", remedy="give the execution graph's .xml")
                parser.Parse(chunk, False)
            parser.Parse(b"", True)
    except expat.ExpatError as error:
        problem = f"is not well-formed XML ({expat.ErrorString(error.code)})"
        raise CostError(problem, where=f"line {error.lineno}", remedy="write it again") from None
    except (ValueError, LookupError) as error:
        raise CostError(f"is not readable XML ({error})", remedy="write it again") from None
    if not rows:
        raise CostError("holds no times", remedy="run benchmark_app with -pc and -exec_graph_path")
    return Timings("OpenVINO execution graph", tuple(rows))
