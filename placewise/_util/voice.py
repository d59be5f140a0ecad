"""Messages that name options: flags for users of the command line, keywords for users of Python.

Messages are written with flags. `as_python` turns each flag, with the value behind it, into the keyword argument.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

from placewise._util.option_table import OTHER_OPTIONS, PROBLEM_OPTIONS, OptionInfo

SPEAKS_FLAGS: ContextVar[bool] = ContextVar("SPEAKS_FLAGS", default=False)
"""Whether errors name flags: set by the command line."""

_BY_FLAG = {
    flag: (option, position)
    for option in (*PROBLEM_OPTIONS, *OTHER_OPTIONS)
    for position, flag in enumerate((*option.flag.split("/"), *option.aliases))
}
_VALUE = r"(?:'[^']*'|(?:[^\s;,()']|,(?=\S))+)"
_MENTION = re.compile(rf"(?<![\w-])(--?[a-z][a-z0-9-]*)(?![\w-])(?: ({_VALUE}))?")
_TWICE = re.compile(r"\b(\w+)=\{([^{}]*)\} \1=\{([^{}]*)\}")
_PROSE = re.compile(r"[a-z]{1,4}|with|without|means|keeps|throws|tells|takes|must|here|again|FILE|PATH")
"""Short words behind a flag are the sentence that goes on, except those that are values."""
_VALUES = {"auto", "this", "cpu", "raw", "sgd", "adam", "any", "live", "resident", "sum"}


def spoken(text: str) -> str:
    """A message as its reader knows the options."""
    return text if SPEAKS_FLAGS.get() else as_python(text)


def as_python(text: str) -> str:
    """The message with keyword arguments where it has flags.

    >>> as_python("give sizes: --dim batch=1; or add --objective throughput, without --convex")
    "give sizes: dims={'batch': 1}; or add objective='throughput', without convex=True"
    """
    text, merged = _MENTION.sub(_keyword, text), 1
    while merged:
        text, merged = _TWICE.subn(r"\1={\2, \3}", text)
    return text


def _keyword(mention: re.Match[str]) -> str:
    flag, value = mention[1], mention[2]
    if flag not in _BY_FLAG:
        return mention[0]
    option, position = _BY_FLAG[flag]
    behind = "" if value is None else f" {value}"
    if option.kind in ("switch", "negation", "either"):
        truth = {"switch": True, "negation": False, "either": position == 0}[option.kind]
        return f"{option.name}={truth}{behind}"
    if value is None or not _is_value(option, value):
        return f"{option.name}{behind}"
    plain = value.strip("'")
    end = plain[len(plain.rstrip(".:")) :] if value == plain else ""
    return f"{option.name}={_literal(option, plain[: len(plain) - len(end)])}{end}"


def _is_value(option: OptionInfo, text: str) -> bool:
    if option.kind in ("rules", "sizes", "settings"):
        return "=" in text
    if option.kind == "whole":
        return text.strip("'.").isdigit()
    return text in _VALUES or text.startswith("'") or not _PROSE.fullmatch(text.rstrip("."))


def _literal(option: OptionInfo, text: str) -> str:
    name, sign, value = text.partition("=") if option.kind == "settings" else text.rpartition("=")
    if option.kind in ("rules", "sizes", "settings") or (option.kind == "amounts" and sign):
        return repr({name: int(value) if value.isdigit() else value})
    return text if option.kind == "whole" else repr(text)
