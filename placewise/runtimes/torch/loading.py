"""A program out of its archive, if it is the one that the plan is for."""

from __future__ import annotations

import warnings

import torch

from placewise.errors import RunError
from placewise.readers.torch.cutting import calls_of
from placewise.runtimes.torch.payload import Payload


def load(handed: Payload) -> torch.export.ExportedProgram:
    """The program of an archive, if it is the one that the placement is for. Raises RunError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.load(handed.path)
        except Exception as error:
            raise RunError(f"{handed.shown} cannot be loaded by torch.export ({type(error).__name__})") from None
    names = [node.name for node in calls_of(program)]
    for number, name in handed.names.items():
        if number >= len(names) or name != names[number]:
            raise RunError(f"{handed.shown} is not the program that this plan is for: it has no call {name!r} there")
    return program
