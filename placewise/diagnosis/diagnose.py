"""diagnose(): all checks, in the order in which they are printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain

from placewise.diagnosis.checks import Checked, run_checks
from placewise.diagnosis.machine import Machine, list_machine_checks
from placewise.diagnosis.models import TinyModels
from placewise.diagnosis.paths import list_path_checks
from placewise.processes.scratch import scratch_folder

LIMIT = 120.0
"""Seconds after which no further check starts."""


def diagnose() -> Iterator[Checked]:
    """The outcome of every check as soon as it is known."""
    machine, until = Machine(), time.monotonic() + LIMIT
    with scratch_folder() as folder:
        models = TinyModels(machine, folder)
        yield from run_checks(chain(list_machine_checks(machine), list_path_checks(machine, models)), until)
