"""Names that count upwards, as ranges."""

from __future__ import annotations

from collections.abc import Sequence


def name_range(names: Sequence[str]) -> str:
    """``acc0–acc7`` for names that count upwards, else a list."""
    parts: list[list[str]] = []
    for name in names:
        stem, number = _split_number(name)
        if parts and _split_number(parts[-1][-1]) == (stem, number - 1) and number > 0:
            parts[-1].append(name)
        else:
            parts.append([name])
    shown = [part[0] if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more ranges" if len(shown) > 4 else "")


def _split_number(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits[:9]) if digits else -1
