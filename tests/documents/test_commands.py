"""The commands of the documents: all of them run, in their order, with the files that the page speaks of."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from documents_files import write_files
from locations import ROOT
from soak import SOAKS, later
from typer.testing import CliRunner

from placewise.cli.app import app

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LESS = [
    (re.compile(r"--time-limit \d+s"), "--time-limit 0.5s"),
    (re.compile(r"(--evaluations|--updates) \d+"), r"\1 4"),
    (re.compile(r"(?<!-)train (?!.*--(?:evaluations|updates|corpus|time-limit))"), "train --evaluations 4 "),
    (re.compile(r"(place|compare) (?!.*--time-limit)"), r"\1 --time-limit 0.5s "),
    (re.compile(r"train (?=--corpus)"), "train --updates 1 "),
]
SMALLER = [
    (re.compile(r"(compare .*--time-limit) 0.5s"), r"\1 0.05s"),
    (re.compile(r"(?<![\w.])profile (?=\S)"), "profile --repeats 3 --pilots 0 "),
    (re.compile(r"examples/models/inception_v3\.onnx -d 2xcore --dim batch=1"), "model.onnx -d 2xcore"),
    (re.compile(r"--rounds \d+"), "--rounds 1"),
    (re.compile(r"(?<![\w.])run (?!.*(--rounds|--train|--emulated))"), "run --rounds 1 "),
    (re.compile(r"(?<![\w.])run (?!.*--train)"), "run --measure-time 0.2s "),
    (re.compile(r" --(controllers|workers) \d+"), ""),
    (re.compile(r"hf:(llama-3-\d+b|mixtral-8x7b)"), "hf:gpt2"),
    (re.compile(r"'layers\\\.\\d\+'"), r"'h\\.\\d+'"),
    (re.compile(r"'experts="), "'mlp="),
    (re.compile(r"--vary context=\S+"), "--vary context=1k"),
    (re.compile(r"hf:qwen3-32b -d 8xH100"), "hf:gpt2 -d 4xH100"),
    (re.compile(r"hf:bert-large"), "hf:bert-base"),
    (re.compile(r"--dim prompt=2048 --dim tokens=256"), "--dim prompt=512 --dim tokens=128"),
    (re.compile(r"sweep (?!.*--time-limit)"), "sweep --time-limit 0.5s "),
    (re.compile(r"sweep (?=.*--vary)"), "sweep --workers 1 "),
    (re.compile(r"^(?!.*--placer)(.*--time-limit) 0.5s"), r"\1 0.05s"),
]
"""What the pages give to searches is cut down: what runs is the same. `make test`
takes smaller models, no workers and no pilots, and gives `auto`, which has an answer at any time, less of it."""
ELSEWHERE = re.compile(r"openvino:(GPU|NPU)|profile .*rpc:192\.|rpc:192\..*--(measure|costs)")
"""Commands for devices, or with their profiles, that machines without them refuse in one sentence."""
ABSENT = re.compile(
    r"not on this machine|llama-server is not installed|does not answer|Failed to connect|home\.json: cannot be read"
)
"""What it says, or that a profile by an earlier command is missing."""
PROFILE = re.compile(r"placewise profile .*(?:examples/models/|model\.onnx).* -o (\S+)")
PROFILES: dict[str, tuple[str, bytes]] = {}
"""Profiles of the models here, which several pages measure by the same command, and the files that they wrote."""
LONG = (
    "docs/generalizing.md", "docs/learning.md", "docs/measured.md", "docs/runtimes.md", "docs/zoo.md",
    "docs/guides/measured-costs.md", "docs/guides/openvino.md",
)  # fmt: skip
"""Pages whose commands take minutes, to train, measure or build: `make soak` runs them, `make test` parses them."""
UNSAID = "…"
"""What a page leaves to its reader cannot run: it is parsed."""
ALREADY = re.compile(r"the plan has it on (\S+) already; choose another device: (\S+)")
"""Where an op is depends on how far a search came in its time: then the question is asked of another device."""
EXIT = re.compile(r"# exit code (\d)$")
"""How a page says that a command does not end with 0; a smaller model may end with 0 all the same."""
NEEDS = {
    "README.md": ("torch", "torch_geometric", "transformers"),
    "big-model.md": ("transformers",),
    "does-not-fit.md": ("torch", "transformers"),
    "experts.md": ("transformers",),
    "export.md": ("transformers",),
    "generalizing.md": ("torch_geometric",),
    "huggingface.md": ("transformers",),
    "index.md": ("transformers",),
    "learning.md": ("torch_geometric", "onnxruntime"),
    "measured-costs.md": ("onnxruntime",),
    "measured.md": ("onnxruntime",),
    "openvino.md": ("openvino",),
    "papers.md": ("torch_geometric",),
    "sizes.md": ("transformers",),
    "runtimes.md": ("onnxruntime", "openvino", "torch"),
    "two-nodes.md": ("transformers",),
}
"""The optional libraries of a page."""


def commands_of(page: Path) -> list[str]:
    """The lines of a page that call placewise, in its blocks or indented by four."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    text = re.sub(r"```(\w*)\n(.*?)```", lambda block: block[2] * (block[1] == "bash"), text, flags=re.DOTALL)
    return re.findall(r"^(?: {4})?(placewise .*)$", text, re.MULTILINE)


COMMANDS = {page.relative_to(ROOT).as_posix(): found for page in PAGES if (found := commands_of(page))}


def shortened(command: str) -> str:
    """The command with less to search, and in `make test` on smaller models."""
    for pattern, less in LESS if SOAKS else [*LESS, *SMALLER]:
        command = pattern.sub(less, command)
    return command


def parsed(command: str) -> None:
    """The verb, its options and the form of their values exist."""
    found: Any = typer.main.get_command(app)
    words = shlex.split(command, comments=True)[1:]
    while hasattr(found, "commands") and words:
        verb = found.get_command(None, words[0])
        assert verb is not None, command
        found, words = verb, words[1:]
    found.make_context(found.name, words)


@pytest.mark.parametrize("name", LONG)
def test_every_command_of_a_long_page_exists(name: str) -> None:
    """Its verb, its options and the form of their values."""
    for command in COMMANDS[name]:
        parsed(command)


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("name", [later(name) if name in LONG else name for name in COMMANDS])
def test_every_command_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder with the files that the page speaks of, each ends with exit code 0, or as the page says."""
    for library in NEEDS.get(Path(name).name, ()):
        pytest.importorskip(library)
    shorter = {command: shortened(command) for command in COMMANDS[name]}
    write_files((ROOT / name).read_text(), [*shorter, *shorter.values()], tmp_path)
    monkeypatch.chdir(tmp_path)
    if any("cache --clear" in command for command in COMMANDS[name]):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for command in COMMANDS[name]:
        parsed(command)
        if UNSAID in command:
            continue
        run = shorter[command]
        if run in PROFILES:
            (tmp_path / PROFILES[run][0]).write_bytes(PROFILES[run][1])
            continue
        done = CliRunner().invoke(app, shlex.split(run, comments=True)[1:])
        if made := PROFILE.fullmatch(run):
            PROFILES[run] = made[1], (tmp_path / made[1]).read_bytes()
        if there := ALREADY.search(done.output):
            done = CliRunner().invoke(app, shlex.split(run.replace(there[1], there[2]))[1:])
        if ELSEWHERE.search(command):
            refused = done.exit_code == 2 and done.output.count("error:") == 1
            assert done.exit_code == 0 or (refused and ABSENT.search(done.output)), done.output
        else:
            said = EXIT.search(command)
            assert done.exit_code in (0, int(said[1]) if said else 0), f"{command}\n{done.output}\n{done.exception!r}"
            assert done.stdout.strip(), command
