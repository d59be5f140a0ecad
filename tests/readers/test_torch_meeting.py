"""How processes of an exported script meet, as threads of one process."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

from placewise.readers.torch import meeting
from placewise.readers.torch.meeting import MeetingError, meet

NAMES = ("stage 0 on a", "stage 1 on b", "stage 2 on c")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What processes say that are impatient soon; they meet at a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setattr(meeting, "PATIENCE", 0.3)
    lines: list[str] = []
    monkeypatch.setattr(meeting, "say", lines.append)
    return lines


def meet_in_threads(*ranks: int, seconds: float) -> list[Any]:
    """The meetings of these ranks, or why they did not meet."""

    def join(rank: int) -> Any:
        try:
            return meet(rank, NAMES, seconds)
        except MeetingError as error:
            return str(error)

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(join, ranks))


def test_all_learn_of_all(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank knows the processes of the others, shares a store with them, and says nothing."""
    monkeypatch.setattr(meeting, "PATIENCE", 60)
    meetings = meet_in_threads(0, 1, 2, seconds=20)
    assert [one.processes for one in meetings] == [((os.getpid(), socket.gethostname()),) * 3] * 3
    meetings[0].store.set("word", "said")
    assert meetings[2].store.get("word") == b"said" and not said


@pytest.mark.parametrize(("rank", "absent"), [(0, f"{NAMES[1]} and {NAMES[2]}"), (1, NAMES[0])])
def test_those_that_do_not_come_are_named_soon(said: list[str], rank: int, absent: str) -> None:
    """Long before the one that waits gives up."""
    where = f"127.0.0.1:{os.environ['MASTER_PORT']}"
    assert meet_in_threads(rank, seconds=1) == [f"{absent} did not come to {where} within 1 s"]
    assert said == [f"{NAMES[rank]} waits at {where} for {absent}"]


@pytest.mark.parametrize(("port", "rank"), [("none", 0), ("70000", 0), ("70000", 1)])
def test_a_port_that_is_none(said: list[str], monkeypatch: pytest.MonkeyPatch, port: str, rank: int) -> None:
    """One sentence, with what to set."""
    monkeypatch.setenv("MASTER_PORT", port)
    assert meet_in_threads(rank, seconds=1) == [f"127.0.0.1:{port} has no port: set MASTER_PORT to a free one"]


def test_a_rank_that_there_is_not(said: list[str]) -> None:
    """One sentence, with those that there are."""
    assert meet_in_threads(3, seconds=1) == ["RANK is 3, and the ranks are 0 to 2"]
