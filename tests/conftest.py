"""Settings of all tests: how many examples hypothesis draws, always the same ones on continuous integration; Ctrl-C."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anyone reads it: pytest has workers for both cores, and threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # that wait for tiny tensors spin
os.environ.setdefault("PLACEWISE_NO_CACHE", "1")  # every test computes what it tests; those of the cache switch it on

import pytest
from hypothesis import settings
from soak import examples
from traces import share_traces, trace_again

from placewise._util.voice import SPEAKS_FLAGS
from placewise.core import place as core_place
from placewise.placers.set_cover import placer as set_cover

settings.register_profile("tests", examples(100))
settings.register_profile("ci", settings.get_profile("tests"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: children would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    """Share traces as soon as an earlier test has imported the reader."""
    share_traces()


@pytest.fixture(autouse=True)
def _flags_in_messages() -> Iterator[None]:
    """Messages as they are written, with flags; tests/api has how Python users read them."""
    spoken = SPEAKS_FLAGS.set(True)
    yield
    SPEAKS_FLAGS.reset(spoken)


@pytest.fixture
def own_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is traced, also one that another test has read: for tests of tracing itself."""
    trace_again(monkeypatch)


@pytest.fixture(scope="module")
def brief_proofs() -> Iterator[None]:
    """Less time for what takes its time where it cannot succeed: a proof in bytes, a set cover that closes no gap."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_place, "PACKING", 0.05)
        patch.setattr(set_cover, "LONGEST_PROOF", 0.5)
        yield


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for caches, which all processes of this run of pytest share."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    home.mkdir(0o700, exist_ok=True)
    return home


@pytest.fixture(scope="module")
def traced_once(cache_home: Path) -> Iterator[None]:
    """The cache that users have is on, for tests of what is done with a model of transformers once it is read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache_home))
        patch.setenv("PLACEWISE_NO_CACHE", "0")
        yield
