"""What Placewise keeps for the next time: cache_info, clear_cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placewise.files.cache_folder import CacheUsage, cache_folder, measure_cache
from placewise.files.cache_folder import clear_cache as remove_all


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
