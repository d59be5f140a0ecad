"""What MkDocs does beyond mkdocs.yml: pages from outside docs/, links to them, and the reference of the commands."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from placewise.cli.app import app

ROOT = Path(__file__).parent.parent
OUTSIDE = [
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(path for path in (ROOT / "benchmarks" / "results").iterdir() if path.suffix in (".md", ".svg", ".json")),
]
FENCE = re.compile(r"^(```\w+) .+$", re.MULTILINE)
"""The head of a block with more than its language: MkDocs would not see a block there."""
COMMENT = re.compile(r"^(<!-- .+ -->)\n(?=\S)", re.MULTILINE)
"""A comment right above a table or a text: MkDocs would take both for HTML."""
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)")
HIDDEN = {"--help", "--install-completion", "--show-completion"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/, under the paths that they have in the project."""
    from mkdocs.structure.files import File

    for path in OUTSIDE:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to where pages are in the site, and put the commands into their reference."""
    uri = page.file.src_uri
    inside = not any(path == ROOT / uri for path in OUTSIDE)
    markdown = rewrite_links(markdown, f"docs/{uri}" if inside else uri)
    markdown = COMMENT.sub(r"\1\n\n", FENCE.sub(r"\1", markdown))
    return markdown.replace("<!-- commands -->", "\n".join(describe_commands()))


def rewrite_links(markdown: str, source: str) -> str:
    """Replace links between docs/ and the rest of the project; `source` is the page's path in the project."""
    here = posixpath.dirname(source.removeprefix("docs/"))

    def rewrite(link: re.Match[str]) -> str:
        before, target, anchor = link[1], link[2], link[3] or ""
        if ":" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target)).removeprefix("docs/")
        return f"{before}{posixpath.relpath(path, here or '.')}{anchor})"

    return LINK.sub(rewrite, markdown)


def describe_commands() -> Iterator[str]:
    """The lines of a section per command, from the app itself: its help, and a table per panel of options."""
    yield from _describe(typer.main.get_command(app), "placewise", "")


def _describe(command: Any, name: str, parent: str) -> Iterator[str]:
    if hasattr(command, "list_commands"):
        for verb in command.list_commands(None):
            yield from _describe(command.get_command(None, verb), f"{name} {verb}", name)
        return
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    yield from (f"\n## {name}\n", (command.help or "").strip(), "")
    yield " ".join(["    " + name, *(p.name.upper() for p in arguments), "[OPTIONS]\n"])
    yield from _table("argument", [(_code(p.name.upper()), _help(p)) for p in arguments])
    panels: dict[str, list[tuple[str, str]]] = {}
    for option in command.params:
        if option.param_type_name == "option" and not HIDDEN & set(option.opts):
            flags = ", ".join(map(_code, [*option.opts, *option.secondary_opts]))
            panels.setdefault(option.rich_help_panel or "option", []).append((flags, _help(option)))
    for panel, rows in panels.items():
        yield from _table(panel, rows)


def _table(heading: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield from (f"| {heading} | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows), "")


def _code(text: str) -> str:
    return f"`{text}`"


def _help(param: Any) -> str:
    """The help of a parameter for a cell, with its default where that says something."""
    text = re.sub(r"[|<*_]", r"\\\g<0>", " ".join((param.help or "").split()))
    shown = isinstance(param.default, str | int | float) and not isinstance(param.default, bool) and not param.required
    return f"{text} (default: `{param.default}`)" if shown and param.default != "" else text
