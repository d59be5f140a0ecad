"""What the tables of this folder take from those of learned policies: rows, methods, and the words of tables."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "learned"))
from methods import Method  # a folder of programs is no package
from rows import SEEDS, Row, Table, arguments, main_of
from tables import (
    EFFORT,
    Found,
    best_known,
    bound,
    effort,
    evaluations_to,
    milliseconds,
    rows_of,
    values,
)

FOLDER = "generalize"
EVALUATIONS = 2000
"""Distinct placements that everybody who learns or searches may price."""
SECONDS = 1200.0
"""A row that takes longer ends with what it has, and says so."""

__all__ = [
    "EFFORT",
    "EVALUATIONS",
    "FOLDER",
    "SECONDS",
    "SEEDS",
    "Found",
    "Method",
    "Row",
    "Table",
    "arguments",
    "best_known",
    "bound",
    "effort",
    "evaluations_to",
    "main_of",
    "milliseconds",
    "rows_of",
    "values",
]  # fmt: skip
