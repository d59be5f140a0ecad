"""The page as one HTML text that contains its data, style and scripts, and loads nothing from a network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

STYLES = ("report.css", "graph.css")
SCRIPTS = (
    "base.js", "view.js", "lanes.js", "facts.js", "scopes.js", "timeline.js", "charts.js", "overview.js", "sections.js",
    "layered.js", "modules.js", "outline.js", "graph.js", "report.js",
)  # fmt: skip
"""In the order in which they run; the last one starts the page."""

_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page_text(data: Mapping[str, Any]) -> str:
    """The HTML of a report. Its security policy allows its own style and scripts only, by their digests."""
    style, script = ("\n".join(_asset(name) for name in names) for names in (STYLES, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; base-uri 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script, "data": json_text(data)}
    text = _asset("report.html")
    for name in ("policy", "style", "script", "data"):
        before, mark, after = text.partition(f"@{name}@")
        if not mark:
            raise ValueError(f"the page template has no placeholder for {name}")
        text = before + parts[name] + after
    return text


def json_text(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element: nothing in it ends the script."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
