"""What works on this machine, and what Placewise keeps on it: doctor, cache_info, clear_cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placewise.diagnosis.checks import Checked
from placewise.diagnosis.diagnose import diagnose
from placewise.files.cache_folder import CacheUsage, cache_folder, measure_cache
from placewise.files.cache_folder import clear_cache as remove_all


def doctor() -> tuple[Checked, ...]:
    """Run every path that this machine allows once, on tiny models.

    Returns
    -------
    tuple of Checked
        Per check its `area`, `name`, `status` ("works", "failed", "not here" or "not run"), what was found in one
        sentence (`text`), the `seconds` that it took, and the `figures` that it measured, in seconds, bytes and
        bytes/s.

    Examples
    --------
    >>> import placewise as pw
    >>> [check.name for check in pw.doctor() if check.status == "failed"]  # doctest: +SKIP
    []

    """
    return tuple(diagnose())


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Where the cache is (None for users without a home), and how much of each kind it holds."""

    folder: Path | None
    contents: tuple[CacheUsage, ...]

    @property
    def bytes(self) -> int:
        """The size of all its files."""
        return sum(usage.bytes for usage in self.contents)


def cache_info() -> CacheInfo:
    """Where the cache is, and how much it holds.

    Returns
    -------
    CacheInfo
        The folder; per kind (traced graphs, measured times) the number of files, their bytes and the limit in bytes.

    Examples
    --------
    >>> import placewise as pw
    >>> [usage.kind for usage in pw.cache_info().contents]
    ['graphs', 'profiles']

    """
    return CacheInfo(cache_folder(), measure_cache())


def clear_cache() -> int:
    """Remove everything that is cached: traced graphs and measured times.

    Returns
    -------
    int
        How many bytes that freed.

    Examples
    --------
    >>> import placewise as pw
    >>> freed = pw.clear_cache()  # doctest: +SKIP

    """
    return remove_all()
