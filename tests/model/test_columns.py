"""Columns: rows by their labels."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

from placewise.model.columns import rows_of_labels


@examples(100)
@given(st.lists(st.integers(-1, 4)), st.integers(0, 4))
def test_rows_of_labels_are_those_that_have_them(labels: list[int], count: int) -> None:
    """Ascending, one list per label, also where no row has it; other labels have none."""
    found = rows_of_labels(np.array(labels, np.int32), count)
    assert [rows.tolist() for rows in found] == [
        [row for row, label in enumerate(labels) if label == wanted] for wanted in range(count)
    ]
