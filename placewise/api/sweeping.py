"""sweep: a model at several sizes on several clusters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from placewise.analysis.progress import listening
from placewise.analysis.sweep.run import MAX_POINTS, RESOLUTION, plan_sweep, run_sweep
from placewise.core.build import Devices
from placewise.core.open_model import Model
from placewise.core.options import ProblemKeywords, options_from
from placewise.core.search_limits import budget_from
from placewise.files.atomic import atomic_write
from placewise.files.sweep_file import AnswerRecord, LargestRecord, PointRecord, SweepFile, load_sweep
from placewise.placers.base import Budget, OnProgress, Placer
from placewise.reporting.frames import sweep_frame
from placewise.reporting.notebook import render_html
from placewise.reporting.sweep import format_of, sweep_view
from placewise.reporting.sweep_page import render_sweep


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """The answer of `sweep`: a point per combination of sizes and cluster, and what fits.

    Parameters
    ----------
    file : SweepFile
        All of it, as plain records: what a sweep file (JSON) holds.

    """

    file: SweepFile

    @property
    def points(self) -> tuple[PointRecord, ...]:
        """The points, cluster by cluster, by ascending sizes; also those that the search for the largest added."""
        return self.file.points

    @property
    def largest(self) -> tuple[LargestRecord, ...]:
        """The largest size that fits, along each dimension that varies."""
        return self.file.largest

    @property
    def answers(self) -> tuple[AnswerRecord, ...]:
        """The cheapest or smallest cluster that reaches the goal, per combination of sizes; empty without a goal."""
        return self.file.answers

    def text(self, form: str = "table") -> str:
        """The sweep as `table`, `csv`, `json` or `page`."""
        return render_sweep(self.file, form)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, atomically, as the suffix says: .json, .csv, .html or .txt. Raises InputError, OutputError."""
        written = render_sweep(self.file, format_of(path))
        with atomic_write(path) as file:
            file.write(written)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sweep:
        """The sweep of a JSON file. Raises ModelFileError."""
        return cls(load_sweep(path))

    def to_frame(self) -> Any:
        """A row per point: a pandas.DataFrame. Raises MissingExtraError without the extra `pandas`."""
        return sweep_frame(self.file)

    def _repr_html_(self) -> str:
        return render_html(sweep_view(self.file))

    def __repr__(self) -> str:
        fits = sum(point.fits is True for point in self.points)
        return f"Sweep({fits} of {len(self.points)} points fit)"


def sweep(
    model: Model,
    devices: Devices | Sequence[Devices] | None = None,
    *,
    vary: Mapping[str, str | int | Sequence[int]] | None = None,
    until: str | None = None,
    prices: Mapping[str, float | str] | None = None,
    resolution: float | str = RESOLUTION,
    max_points: int = MAX_POINTS,
    target: str | None = None,
    placer: str | Placer = "auto",
    options: Mapping[str, Any] | None = None,
    time_limit: float | str | None = None,
    gap: float | str = 0.0,
    seed: int = 0,
    threads: int | None = None,
    budget: Budget | float | str | None = None,
    workers: int | None = None,
    ray: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    **problem_options: Unpack[ProblemKeywords],
) -> Sweep:
    """Place a model at several sizes and on several clusters: what fits, how fast it is, and what it costs.

    Parameters
    ----------
    model, target, placer, options, gap, seed, **problem_options
        As in `place`.
    devices : str, path, mapping, Cluster, or a sequence of these
        Clusters. A text may hold several between semicolons, and counts: ``"1..8xL4,cpu; 2xA100-80GB"``.
    vary : mapping of str to str or sequence of int
        Sizes by dimension: ``"4k:256k"`` doubles, ``"128:1024:128"`` adds, ``"1,2,8"`` lists; k is 1024, M 1024².
        Every combination is a point.
    until : str
        A goal, like ``"tokens_per_second>=30"``: a figure (value, latency, throughput, tokens_per_second, memory) with
        ``<=`` or ``>=`` and a limit. Clusters are tried from the cheapest on, where all prices are known, else from the
        smallest on, until one reaches it.
    prices : mapping of str to float
        Prices per hour by model or name of a device. Default: those of cluster files, and dated list prices.
    resolution : float or str
        The largest size that fits is sought between doubled sizes until it is known to this share; 0: exactly.
        Default: 4%.
    max_points : int
        More points, without those that the search for the largest adds, are an error. Default: 256.
    time_limit, threads, budget
        As in `place`, for each point. Default: 10 seconds per point, and all cores for all workers together.
    workers : int
        Processes that evaluate points. A model that is an object stays in this process. Default: one per core.
    ray : str
        Evaluate on the Ray cluster at this address: HOST:PORT, auto or local.
    checkpoint : path
        Write the sweep here after every point.
    resume : bool
        Go on from the checkpoint; its points are not evaluated again.
    on_progress : callable
        Called with a `Progress` after every point.

    Returns
    -------
    Sweep
        What was found. A point whose sizes the model cannot have says why.

    Raises
    ------
    InputError
        If an argument is wrong, or the model cannot be read at any of the sizes; every other PlacewiseError with it.

    Examples
    --------
    >>> import placewise as pw
    >>> found = pw.sweep("zoo:bert-base", "L4", vary={"batch": "1:4"}, placer="single", workers=1)
    >>> [(point.sizes["batch"], point.fits) for point in found.points]
    [(1, True), (2, True), (4, True)]
    >>> found.largest[0].fits
    4

    """
    limits = budget_from(time_limit, gap, seed, threads, budget)
    plan = plan_sweep(
        model,
        devices,
        {} if vary is None else vary,
        options_from(problem_options),
        limits,
        until=until,
        prices=prices,
        resolution=resolution,
        max_points=max_points,
        placer=placer,
        placer_options=options,
        target=target,
    )
    with listening(on_progress) as listener:
        return Sweep(
            run_sweep(plan, workers=workers, ray=ray, checkpoint=checkpoint, resume=resume, on_progress=listener)
        )
