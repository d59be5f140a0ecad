"""Progress of a search: one line, in a terminal and in a notebook."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import placewise as pw
from placewise.analysis.progress import ProgressLine, listening
from placewise.placers.base import Progress, ignore


def test_progress_goes_by_one_clock() -> None:
    """Time does not jump back where a placer's own clock starts anew; the time left is there with a limit only."""
    now = iter([10.0, 12.0, 17.5])
    line = ProgressLine(6.0, clock=lambda: next(now))
    assert line.of(Progress("dp", 0.5, "bounded", None, 2.0)) == "dp · 0.5 s · 6 s left · bounded · bound 2 s"
    assert line.of(Progress("temper", 0.1, "", 3.0)) == "temper · 2.5 s · 4 s left · best 3 s"
    assert line.of(Progress("temper", 0.2)) == "temper · 8.0 s · 0 s left"
    assert "left" not in ProgressLine().of(Progress("dp", 0.5))


class Display:
    """What a notebook was asked to show, as IPython.display is asked."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def HTML(self, text: str) -> str:
        return text

    def display(self, html: str, *, display_id: bool) -> Display:
        assert display_id
        self.update(html)
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Display:
    """This process as the kernel of a notebook, as far as anybody can see."""
    display = Display()
    shell: Any = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()), display=display)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)  # type: ignore[arg-type]
    return display


def test_a_notebook_shows_a_line_and_a_bar(notebook: Display) -> None:
    """Names are escaped, the bar is the share of the time limit, and nothing stays when the work is done."""
    with listening(None, 10.0) as listener:
        listener(Progress("<dp>", 5.0, "bounded"))
        listener(Progress("too soon", 5.0))
    (first, line, last) = notebook.shown
    assert first == "reading" and last == "" and "<progress" in line and "&lt;dp&gt;" in line and "bounded" in line
    assert 0.45 < float(line.split('value="')[1].split('"')[0]) < 0.55
    with listening(None) as listener:
        listener(Progress("dp", 5.0))
    assert "<progress" not in notebook.shown[-2]


@pytest.mark.soak
def test_functions_show_their_progress_in_notebooks(notebook: Display) -> None:
    """Without a listener; who gives one gets the words, and the notebook shows nothing."""
    size, heard = {"n_ops": 20}, list[Progress]()
    pw.place("zoo:random-layered", "2xL4,cpu", dims=size, time_limit="5s")
    assert len(notebook.shown) > 2 and notebook.shown[-1] == ""
    before = len(notebook.shown)
    pw.place("zoo:random-layered", "2xL4,cpu", dims=size, time_limit="5s", on_progress=heard.append)
    assert heard and len(notebook.shown) == before


def test_nothing_is_shown_elsewhere() -> None:
    """A script is no notebook, whether IPython is installed or not."""
    with listening(None) as listener:
        assert listener is ignore
