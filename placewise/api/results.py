"""What the public functions answer: plans, leaderboards, measurements, explanations."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any, Unpack

from rich.console import RenderableType

from placewise._util.units import format_number
from placewise.analysis.compare import LeaderboardEntry, best_bound, best_plan, tabulate_entries
from placewise.analysis.measure_placements import PLAN, MeasuredPlacements, measured_verdict, tabulate_measurements
from placewise.analysis.report import open_result, render_page, write_page
from placewise.analysis.train_plan import TrainedPlan, tabulate_training
from placewise.core.build import Devices, build_for_plan
from placewise.core.open_model import Model
from placewise.core.options import ProblemKeywords, ProblemOptions, options_from
from placewise.errors import PlanError
from placewise.files.atomic import atomic_write
from placewise.files.plan_file import PlanFile, baselines_of, find_model, load_plan_unless_split, save_plan
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import (
    OPTIMAL_GAP,
    Bound,
    Improvement,
    Judgement,
    Outcome,
    Reason,
    Result,
    Status,
    gap_of,
)
from placewise.reporting.console import result_view
from placewise.reporting.difference import Difference, difference_view
from placewise.reporting.explanation import OpExplanation
from placewise.reporting.figures import plot_leaderboard, plot_timeline
from placewise.reporting.fitted import Fitted, fitted_document, fitted_view
from placewise.reporting.frames import leaderboard_frame, plan_frame, plan_network
from placewise.reporting.gantt import Gantt
from placewise.reporting.leaderboard import board_view, format_for, render_leaderboard
from placewise.reporting.measured import measurement_view
from placewise.reporting.notebook import render_html
from placewise.reporting.page.plan_view import PlanView
from placewise.reporting.plain import plain
from placewise.reporting.slowest import TOP, slowest_modules, slowest_ops
from placewise.reporting.split_explanation import PlanChoices, SplitExplanation, view_of
from placewise.reporting.training_run import training_run_view
from placewise.simulate import bound_soon, judge_placement
from placewise.targets.kept import describe_kept, list_kept
from placewise.training.train_result import Trained
from placewise.training.train_result import lines as training_lines


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The answer of `place`: the result, and what people do with it.

    Parameters
    ----------
    result : Result
        The problem, the placement (None if none was found), how it was judged, and the proven lower bound.

    Examples
    --------
    >>> import placewise as pw
    >>> plan = pw.place("zoo:bert-base", "A100", time_limit="1s")
    >>> set(plan.assignment.values())
    {'cuda:0'}

    """

    result: Result

    @property
    def problem(self) -> Problem:
        return self.result.problem

    @property
    def placement(self) -> Placement | None:
        return self.result.placement

    @property
    def assignment(self) -> dict[str, str]:
        """Op name → device name; empty if there is no placement."""
        result = self.result
        if result.placement is None:
            return {}
        return result.placement.assignment(result.problem.graph, result.problem.cluster)

    @property
    def value(self) -> float:
        """Seconds: latency, or time per sample."""
        return self.result.value

    @property
    def lower_bound(self) -> float:
        """Seconds that no placement can beat."""
        return self.result.lower_bound

    @property
    def gap(self) -> float:
        """(value − lower_bound) / value."""
        return self.result.gap

    @property
    def status(self) -> str:
        """``optimal``, ``feasible``, ``infeasible`` or ``unknown``."""
        return str(self.result.status.outcome)

    @property
    def placement_hash(self) -> str:
        """Sha256 of the placement, as in the plan file: equal placements have equal ones; "" without a placement."""
        return self.result.placement_hash

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of the whole batch while decoding; None for a model that generates none."""
        return self.result.tokens_per_second

    def by_module(self) -> dict[str, list[dict[str, Any]]]:
        """List what each device holds, by module.

        Returns
        -------
        dict of str to list of dict
            Device name → its parts, those that take longest first: ``name``, such as "layers 0–12" or "experts of
            layers 0–31"; ``ops``, how many; ``bytes`` of distinct weights and state; ``seconds`` per sample; ``node``,
            the machine that holds the device, "" where the cluster names none. Every op is in exactly one part. A
            device that runs nothing, or a replica of another's stage, has none. Where most ops have no module, parts
            are ranges of ops in the order of the graph. Of more than 100 parts of a device, the last one contains all
            smaller ones.

        Examples
        --------
        >>> import placewise as pw
        >>> plan = pw.place("zoo:bert-base", "A100", time_limit="1s")
        >>> [part["name"] for part in plan.by_module()["cuda:0"]]
        ['the whole model']

        """
        return self.result.by_module()

    def slowest_ops(self, count: int = TOP) -> list[dict[str, Any]]:
        """List the ops that take longest where the plan has them, the slowest first.

        Parameters
        ----------
        count : int
            How many. Default: 10.

        Returns
        -------
        list of dict
            ``op``, ``kind``, ``module``, ``device``; ``seconds`` per sample, and their ``share`` of those of all ops;
            ``by_device``, the seconds on every device, None where the op cannot run. Empty without a placement.

        Examples
        --------
        >>> import placewise as pw
        >>> plan = pw.place("zoo:bert-base", "A100", time_limit="1s")
        >>> [row["kind"] for row in plan.slowest_ops(2)]
        ['MatMul', 'MatMul']

        """
        placed = self.placement
        return [] if placed is None else [asdict(row) for row in slowest_ops(self.problem, placed, count)]

    def slowest_modules(self, count: int = TOP) -> list[dict[str, Any]]:
        """List the modules that take longest where the plan has them; those that differ in numbers only are one.

        Parameters
        ----------
        count : int
            How many. Default: 10.

        Returns
        -------
        list of dict
            ``module``, such as "layer.*.attention"; how many ``modules`` and ``ops``; ``seconds`` per sample, and their
            ``share`` of those of all ops; ``by_device``, the seconds that the plan spends on every device. Empty
            without a placement.

        Examples
        --------
        >>> import placewise as pw
        >>> plan = pw.place("zoo:bert-base", "A100", time_limit="1s")
        >>> plan.slowest_modules(1)[0]["module"]
        'layer.*.feed_forward.inner'

        """
        placed = self.placement
        return [] if placed is None else [asdict(row) for row in slowest_modules(self.problem, placed, count)]

    @property
    def verdict(self) -> str:
        """Whether the split is worth it, in one sentence (docs/costs.md); "" without anything to compare it with."""
        return "" if self.result.verdict is None else self.result.verdict.sentence

    def summary(self) -> str:
        """What `placewise place` prints, as text."""
        return plain(result_view(self.result, targets=describe_kept(list_kept(self.result))))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file (docs/formats.md), atomically. Raises OutputError."""
        save_plan(self.result, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: Model = None,
        devices: Devices | None = None,
        *,
        example_inputs: Any = None,
        **options: Unpack[ProblemKeywords],
    ) -> Plan:
        """Read a plan file back and judge its placement anew.

        Parameters
        ----------
        path : path
            A plan file, or a published split.
        model : path, "zoo:NAME", "hf:NAME", Graph, Problem or PyTorch module
            The model. Default: the file that the plan names.
        devices : str, path, mapping or Cluster
            Default: the plan's own.
        example_inputs : tuple or mapping
            For a PyTorch module, as in `place`.
        **options
            Those of `ProblemOptions`; what is not given is the plan's own.

        Returns
        -------
        Plan
            The bound, status, history and baselines of the file are kept where objective, rules, devices and value are
            those of the file; otherwise the bound is computed again, and there is no verdict.

        Raises
        ------
        PlanError
            If the file is no plan, belongs to another model, or holds no placement.

        Examples
        --------
        >>> import placewise as pw
        >>> plan = pw.place("zoo:random-layered", "2xL4,cpu", dims={"n_ops": 20}, time_limit="2s")
        >>> plan.save("plan.json")
        >>> pw.Plan.load("plan.json").value == plan.value
        True

        """
        return cls(load_result(path, model, devices, options_from(options), example_inputs))

    def report(self, path: str | os.PathLike[str] | None = None) -> str:
        """The plan as one HTML page (docs/report.md), written if `path` is given, atomically. Raises OutputError."""
        return write_report(open_result(self.result), path)

    @property
    def timeline(self) -> Gantt | None:
        """What runs when: printed, a line per device and link; in a notebook, a picture. None without a placement."""
        result = self.result
        if result.placement is None or result.judgement is None:
            return None
        return Gantt(result.problem, result.placement, result.judgement)

    def _repr_html_(self) -> str:
        return render_html(result_view(self.result))

    def to_frame(self) -> Any:
        """A row per op: its device, its seconds there, and, for latency, when it starts and finishes, in seconds.

        A pandas.DataFrame. Raises MissingExtraError without the extra `pandas`.
        """
        return plan_frame(self.problem, self.placement, self.result.judgement)

    def to_networkx(self) -> Any:
        """As `Graph.to_networkx`, with the `device` of each op. Raises MissingExtraError."""
        return plan_network(self.problem, self.placement)

    def plot(self, axes: Any = None) -> Any:
        """What runs when, in matplotlib's `axes` or in new ones, which are returned.

        Raises InputError without a placement that runs, MissingExtraError without the extra `plot`.
        """
        return plot_timeline(self.problem, self.placement, self.result.judgement, axes)

    def __repr__(self) -> str:
        return f"Plan({self.status}, {self.value:.6g} s, gap {self.gap:.2%}, {self.result.placer})"


@dataclass(frozen=True, slots=True, eq=False)
class Leaderboard:
    """The answer of `compare`: an entry per placer, the best first, and the same as a text or a file."""

    entries: tuple[LeaderboardEntry, ...]

    @property
    def best(self) -> Plan | None:
        """The best plan; None if no placer found one."""
        first = next(iter(self.entries), None)
        return None if first is None or first.result is None or first.result.placement is None else Plan(first.result)

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write the best plan, with the leaderboard in it, atomically. Raises PlanError, OutputError."""
        plan = best_plan(self.entries)
        if plan is None:
            raise PlanError("no placer found a placement", remedy="see the leaderboard for the reasons")
        save_plan(plan, path)

    def report(self, path: str | os.PathLike[str] | None = None) -> str:
        """The best plan as one HTML page with the leaderboard (docs/report.md). Raises PlanError, OutputError."""
        best = self.best
        if best is None:
            raise PlanError("no placer found a placement", remedy="see the leaderboard for the reasons")
        return write_report(open_result(best.result, best_plan(self.entries)), path)

    @property
    def lower_bound(self) -> float:
        """Seconds that no placement can beat: the best bound that any of them proved."""
        return best_bound(self.entries)

    def text(self, form: str = "table") -> str:
        """The leaderboard as `table`, `json`, `csv` or `markdown`. Raises InputError."""
        return render_leaderboard(tabulate_entries(self.entries), format_for(None, form))

    def save(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        """Write it, atomically, in that format or in that of the file's suffix. Raises InputError, OutputError."""
        written = render_leaderboard(tabulate_entries(self.entries), format_for(path, form))
        with atomic_write(path) as file:
            file.write(written)

    def _repr_html_(self) -> str:
        return render_html(board_view(tabulate_entries(self.entries)))

    def _repr_markdown_(self) -> str:
        return self.text("markdown")

    def to_frame(self) -> Any:
        """A row per placer, the best first: a pandas.DataFrame. Raises MissingExtraError without the extra `pandas`."""
        return leaderboard_frame(tabulate_entries(self.entries))

    def plot(self, axes: Any = None) -> Any:
        """The values beside the best lower bound, in matplotlib's `axes` or in new ones, which are returned.

        Raises InputError where no placer found a placement, MissingExtraError without the extra `plot`.
        """
        return plot_leaderboard(tabulate_entries(self.entries), axes)

    def __repr__(self) -> str:
        valid = sum(entry.value < float("inf") for entry in self.entries)
        return f"Leaderboard({valid} of {len(self.entries)} placers have a placement; the best: {self.best!r})"


class _Shown:
    """What has a view: printed as text, and in a notebook as HTML."""

    __slots__ = ()

    def summary(self) -> str:
        """What the command prints, as text."""
        return plain(self._view())

    def _repr_html_(self) -> str:
        return render_html(self._view())

    def _view(self) -> RenderableType:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class RunResult(_Shown):
    """The answer of `run`: what a plan really took, beside the best single device."""

    placements: MeasuredPlacements

    @property
    def seconds(self) -> float:
        """The median of the rounds, per sample; inf if the plan failed."""
        return self.placements.of(PLAN).seconds

    @property
    def spread(self) -> float:
        """The distance between the quartiles of the rounds, as a share of the median; NaN of fewer than two."""
        return self.placements.of(PLAN).measurement.spread

    @property
    def predicted(self) -> float:
        """What the judge says of the plan under the runtime's execution, in seconds.

        With `pipelining`, that of the measured stream, which fills and drains the pipeline.
        """
        return self.placements.of(PLAN).predicted

    @property
    def steady(self) -> float | None:
        """The prediction for a pipeline that is always full, with `pipelining` and several samples in flight."""
        return self.placements.of(PLAN).steady

    @property
    def single(self) -> float:
        """Seconds of the best single device."""
        return self.placements.single.seconds

    @property
    def failure(self) -> str:
        """Why the plan does not run, or gives other outputs; "" if it runs."""
        return self.placements.of(PLAN).measurement.failure

    @property
    def verdict(self) -> str:
        """Whether the split is worth it, in one sentence."""
        return measured_verdict(self.placements, PLAN)

    def _view(self) -> RenderableType:
        return measurement_view(tabulate_measurements(self.placements, PLAN))

    def __repr__(self) -> str:
        took = f"failed: {self.failure}" if self.failure else f"{self.seconds:.6g} s"
        return f"RunResult({took}, best single device {self.single:.6g} s, {self.placements.runtime.name})"


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRun(_Shown):
    """The answer of `run` with `train`: losses, seconds per step and memory, beside those predicted."""

    trained: TrainedPlan

    @property
    def losses(self) -> tuple[float, ...]:
        """The loss of every step, those of the checkpoint that it went on from included."""
        return self.trained.record.losses

    @property
    def seconds(self) -> float:
        """The median seconds per step, without the first one."""
        return self.trained.seconds

    @property
    def predicted(self) -> float:
        """Predicted seconds per step; NaN where the model has no training graph."""
        return self.trained.prediction.seconds

    @property
    def loss_difference(self) -> float:
        """The largest difference of a loss from that of one process, as a share."""
        return self.trained.record.loss_difference

    @property
    def gradient_difference(self) -> float:
        """The largest difference of a gradient from that of one process, as a share of the largest entry."""
        return self.trained.record.gradient_difference

    @property
    def memory(self) -> tuple[int, ...]:
        """The most bytes that training took in each process."""
        return self.trained.record.memory

    @property
    def restarts(self) -> tuple[str, ...]:
        """What ended a process, once for each restart."""
        return self.trained.record.restarts

    def _view(self) -> RenderableType:
        return training_run_view(tabulate_training(self.trained))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Training(Plan):
    """The answer of `train`: the plan of the best placement, and the figures of the training."""

    trained: Trained

    @property
    def updates(self) -> int:
        return self.trained.updates

    @property
    def evaluations(self) -> int:
        """How many different placements were priced."""
        return self.trained.evaluations

    @property
    def learned(self) -> float:
        """The best that the reward said, in seconds: measured, or simulated."""
        return self.trained.learned

    def summary(self) -> str:
        """What `placewise train` prints, as text."""
        return plain(result_view(self.result), *training_lines(self.trained))

    def _repr_html_(self) -> str:
        return render_html(result_view(self.result), *training_lines(self.trained))


@dataclass(frozen=True, slots=True, eq=False)
class Explanation(_Shown):
    """The answer of `explain`: what the op costs on every device, and the best plans with it elsewhere."""

    explanation: OpExplanation | PlanChoices
    plans: tuple[Plan, ...]

    def _view(self) -> RenderableType:
        return view_of(self.explanation)

    def __repr__(self) -> str:
        explanation = self.explanation
        if not isinstance(explanation, OpExplanation | SplitExplanation):
            return "Explanation(of the whole plan)"
        if isinstance(explanation, SplitExplanation):
            where = f"in stage {explanation.stage}, over {explanation.tensor_parallel} devices"
            return f"Explanation({explanation.asked!r} {where})"
        tried = ", ".join(forced.device for forced in explanation.forced)
        return f"Explanation({explanation.asked!r} on {explanation.device}{f', not {tried}' if tried else ''})"


@dataclass(frozen=True, slots=True, eq=False)
class Fit(_Shown):
    """The answer of `fit`: a command, what to expect of it, and what would make it faster."""

    fitted: Fitted

    @property
    def command(self) -> str:
        """What to paste into a terminal; "" where nothing fits."""
        return self.fitted.command

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens per second of the whole batch; None where nothing fits."""
        return self.fitted.tokens_per_second

    @property
    def plan(self) -> Plan:
        """The plan behind the command."""
        return Plan(self.fitted.result)

    def to_dict(self) -> dict[str, Any]:
        """What ``placewise fit --json`` prints, as data."""
        return fitted_document(self.fitted)

    def _view(self) -> RenderableType:
        return fitted_view(self.fitted)

    def __repr__(self) -> str:
        speed = self.tokens_per_second
        if speed is None:
            return "Fit(nothing fits)"
        return f"Fit({self.command!r}, {format_number(speed, 3)} tokens per second)"


@dataclass(frozen=True, slots=True, eq=False)
class PlanDiff(_Shown):
    """The answer of `diff`: the two values and their parts, and what moved."""

    difference: Difference

    def _view(self) -> RenderableType:
        return difference_view(self.difference)

    def __repr__(self) -> str:
        difference = self.difference
        values = f"{difference.before.value:.6g} s → {difference.after.value:.6g} s"
        return f"PlanDiff({difference.moved} of {difference.ops} ops, {values})"


def write_report(shown: PlanView, path: str | os.PathLike[str] | None) -> str:
    """The page as text, written if `path` is given. Raises OutputError."""
    html = render_page(shown)
    if path is not None:
        write_page(html, path)
    return html


def load_result(
    path: str | os.PathLike[str], model: Model, devices: Devices | None, options: ProblemOptions, inputs: Any
) -> Result:
    """The result behind a plan file: its placement judged again, with the file's bound if the value is the same."""
    file = load_plan_unless_split(path)
    source = find_model(path, None) if model is None else model
    problem, placement = build_for_plan(source, path, devices, options, example_inputs=inputs)
    judgement = judge_placement(problem, placement)
    proof = file if file is not None and _answers(file, problem, judgement) else None
    bound = bound_soon(problem) if proof is None else Bound(proof.lower_bound, proof.bound_method)
    optimal = judgement.valid and gap_of(judgement.value, bound.value) <= OPTIMAL_GAP
    outcome = Outcome.OPTIMAL if optimal else Outcome.FEASIBLE if judgement.valid else Outcome.UNKNOWN
    reason = Reason.PROVED if optimal else Reason.FINISHED
    made_by = ("", 0.0, 0, ()) if file is None else (file.placer, file.seconds, file.seed, file.notes)
    placer, seconds, seed, notes = made_by
    return Result(
        problem,
        placement,
        Status(outcome, reason if proof is None else Reason(proof.reason)),
        judgement,
        bound,
        placer,
        seconds,
        seed,
        {},
        () if proof is None else tuple(Improvement(s.seconds, s.value, s.placer) for s in proof.history),
        notes,
        target="" if file is None else file.target,
        others={} if proof is None else baselines_of(proof),
    )


def _answers(file: PlanFile, problem: Problem, judgement: Judgement) -> bool:
    """Whether a file's bound holds: the same objective, rules, devices and value. Another problem needs its own."""
    given = (
        (file.objective, problem.objective),
        (file.constraints, problem.constraints),
        (file.cluster, problem.cluster),
    )
    same = all(record is not None and record == type(record).model_validate(own) for record, own in given)
    return same and math.isclose(file.value, judgement.value, rel_tol=1e-9)
