"""Regular expressions of users: errors in words, and an end to searches that have none."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from random import Random

import pytest
from cli_runs import run
from soak import seeds

import placewise as pw
from placewise._util import regex
from placewise.catalog import read_cluster
from placewise.catalog.adapt import adapt_cluster
from placewise.errors import InputError
from placewise.exporters.module_units import find_whole_modules
from placewise.files.graph_file import save_graph
from placewise.model.graph import Graph
from placewise.model.problem import Rule, matching, scopes_together
from placewise.transform.training.flow import trace_gradient_flow

ENDLESS = r"(\w+\w+)+!$"
NAME = "a" * 40


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little time for a search."""
    monkeypatch.setattr(regex, "LONGEST", 0.02)


def named(*names: str) -> Graph:
    """A graph of ops with these names and weights of the same names."""
    builder = pw.GraphBuilder()
    for name in names:
        builder.use_weight(builder.add_weight(f"{name}.w", shape=(1,), dtype="float32"), builder.add_op(name, "Op"))
    return builder.build()


@pytest.mark.usefixtures("brief")
def test_a_search_that_does_not_end_is_ended() -> None:
    """Wherever a user may write an expression, one that takes exponential time is refused, and the timer is off."""
    graph, cluster = named(NAME), read_cluster("2xL4,cpu")
    use = {"excluded": (), "offload": True, "unsupported": (), "kinds": (), "max_memory": {}}
    before = signal.getsignal(signal.SIGVTALRM)
    for search in (
        lambda: matching(graph, ENDLESS),
        lambda: scopes_together(graph, [ENDLESS]),
        lambda: trace_gradient_flow(graph, (ENDLESS,)),
        lambda: find_whole_modules([NAME], ENDLESS),
        lambda: adapt_cluster(cluster, **use | {"unsupported": (Rule(ENDLESS, "cpu"),), "kinds": (NAME,)}),
    ):
        with pytest.raises(InputError, match=r"takes more than 0\.02 s; write it without a repetition inside"):
            search()
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.parametrize("pattern", ["(", "a{1,99999999999}", "(" * 9_000 + ")" * 9_000, "[", "(?P<", "*", "(?<=a+)b"])
def test_what_is_no_expression(pattern: str) -> None:
    """One sentence, also for what Python's parser gives up on."""
    with pytest.raises(InputError, match="is not a regular expression"):
        matching(named("op"), pattern)


def test_what_a_later_python_may_read_otherwise() -> None:
    """No warning of the library's: warnings are errors here."""
    assert matching(named("a[b"), "[[]b").tolist() == [True]


def drawn(rng: Random, depth: int = 4) -> str:
    """A random expression, repetitions inside repetitions among them."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(("a", "b", ".", r"\w", "[ab]", "a?", r"\.", ""))
    one, other = drawn(rng, depth - 1), drawn(rng, depth - 1)
    return rng.choice((f"{one}{other}", f"(?:{one}|{other})", f"(?:{one})*", f"({one})+{other}", f"(?:{one}){{0,9}}!"))


@pytest.mark.usefixtures("brief")
def test_random_expressions_find_what_they_should_or_are_refused() -> None:
    """Whatever is written: the ops that Python's own search finds, or one sentence; both happen."""
    names = ("op", "a" * 30, "ab" * 20, "layer.0.attn", "b" * 60 + "c")
    graph, seen = named(*names), {"found": 0, "nothing": 0, "late": 0}
    for seed in seeds(60):
        pattern = drawn(Random(seed))
        try:
            found = matching(graph, pattern)
        except InputError as error:
            seen["late" if "takes more than" in str(error) else "nothing"] += 1
            continue
        assert found.tolist() == [re.search(pattern, name) is not None for name in names]
        seen["found"] += 1
    assert all(seen.values()), seen


def test_elsewhere_than_in_the_main_thread_there_is_no_timer() -> None:
    """Signals are heard in the main thread only: a search in another one goes its way."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.extend(matching(named("op0", "op1"), "1$").tolist()))
    thread.start()
    thread.join()
    assert found == [False, True]


@pytest.mark.usefixtures("brief")
def test_from_the_command_line(tmp_path: Path) -> None:
    """Exit code 2 and a sentence."""
    path = tmp_path / "graph.npz"
    save_graph(named(NAME), path)
    for rule in (("--pin", f"{ENDLESS}=cpu"), ("--forbid", f"{ENDLESS}=cpu"), ("--no-split", ENDLESS)):
        assert "takes more than" in run("place", path, "-d", "2xL4,cpu", *rule, code=2).stderr
