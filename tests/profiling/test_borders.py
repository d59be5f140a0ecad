"""What crosses the border between stages of PyTorch's pipelining: measured by `profile`, and priced in plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from soak import SOAKS

from placewise._util.cores import pinnable_cores
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.files.profile_file import BorderFigures, ProfileFile, load_profile, save_profile
from placewise.profiling.profile import Profiling, profile

DATA = Path(__file__).parents[1] / "data"
CORE = pinnable_cores()[0]
HERE = {"core:0": f"cores:{CORE}", "core:1": f"cores:{CORE}"}


MODEL = DATA / "measured" / "small.pt2"


@pytest.fixture(scope="module")
def found() -> ProfileFile:
    """A profile of two cores."""
    pytest.importorskip("torch")
    return profile(build(MODEL, "2xcore"), Profiling("pipelining", HERE, repeats=3))


def test_a_profile_of_pipelining_has_borders(found: ProfileFile, tmp_path: Path) -> None:
    """The ops are those of PyTorch, the border was really measured, and plans with the profile pay for it."""
    problem = build(MODEL, "2xcore")
    (border,) = found.borders
    assert found.runtime == "pipelining" and {border.source, border.target} == {"core:0", "core:1"}
    assert 1e-6 < border.latency < 10 and 1e5 < border.bandwidth < 1e12
    assert found.runs is None
    if SOAKS:
        assert not profile(problem, Profiling("torch", HERE, repeats=3)).borders
    save_profile(found, tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == found
    costed = build(MODEL, "2xcore", ProblemOptions(costs=(str(tmp_path / "profile.json"),)))
    assert any("between stages of pipelining" in note for note in costed.warnings)
    kind = costed.cluster.link_class[0, 1]
    wanted = border.latency + problem.graph.tensors.bytes / border.bandwidth
    assert np.allclose(costed.costs.transfer_seconds[:, kind], wanted)
    host = costed.cluster.link_class[0, 2]
    assert (costed.costs.transfer_seconds[:, host] == problem.costs.transfer_seconds[:, host]).all()


@pytest.mark.soak
def test_runs_of_whole_placements_leave_measured_borders_alone(tmp_path: Path) -> None:
    """The runtime's own threads are timed as well; no pilots are run, and they do not price the border."""
    pytest.importorskip("torch")
    if len(pinnable_cores()) < 2:
        pytest.skip("needs two processors")
    problem = build(DATA / "measured" / "small.pt2", "2xcore")
    found = profile(problem, Profiling("pipelining", repeats=3, pilots=2))
    assert found.runs is not None and found.runs.own_threads and not found.runs.pilots
    save_profile(found, tmp_path / "profile.json")
    costed = build(DATA / "measured" / "small.pt2", "2xcore", ProblemOptions(costs=(str(tmp_path / "profile.json"),)))
    (border,) = found.borders
    kind = costed.cluster.link_class[0, 1]
    wanted = border.latency + problem.graph.tensors.bytes / border.bandwidth
    assert np.allclose(costed.costs.transfer_seconds[:, kind], wanted)
    assert costed.costs.runs.own_threads == found.runs.own_threads


def test_borders_of_a_kind_take_their_median(found: ProfileFile, tmp_path: Path) -> None:
    """Three cores with equal links, three measured borders: every link costs the middle one."""
    pairs = [("core:0", "core:1", 1e-3), ("core:0", "core:2", 5e-3), ("core:1", "core:2", 2e-3)]
    borders = tuple(BorderFigures(source=a, target=b, latency=seconds, bandwidth=1e9) for a, b, seconds in pairs)
    made = found.model_copy(update={"devices": found.devices[:1], "borders": borders})
    save_profile(made, tmp_path / "profile.json")
    costed = build(MODEL, "3xcore", ProblemOptions(costs=(f"*={tmp_path / 'profile.json'}",)))
    sizes = costed.graph.tensors.bytes
    for one, other in ((0, 1), (2, 0), (1, 2)):
        seconds = costed.costs.transfer_seconds[:, costed.cluster.link_class[one, other]]
        assert np.allclose(seconds, 2e-3 + sizes / 1e9)
