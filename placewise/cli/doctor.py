"""placewise doctor: what works on this machine."""

from __future__ import annotations

from dataclasses import asdict

import typer

from placewise.cli import BAD_INPUT
from placewise.cli import options as opt
from placewise.cli.command import guarded, listen, show, show_json


@guarded
def doctor(as_json: opt.Json = False, quiet: opt.Quiet = False) -> None:
    """Run every path that this machine allows once, on tiny models, and print what works.

    Each line says that something works, that it failed and why, that what it needs is not here, or that no time was
    left for it. Exit codes: 0 nothing failed, 2 something did, 130 interrupted.
    """
    from placewise.diagnosis.checks import Checked
    from placewise.diagnosis.diagnose import diagnose

    listen(quiet)
    found: list[Checked] = []
    for checked in diagnose():
        if not as_json:
            if not found or found[-1].area != checked.area:
                show(*([""] if found else []), checked.area)
            show(f"  {checked.status:8}  {checked.name}: {checked.text}")
        found.append(checked)
    if as_json:
        show_json({"checks": [asdict(checked) for checked in found]})
    if any(checked.status == "failed" for checked in found):
        raise typer.Exit(BAD_INPUT)
