"""The extension module: its containers, its stub, nonsense handed to its kernels, and a wheel used elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import zipfile
from pathlib import Path

import native_fuzz
import numpy as np
import pytest
from locations import HELPERS, ROOT
from simulate_problems import random_problem, seeded
from soak import FACTOR, SOAKS

from placewise import _native
from placewise.errors import InternalError
from placewise.simulate.problem_arrays import arrays_of, to_native

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_containers(tmp_path: Path) -> None:
    """Heap, index set, disjoint sets and random numbers against the standard library, under sanitizers."""
    program, source = tmp_path / "containers", ROOT / "tests" / "native" / "containers.cpp"
    command = [str(COMPILER), "-std=c++20", "-g", "-fsanitize=address,undefined", f"-I{ROOT / 'native'}", str(source)]
    subprocess.run([*command, "-o", str(program)], check=True)
    subprocess.run([program], check=True)


def test_nonsense_is_refused() -> None:
    """Random problems are placed, and their calls of kernels made again with damaged arguments: nothing crashes.

    In a process of its own, so that a crash is a failure of this test.
    """
    count = 60 * FACTOR if SOAKS else 20
    command = [sys.executable, "-m", "native_fuzz", "--problems", str(count), "--seed", "1"]
    done = subprocess.run(command, cwd=HELPERS, capture_output=True, text=True, timeout=300 * FACTOR)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{count} problems placed, {4 * count} damaged calls" in done.stdout


def test_columns_that_do_not_belong_together_are_our_error() -> None:
    """The sentence names what is wrong."""
    a = arrays_of(random_problem(seeded(3), max_ops=9))
    with pytest.raises(InternalError, match="a consumer is no op"):
        to_native(a._replace(consumers=np.full_like(a.consumers, len(a.op_seconds))))
    with pytest.raises(InternalError, match="one device per op"):
        _native.pipeline_loads(to_native(a), np.zeros(len(a.op_seconds) + 1, np.int32))


def test_the_end_of_a_diagram_leads_nowhere() -> None:
    """A child of the last node, which no layer holds, is refused before anything reads it."""
    columns = (np.zeros(1, np.int32), np.array([0, 1]), np.array([[1, 1], [-1, 1000]], np.int32))
    with pytest.raises(InternalError, match="the last node of a diagram has a child"):
        _native.LabelSearch(*columns, np.zeros((2, 2, 1), np.int64), np.ones(1, np.int64), np.ones(1, np.int64))


def test_figures_without_a_meaning_are_our_error() -> None:
    """Numbers that would lead a kernel out of its arrays, round a loop for ever, or over the end of 64 bits."""
    a = arrays_of(random_problem(seeded(3), max_ops=9))
    for streams in (0, -1):
        with pytest.raises(InternalError, match="no such number of ops at once"):
            to_native(a._replace(streams=np.full_like(a.streams, streams)))
    with pytest.raises(InternalError, match="too many queues"):
        to_native(a._replace(n_queues=1 << 62))
    long, short, one = np.int64, np.int32, np.ones((1, 1), np.bool_)
    roots = np.zeros(1, short), np.array([0, 2]), np.array([[2, 2], [2, 2], [-1, -1]], short)
    with pytest.raises(InternalError, match="one root"):
        _native.LabelSearch(*roots, np.zeros((3, 2, 1), long), np.ones(1, long), np.ones(1, long))
    line = np.zeros(1, short), np.array([0, 1]), np.array([[1, 1], [-1, -1]], short)
    with pytest.raises(InternalError, match="too large"):
        _native.LabelSearch(*line, np.zeros((2, 2, 1), long), np.full(1, 1 << 52), np.ones(1, long))
    none = np.zeros(0, short), np.zeros(0, long)
    huge, start, free = np.full(1, 1 << 62), np.zeros(2, long), np.full(1, -1, short)
    with pytest.raises(InternalError, match="too many bytes"):
        _native.GroupNeeds(one, free, huge, np.zeros(1, long), start, *none, np.full(1, 10))
    with pytest.raises(InternalError, match="too many bytes"):
        _native.MemoryRepair(
            huge, start, *none, one, np.ones((1, 1)), start, np.zeros(0, short), np.zeros(0), np.full(1, 10)
        )


def test_two_threads_do_not_share_a_search() -> None:
    """One of them is refused, where both would write into the same labels."""
    n = 14
    child = np.array([[k + 1, k + 1] for k in range(n)] + [[-1, -1]], np.int32)
    cost = np.zeros((n + 1, 2, 1), np.int64)
    cost[:n, 1, 0] = 3 ** np.arange(n)
    prices = 2 ** np.arange(n, dtype=np.int64)
    columns = np.arange(n, dtype=np.int32), np.arange(n + 1), child, cost, prices, np.full(1, 3**n)
    search = _native.LabelSearch(*columns)
    search.bound(np.zeros(1))
    refused, values = [], []

    def run() -> None:
        for _ in range(100):
            try:
                search.run(-1.0, 1 << 14, False, 1 << 20)
                values.append(max(search.values))
            except InternalError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) <= {"two threads use one search at a time"} and set(values) == {2**n - 1}


def test_the_recorder_sees_functions_constructors_and_methods() -> None:
    """What the fuzzer damages: calls of every kind."""
    recorder = native_fuzz.Recorder(0)
    with recorder.recording():
        for number in range(12):
            native_fuzz.search(random_problem(seeded(number), max_ops=8), number)
        native_fuzz.search(native_fuzz.random_split(5, 5), 5)
    assert {"Problem", "upward_ranks"} <= set(recorder.calls)
    assert any("." in name for name in recorder.calls)
    assert {"StageSearch", "StageSearch.search", "StageSearch.stages"} <= set(recorder.calls)


@pytest.mark.soak
def test_a_wheel_works_outside_the_repository(tmp_path: Path) -> None:
    """`pip wheel` makes a wheel of package and extension; installed elsewhere it places a model."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next(tmp_path.glob("placewise-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("placewise/_native.") and name.endswith((".so", ".pyd")) for name in names)
    assert all(name.startswith(("placewise/", "placewise-")) for name in names)
    assert "placewise/py.typed" in names and "placewise/_native.pyi" in names
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True)
    script = (
        "import placewise as pw; import pathlib; assert pathlib.Path(pw.__file__).is_relative_to(pathlib.Path.cwd());"
        "print(pw.place('zoo:random-branchy', devices='2xL4,cpu', objective='throughput', budget=2).value)"
    )
    # The interpreter behind the virtual environment, whose own installation of Placewise must not be found.
    python, libraries = getattr(sys, "_base_executable", sys.executable), sysconfig.get_path("platlib")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path / "site"), libraries))}
    done = subprocess.run(
        [python, "-c", script], cwd=tmp_path, env=variables, check=True, capture_output=True, text=True
    )
    assert float(done.stdout) > 0
