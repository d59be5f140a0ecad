"""placewise export: a plan in the form that another tool loads, read back and judged before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewise.cli import options as opt
from placewise.cli.command import INFEASIBLE, emit, guarded, listen, say, show, show_json, warn, working
from placewise.errors import InputError, OutputError

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions
    from placewise.exporters.writing import Export


@guarded
@opt.with_problem_options()
def export(
    plan: Annotated[Path | None, typer.Argument(help="Plan file, or a published split.")] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="The target, see --list (default: the one that the plan was made for).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write here (default: text on standard output).")
    ] = None,
    model: opt.MovedModel = None,
    option: Annotated[list[str] | None, typer.Option("--option", help="NAME=VALUE for the target.")] = None,
    save_plan: Annotated[
        Path | None,
        typer.Option(help="Write the exported placement as a plan (default, if projected: beside the output)."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write the files even if the placement breaks a rule.")
    ] = False,
    list_targets: Annotated[bool, typer.Option("--list", help="List the targets and exit.")] = False,
    devices: opt.Devices = None,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write a plan for another tool, projected to a placement that the tool can express, and judged again.

    Exit codes: 0 written, 2 bad input, 3 it would break a rule (nothing is written without --force).
    """
    from placewise.exporters.writing import describe_projection, plan_path, result_of, write_files
    from placewise.files.plan_file import save_plan as save
    from placewise.files.plan_file import target_of
    from placewise.targets.fastest_split import describe_execution, export_fastest

    if list_targets:
        _show_targets(as_json)
        return
    if plan is not None and to is None:
        to = target_of(plan)
    if plan is None or not to:
        raise InputError("export takes a plan and a target", remedy="write placewise export PLAN --to TARGET")
    listen(quiet)
    with working(quiet, "reading the model"):
        problem, placement = _opened(plan, model, devices, problem_options)
        made = export_fastest(problem, placement, to, opt.typed(option))
    warn((*problem.warnings, *made.exported.notes), quiet)
    told = describe_projection(made, problem.n_ops)
    for line in (told, describe_execution(made, searched=target_of(plan) == to), *_say_speed(made)):
        if line and not quiet:
            say(line)
    if made.said.violations and not force:
        for broken in made.said.violations:
            say(f"✗ {broken.kind}: {broken.message}")
        chain = any(broken.kind == "contiguity" for broken in made.said.violations)
        say(f"nothing is written: --force writes it as it is{', --free asks for no chain of stages' if chain else ''}")
        raise typer.Exit(INFEASIBLE)
    written = () if output is None else write_files(made.exported, made.info, output)
    if save_plan is None and output is not None and made.projected:
        save_plan = plan_path(made.info, output)
    if save_plan is not None:
        save(result_of(made, made.problem), save_plan)
    if as_json:
        show_json(_document(made, problem.n_ops, written, save_plan))
    elif output is None:
        emit(_text(made))
    else:
        show(*(f"wrote {path}" for path in (*written, *([save_plan] if save_plan else []))))


def _opened(plan: Path, model: str | None, devices: str | None, problem_options: ProblemOptions) -> Any:
    from placewise.core.build import build_for_plan
    from placewise.files.plan_file import find_model, require_same_file

    problem, placement = build_for_plan(find_model(plan, model), plan, devices, problem_options)
    if model is None:
        require_same_file(plan, problem.graph)
    return problem, placement


def _say_speed(made: Export) -> tuple[str, ...]:
    """What to expect of a command that generates text, as its target runs it."""
    from placewise.core.target_rules import TARGETS, run_on_target
    from placewise.reporting.sentences import free_line, speed_line
    from placewise.simulate import judge_placement

    if made.info.name not in TARGETS or not made.said.valid:
        return ()
    problem = run_on_target(made.problem, made.info.name)
    judged = judge_placement(problem, made.exported.placement)
    speed = speed_line(problem, judged)
    return (speed, free_line(judged, problem, made.exported.buffers)) if speed else ()


def _text(made: Export) -> str:
    """The only file, which is text. Raises OutputError."""
    content = next(iter(made.exported.files.values()), "")
    if not made.info.suffix or isinstance(content, bytes):
        what = "a binary file" if made.info.suffix else "a folder"
        raise OutputError(f"the target {made.info.name} writes {what}", remedy="name the output with -o")
    return content


def _document(made: Export, n_ops: int, written: tuple[Path, ...], plan: Path | None) -> dict[str, Any]:
    return {
        "target": made.info.name,
        "files": [str(path) for path in written] if written else {made.info.name: _text(made)},
        "projected": made.projected,
        "moved": made.moved,
        "ops": n_ops,
        "value": made.said.value,
        "asked": made.asked.value,
        "loss": made.loss,
        "valid": made.said.valid,
        "notes": list(made.exported.notes),
        "plan": str(plan) if plan else None,
    }


def _show_targets(as_json: bool) -> None:
    from placewise.exporters.registry import create_exporter, names
    from placewise.reporting.console import rows_table

    infos = [create_exporter(name).info for name in names()]
    if as_json:
        columns = ("name", "writes", "loaded_by", "verified", "cannot_say", "cannot_split", "takes", "extra")
        show_json([{column: getattr(info, column) for column in columns} for info in infos])
        return
    rows = [(info.name, info.writes, info.loaded_by, info.verified, info.takes) for info in infos]
    show(rows_table(("target", "writes", "loaded by", "verified", "takes"), rows))
