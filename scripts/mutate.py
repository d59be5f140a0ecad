"""Mutation testing: how many small faults in Python code does the check notice?

    python scripts/mutate.py --sample 150 --seed 0 -o benchmarks/results/mutation.md

A mutant is the code of a room with one change in a function: another comparison, operator, number or condition, a
statement left out, nothing returned. Constants of modules, default arguments and texts stay as they are. The sample is
drawn from the mutants of each file on its own, in proportion to their number, LEAST or more of each: a new file changes
little of what is drawn from the others. Tests are collected once, and run once to see which statements each executes;
every mutant is then tried in a fork of that process, in which the function has other code, by the tests that execute
the changed statement: those of the mutated packages first, the quickest first, until one fails or those that take
SECONDS in all have passed; what survives meets the other tests (LATER), for LATER_SECONDS. What fails, or takes too
long, is run again without the mutant, and counts only if it passes then. Subprocesses do not see mutants. Random tests
draw the same examples every time.

With ``--kept build/mutants`` a run that was stopped goes on where it was: tests that were observed are not run again,
mutants that died stay dead, and those that survived meet new tests only; after other changes, delete the folder.
Mutants are tried in a random order, so that those of a run that was stopped are a sample too.
``--only-survivors FILE`` tries the survivors of a table again instead of a sample.

A survivor's reason, written by hand into the last column of the table, is kept when the table is written again; those
whose reason begins with "equivalent" count as neither killed nor survived.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import copy
import gc
import os
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("placewise/simulate", "placewise/placers/shared")
TESTS = ("tests/simulate", "tests/placers", "--ignore-glob=*/learned/test_[!g]*")
"""What is collected: the tests of the rooms and of the methods that use them, but for policies."""
LATER = ("tests/placers/test_brute_force", "tests/placers/test_metamorphic", "tests/placers/test_rules",
         "tests/placers/test_threads", "tests/core/", "tests/targets/")  # fmt: skip
"""How the names of tests begin that only survivors of the others meet, in this order; `--tests` collects the last."""
DEATHS = ("killed", "timeout")
Timed = tuple[float, str]
Seen = dict[tuple[str, int], list[Timed]]
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of the node with a number, in the order of `ast.walk`, and the line of the statement around it.

    `at` is the line and the column of the node itself.
    """

    path: str
    node: int
    change: str
    line: int
    at: str
    text: str


def main() -> int:
    """Collect, observe, try every mutant, write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--least", type=int, default=3, help="the fewest mutants of a file that are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a regular expression that paths of mutants match")
    parser.add_argument("--only-survivors", type=Path, metavar="FILE", help="try the survivors of this table again")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="other tests than those that are collected usually")
    parser.add_argument("--kept", type=Path, help="a folder that keeps what tests execute and how mutants ended")
    parser.add_argument("--seconds", type=float, default=12.0, help="of CPU that the tests of one mutant take")
    parser.add_argument("--later-seconds", type=float, default=30.0, help="the same for the tests that come later")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    os.chdir(ROOT)
    session = Trial(asked)
    pytest.main([*asked.tests, "-q", "-p", "no:cacheprovider", "--no-header", "--no-summary"], plugins=[session])
    return 0


class Trial:
    """What pytest does instead of running its tests."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked

    def pytest_configure(self) -> None:
        """Once the tests' own settings are read, and pytest may rewrite what is imported."""
        from hypothesis import Phase, settings

        settings.register_profile("same", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("same")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Every mutant in a fork; True, since nothing is left to run."""
        items = {item.nodeid: item for item in session.items}
        began = time.monotonic()
        kept: Path | None = self.asked.kept
        seen = observe(items, kept and kept / "observed")
        print(f"\n{len(items)} tests observed in {time.monotonic() - began:.0f} s", flush=True)
        every = [mutant for path in sources() for mutant in mutants_of(path)]
        earlier: Path | None = self.asked.only_survivors
        drawn = sample(every, self.asked) if earlier is None else survivors_of(every, earlier)
        ended = {row[0]: row[1:] for row in map(ast.literal_eval, read_lines(kept and kept / "ended"))}
        rows = []
        drawn = [mutant for mutant in drawn if re.search(self.asked.only, mutant.path)]
        for mutant in random.Random(self.asked.seed).sample(drawn, len(drawn)):
            outcome, passed = ended.get(place(mutant), ("", ()))
            if not outcome.startswith(DEATHS):
                tests = chosen_tests(mutant, seen, self.asked)
                outcome = tried(mutant, items, [row for row in tests if row[1] not in passed])
                if outcome.startswith("survived"):
                    passed = sorted({*passed, *(nodeid for _, nodeid in tests)})
                    outcome = f"survived {len(passed)} tests" if passed else "survived: no test executes it"
                if kept is not None:
                    with (kept / "ended").open("a", encoding="utf-8") as file:
                        file.write(f"{(place(mutant), outcome, passed)!r}\n")
            rows.append((mutant, outcome))
            print(f"{outcome:50.50} {mutant.path}:{mutant.at}  {mutant.text}", flush=True)
        text = table(sorted(rows, key=lambda row: drawn.index(row[0])), len(every), self.asked)
        print(text)
        if self.asked.output:
            self.asked.output.write_text(text, "utf-8")
        return True


def sources() -> list[str]:
    """The files of the rooms."""
    return sorted(str(path) for room in ROOMS for path in Path(room).rglob("*.py"))


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions that stand in no other function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from functions_of(node)


def mutants_of(path: str) -> Iterator[Mutant]:
    """All mutants of a file."""
    tree = ast.parse(Path(path).read_text("utf-8"))
    number = {id(node): place for place, node in enumerate(ast.walk(tree))}

    def visit(node: ast.AST, line: int) -> Iterator[Mutant]:
        line = node.lineno if isinstance(node, ast.stmt) else line
        for change in changes_of(node):
            at = f"{getattr(node, 'lineno', line)}:{getattr(node, 'col_offset', 0) + 1}"
            yield Mutant(path, number[id(node)], change, line, at, described(node, change))
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
                continue
            for each in child if isinstance(child, list) else [child]:
                if isinstance(each, ast.AST) and not isinstance(each, ast.JoinedStr):
                    yield from visit(each, line)

    for function in functions_of(tree):
        for statement in function.body:
            yield from visit(statement, function.lineno)


def changes_of(node: ast.AST) -> list[str]:
    """The changes that a node can have."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp | ast.AugAssign):
        operators = node.ops if isinstance(node, ast.Compare) else [node.op]
        dropped = ["drop"] if isinstance(node, ast.AugAssign) else []
        return dropped + [f"operator {k}" for k, operator in enumerate(operators) if type(operator) in SWAPPED]
    if isinstance(node, ast.Constant):
        return ["constant"] if isinstance(node.value, bool | int | float) else []
    if isinstance(node, ast.UnaryOp):
        return ["bare"] if isinstance(node.op, ast.Not | ast.USub) else []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return ["negate"]
    if isinstance(node, ast.Return):
        return ["none"] if node.value is not None else []
    if isinstance(node, ast.Expr):
        return ["drop"] if not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom) else []
    kept = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript | ast.Attribute)
    return ["drop"] if kept or isinstance(node, ast.Continue | ast.Break | ast.Raise) else []


def changed(node: Any, change: str) -> ast.AST:
    """A copy of the node with the change."""
    node = copy.deepcopy(node)
    kind, _, place = change.partition(" ")
    if kind == "drop":
        return ast.copy_location(ast.Pass(), node)
    if kind == "bare":
        return node.operand
    if kind == "none":
        node.value = ast.Constant(None)
    elif kind == "negate":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif kind == "constant":
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.Compare):
        node.ops[int(place)] = SWAPPED[type(node.ops[int(place)])]()
    else:
        node.op = SWAPPED[type(node.op)]()
    return node


def described(node: ast.AST, change: str) -> str:
    """The change as one line of code."""
    head: Any = node
    if isinstance(node, ast.If | ast.While):
        head = ast.If(node.test, [ast.Pass()], [])
    before = ast.unparse(head).partition("\n")[0]
    after = ast.unparse(ast.fix_missing_locations(changed(head, change))).partition("\n")[0]
    return f"`{before}` → `{after}`"


def sample(every: list[Mutant], asked: argparse.Namespace) -> list[Mutant]:
    """Mutants of every file in proportion to what it has, `--least` or more, in the order of the files."""
    by_path, chosen = defaultdict(list), []
    for mutant in every:
        by_path[mutant.path].append(mutant)
    for path, mutants in by_path.items():
        share = max(asked.least, round(asked.sample * len(mutants) / len(every)))
        drawn = random.Random(f"{asked.seed} {path}").sample(mutants, min(share, len(mutants)))
        chosen += sorted(drawn, key=lambda m: (m.line, m.node, m.change))
    return chosen


def survivors_of(every: list[Mutant], earlier: Path) -> list[Mutant]:
    """The mutants that a table lists as survivors, where the code around them may have moved by some lines."""
    listed = re.findall(r"^\| (\S+\.py):(\d+)\S* \| (.*) \| .* \|$", earlier.read_text("utf-8"), re.MULTILINE)
    chosen: dict[Mutant, None] = {}
    for path, line, text in listed:
        same = [(abs(m.line - int(line)), m) for m in every if m.path == path and written(m) == text]
        nearest = min((distance for distance, _ in same), default=0)
        chosen |= dict.fromkeys(mutant for distance, mutant in same if distance == nearest)
    return list(chosen)


class Replace(ast.NodeTransformer):
    """Another node in the place of one."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else super().generic_visit(node)


class Observe(ast.NodeTransformer):
    """Before every statement, a note that it was reached."""

    def __init__(self, path: str) -> None:
        self.path = path

    def noted(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            note = ast.parse(f"__reached__.add(({self.path!r}, {statement.lineno}))").body[0]
            made += [ast.copy_location(note, statement), self.visit(statement)]
        return made

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Module | ast.ClassDef):
            for each in node.body:
                self.visit(each)
            return node
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                setattr(node, name, self.noted(body))
        for each in [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]:
            self.visit(each)
        return node


def put_in_place(path: str, tree: ast.AST) -> None:
    """Give the functions of a file, wherever they are known, the code of a changed tree."""
    whole = str((ROOT / path).resolve())
    codes: dict[tuple[str, int], CodeType] = {}

    def gather(code: CodeType) -> None:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                codes[constant.co_qualname, constant.co_firstlineno] = constant
                gather(constant)

    gather(compile(ast.fix_missing_locations(tree), whole, "exec", dont_inherit=True))
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == whole:
            new = codes.get((thing.__code__.co_qualname, thing.__code__.co_firstlineno))
            if new is not None and new.co_name != "<lambda>" and new.co_freevars == thing.__code__.co_freevars:
                thing.__code__ = new


def run_one(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether a test passes, or is skipped."""
    from _pytest.runner import runtestprotocol

    return all(report.passed or report.skipped for report in runtestprotocol(item, log=False, nextitem=following))


def forked(work: Any, seconds: float) -> str:
    """What `work` writes in a process of its own; "timeout" if it takes longer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        try:
            answer = work()
        except BaseException as error:
            answer = f"killed by {type(error).__name__}"
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer.encode())
        os._exit(0)
    os.close(writing)
    parts, until, ended = [], time.monotonic() + seconds, False
    os.set_blocking(reading, False)
    while not ended and time.monotonic() < until:
        time.sleep(0.02)
        try:
            while part := os.read(reading, 1 << 16):
                parts.append(part)
            ended = True
        except BlockingIOError:
            continue
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(reading)
    slow = not ended or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF)
    return b"".join(parts).decode() or ("timeout" if slow else "killed by a crash")


def read_lines(path: Path | None) -> list[str]:
    """The lines of a file, if there is one."""
    return path.read_text("utf-8").splitlines() if path is not None and path.exists() else []


def note_reached(order: list[pytest.Item], notes: Path) -> str:
    """Run tests, and write a line for each that passes: its name, its CPU seconds, the statements it executes."""
    reached: set[tuple[str, int]] = set()
    builtins.__reached__ = reached  # type: ignore[attr-defined]
    for path in sources():
        put_in_place(path, Observe(path).visit(ast.parse(Path(path).read_text("utf-8"))))
    with notes.open("a", encoding="utf-8", buffering=1) as file:
        for item, following in zip(order, [*order[1:], None], strict=True):
            reached.clear()
            began = time.process_time()
            if run_one(item, following):
                file.write(f"{(item.nodeid, time.process_time() - began, sorted(reached))!r}\n")
    return "done"


def observe(items: dict[str, pytest.Item], kept: Path | None) -> Seen:
    """Statement → the tests that execute it, with the seconds that each takes, the quickest first."""
    with TemporaryDirectory() as folder:
        notes = kept or Path(folder) / "observed"
        notes.parent.mkdir(parents=True, exist_ok=True)
        names = {ast.literal_eval(line)[0] for line in read_lines(notes)}
        order = sorted(
            (item for name, item in items.items() if name not in names), key=lambda i: i.nodeid.startswith(LATER)
        )
        if order:
            forked(lambda: note_reached(order, notes), 7200.0)
        known = read_lines(notes)
    seen = defaultdict(list)
    for line in known:
        nodeid, seconds, reached = ast.literal_eval(line)
        for statement in reached if nodeid in items else ():
            seen[statement].append((seconds, nodeid))
    return {statement: sorted(tests) for statement, tests in seen.items()}


def chosen_tests(mutant: Mutant, seen: Seen, asked: argparse.Namespace) -> list[Timed]:
    """The tests that a mutant meets, the later ones after the others, with the seconds that each takes."""
    rows = seen.get((mutant.path, mutant.line), [])
    stages = [row for row in rows if not row[1].startswith(LATER)], [row for row in rows if row[1].startswith(LATER)]
    stages[1].sort(key=lambda row: next(k for k, name in enumerate(LATER) if row[1].startswith(name)))
    chosen: list[Timed] = []
    for stage, most in zip(stages, (asked.seconds, asked.later_seconds), strict=True):
        total = 0.0
        for k, (seconds, nodeid) in enumerate(stage):
            total += seconds
            if total <= most or (not k and not chosen):
                chosen.append((seconds, nodeid))
    return chosen


def tried(mutant: Mutant, items: dict[str, pytest.Item], rows: list[Timed]) -> str:
    """Killed and by which test, survived, or timeout."""
    seconds = 300.0 + 30 * sum(row[0] for row in rows)  # a mutant that waits for ever; others end by their CPU
    tests, each = [items[nodeid] for _, nodeid in rows], {nodeid: seconds for seconds, nodeid in rows}

    def run(order: list[pytest.Item], *, mutated: bool) -> str:
        if mutated:
            tree = ast.parse(Path(mutant.path).read_text("utf-8"))
            node = list(ast.walk(tree))[mutant.node]
            put_in_place(mutant.path, Replace(node, changed(node, mutant.change)).visit(tree))
        for item, following in zip(order, [*order[1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, 10.0 + 5 * each[item.nodeid])  # of CPU, on a busy machine too
            if not run_one(item, following):
                return f"killed by {item.nodeid}"
        return "survived"

    while tests:
        outcome = forked(partial(run, tests, mutated=True), seconds)
        if outcome == "timeout":
            return outcome if forked(partial(run, tests, mutated=False), seconds) == "survived" else "survived"
        killer = items.get(outcome.removeprefix("killed by "))
        if killer is None or forked(partial(run, [killer], mutated=False), 120.0) == "survived":
            return outcome
        tests.remove(killer)  # it fails without the mutant too, now and then
    return "survived"


def table(rows: list[tuple[Mutant, str]], n_mutants: int, asked: argparse.Namespace) -> str:
    """The figures and the survivors as Markdown."""
    reasons = written_reasons(asked.output)
    survivors = [(m, outcome) for m, outcome in rows if outcome.startswith("survived")]
    equal = sum(reasons.get(place(m), "").startswith("equivalent") for m, _ in survivors)
    timeouts = sum(outcome == "timeout" for _, outcome in rows)
    killed = len(rows) - len(survivors)
    files = Counter(m.path for m, _ in rows)
    chosen, each = (
        f"--sample {asked.sample} --least {asked.least} --seed {asked.seed}",
        f", {asked.least} or more of each file",
    )
    if asked.only_survivors is not None:
        chosen, each = f"--only-survivors {asked.only_survivors}", ": those that survived before"
    lost = Counter(m.path for m, _ in survivors)
    parts = [
        "# Mutants of the judge and of what placers share\n",
        f"`python scripts/mutate.py {chosen} -o benchmarks/results/mutation.md`\n",
        f"A sample of {len(rows)} of {n_mutants:,} mutants (functions in `{'`, `'.join(ROOMS)}`){each}.\n"
        f"Killed: **{killed}** ({timeouts} by running too long); survived: {len(survivors)}, of them {equal} "
        f"equivalent.\nScore: **{killed / max(1, len(rows)):.1%}**; without equivalent ones "
        f"{killed / max(1, len(rows) - equal):.1%}. What a mutant is, and which tests try it: `scripts/mutate.py`.\n",
        "| file | mutants | survived |\n|---|--:|--:|",
        *(f"| {path} | {count} | {lost[path]} |" for path, count in files.items()),
        "\n## Survivors\n\n| where | change | why |\n|---|---|---|",
        *(f"| {place(m)} | {reasons.get(place(m), outcome)} |" for m, outcome in survivors),
    ]
    return "\n".join(parts) + "\n"


def place(mutant: Mutant) -> str:
    """Two cells of the table: where, and what."""
    return f"{mutant.path}:{mutant.at} | {written(mutant)}"


def written(mutant: Mutant) -> str:
    """The change as a cell of a table."""
    return mutant.text.replace("|", "∣")


def written_reasons(path: Path | None) -> dict[str, str]:
    """The last column of the survivors in the table that there is."""
    if path is None or not path.exists():
        return {}
    rows = re.findall(r"^\| (\S+\.py:\d+:\d+ \| .*) \| (.*) \|$", path.read_text("utf-8"), re.MULTILINE)
    return {where: reason for where, reason in rows if not reason.startswith("survived")}


if __name__ == "__main__":
    sys.exit(main())
