"""Where the cache of measured times is, and that nobody needs one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from placewise.profiling.profile_cache import EMPTY, CachedProfile, ProfileCache


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a number for a user and no HOME: nothing is kept or found, and nothing is raised."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PLACEWISE_NO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    cache = ProfileCache()
    cache.write(CachedProfile(call=1.0), "cpu")
    assert cache.read("cpu") is EMPTY


def test_the_cache_goes_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CACHE_HOME first."""
    monkeypatch.delenv("PLACEWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ProfileCache().write(CachedProfile(call=1.0), "cpu")
    assert ProfileCache().read("cpu").call == 1.0 and [*tmp_path.glob("placewise/profiles/*.json")]


def test_profiles_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Each process adds its ops to what the others have written, however they take turns."""
    code = (
        "import sys; from pathlib import Path\n"
        "from placewise.profiling.profile_cache import CachedProfile, ProfileCache\n"
        "def add(profile, number):\n"
        "    own = {f'{sys.argv[2]}-{number}': (1.0, 'kernel', ())}\n"
        "    return CachedProfile({**profile.ops, **own}, 1.0, profile.models)\n"
        "for number in range(40):\n"
        "    ProfileCache(Path(sys.argv[1])).update(lambda profile: add(profile, number), 'cpu')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [subprocess.Popen([*command, name], env=environment) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(ProfileCache(tmp_path).read("cpu").ops) == 80
