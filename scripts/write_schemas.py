"""Writes docs/schemas/*.schema.json: run it after changing a record in placewise/files."""

from __future__ import annotations

from pathlib import Path

from placewise.files.atomic import atomic_write
from placewise.files.schema import RECORDS, schema_text

TARGET = Path(__file__).parents[1] / "docs" / "schemas"


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in RECORDS:
        path = TARGET / f"{name}.schema.json"
        with atomic_write(path) as file:
            file.write(schema_text(name))
        print(path)


if __name__ == "__main__":
    main()
