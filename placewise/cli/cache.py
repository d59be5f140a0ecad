"""placewise cache: show or empty the cache of traced graphs and measured times."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.command import guarded, show, show_json


@guarded
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Empty the cache.")] = False, as_json: opt.Json = False
) -> None:
    """Show the cache of traced graphs and measured times and its size, or empty it.

    --no-cache, or PLACEWISE_NO_CACHE=1, turns the cache off for a command.
    """
    from placewise._util.units import format_bytes
    from placewise.files.cache_folder import cache_folder, clear_cache, measure_cache
    from placewise.reporting.console import rows_table

    folder = cache_folder()
    freed = clear_cache() if clear else 0
    contents = measure_cache()
    if as_json:
        place = None if folder is None else str(folder)
        show_json({"folder": place, "freed": freed, "contents": [asdict(usage) for usage in contents]})
    elif folder is None:
        show("this user has no home folder, and so no cache")
    elif clear:
        show(f"removed {format_bytes(freed)} from {folder}")
    else:
        rows = [(u.kind, str(u.files), format_bytes(u.bytes), format_bytes(u.limit)) for u in contents]
        show(str(folder), rows_table(("", "files ", "size ", "limit "), rows))
