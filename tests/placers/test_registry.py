"""The registry: aliases are placers with options preset, under their own name, and nothing is imported too early."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from simulate_problems import random_problem, seeded
from soak import seeds

import placewise as pw
from placewise.core.place import place
from placewise.errors import MissingExtraError, PlacerError
from placewise.model.problem import Constraints, Objective
from placewise.placers import registry
from placewise.placers.base import Budget, Progress, run_placer

ALIASES = {
    "critical_path": ("heft", {"priority": "critical_path"}),
    "dpl": ("dp", {"method": "line"}),
    "max_load_dp": ("dp", {"method": "max_load"}),
    "mincut": ("metis", {"library": "mt-kahypar"}),
    "paths": ("min_cut", {"method": "paths"}),
    "round_robin": ("random", {"draw": "round_robin"}),
    "sct": ("etf", {"favourites": True}),
    "two_way": ("min_cut", {"method": "two_way"}),
}


def problem_for(name: str) -> pw.Problem:
    """A random problem that a placer takes."""
    execution = "sequential" if name == "two_way" else "subgraph"
    kind = "throughput" if name == "dpl" else "latency"
    objective = Objective(kind, execution=execution)  # type: ignore[arg-type]
    for seed in seeds(200):
        problem = random_problem(seeded(seed), max_devices=3, objective=objective, constraints=Constraints())
        if problem.n_ops > 4 and registry.create(name).supports(problem) is None:
            return problem
    raise AssertionError(name)


def test_aliases_are_listed_apart() -> None:
    """Canonical names, aliases, and both together."""
    assert registry.aliases() == tuple(ALIASES)
    assert not set(registry.names()) & set(ALIASES)
    assert registry.known_names() == tuple(sorted((*registry.names(), *ALIASES)))


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_its_placer_under_its_own_name(alias: str) -> None:
    """The same class and placement as with the preset options; results, progress and `info` show the alias."""
    name, preset = ALIASES[alias]
    problem, heard = problem_for(alias), list[Progress]()
    made, same = registry.create(alias), registry.create(name, preset)
    assert type(made) is type(same) is registry.placer_class(name)
    assert (made.info.name, same.info.name) == (alias, name)
    assert made.info.summary == same.info.summary and made.info.source == same.info.source
    one, other = (run_placer(placer, problem, Budget(iterations=2)).placement for placer in (made, same))
    assert (one is None and other is None) or np.array_equal(one.device, other.device)  # type: ignore[union-attr]
    result = place(problem, alias, Budget(iterations=2), on_progress=heard.append)
    assert result.placer == alias and {state.placer for state in heard} == {alias}


def test_options_override_the_preset() -> None:
    """`critical_path` with the priority of `heft` does what `heft` does, under the name that was asked for."""
    placer = registry.create("critical_path", {"priority": "upward_rank", "devices": 2})
    assert placer.info.name == "critical_path" and "upward rank" in placer.info.summary
    with pytest.raises(PlacerError, match="'critical_path' has no option 'favourites'"):
        registry.create("critical_path", {"favourites": True})
    with pytest.raises(PlacerError, match="the option 'method' of 'dpl'"):
        registry.create("dpl", {"method": "ideal"})


def test_the_needed_library_follows_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Mt-KaHyPar only placers that use it are refused, whatever they are called."""
    monkeypatch.setattr(registry, "find_spec", lambda name: None if name == "mtkahypar" else object())
    assert registry.create("metis").info.name == "metis"
    for name, options in (("mincut", {}), ("metis", {"library": "mt-kahypar"})):
        with pytest.raises(MissingExtraError, match=rf"{name}.*mtkahypar.*placewise\[partition\]"):
            registry.create(name, options)


def test_the_registry_imports_no_placer() -> None:
    """Listing names loads none of the modules behind them."""
    code = (
        "import sys; from placewise.placers import registry; registry.known_names(); "
        "print([m for m in sys.modules if m.startswith('placewise.placers.') and m.split('.')[2] not in "
        "('base', 'registry', 'shared')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
