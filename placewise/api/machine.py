"""What works on this machine: doctor."""

from __future__ import annotations

from placewise.diagnosis.checks import Checked
from placewise.diagnosis.diagnose import diagnose


def doctor() -> tuple[Checked, ...]:
    """Run every path that this machine allows once, on tiny models.

    Returns
    -------
    tuple of Checked
        Per check its `area`, `name`, `status` ("works", "failed" or "not here"), what was found in one sentence
        (`text`), the `seconds` that it took, and the `figures` that it measured, in seconds, bytes and bytes/s.

    Examples
    --------
    >>> import placewise as pw
    >>> [check.name for check in pw.doctor() if check.status == "failed"]  # doctest: +SKIP
    []

    """
    return tuple(diagnose())
