"""Write the table of targets into docs/export.md: `python scripts/write_export_table.py`."""

from __future__ import annotations

from pathlib import Path

from placewise.exporters.registry import create_exporter, names

PAGE = Path(__file__).parent.parent / "docs" / "export.md"
RULE = "|---|---|---|---|---|---|"


def main() -> None:
    before, _, after = PAGE.read_text().partition(f"{RULE}\n")
    infos = [create_exporter(name).info for name in names()]
    rows = [f"| `{i.name}` | {i.writes} | {i.loaded_by} | {i.verified} | {i.takes} | {i.cannot_say} |" for i in infos]
    rest = after[after.index("\n\n") :] if after.startswith("|") else after
    PAGE.write_text(before + "\n".join((RULE, *rows)) + (rest if rest.startswith("\n") else f"\n{rest}"))


if __name__ == "__main__":
    main()
