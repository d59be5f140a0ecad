"""Translate errors that other libraries raise while a model is built and traced."""

from __future__ import annotations

import re

from placewise.errors import ModelFileError

EXPORT = "export it yourself and give the .pt2 file"
_NEEDS = re.compile(r"requires the (\S+) library|No module named '([^']+)'")
_PLAIN = (ValueError, RuntimeError)
"""Errors whose messages address users; those of other types refer to code."""
_DATA = "GuardOnDataDependentSymNode"


def describe_library_error(what: str, error: Exception, remedy: str = "check its values") -> ModelFileError:
    """The error that says what failed and why, in terms that users understand."""
    if isinstance(error, ImportError):
        match = _NEEDS.search(str(error))
        package = next(filter(None, match.groups())) if match else error.name or "of an optional dependency"
        return ModelFileError(f"{what}: it needs the package {package}", remedy="install that package")
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return ModelFileError(f"{what}: more memory is needed than there is", remedy="check its sizes")
    return ModelFileError(f"{what} ({_find_reason(error)})", remedy=remedy)


def _find_reason(error: Exception) -> str:
    if type(error).__name__ == _DATA:
        return "its control flow depends on the data"
    if isinstance(error, KeyError):
        return f"transformers does not know {str(error)[:60]}"
    if isinstance(error, _PLAIN) and "__" not in str(error):
        lines = [line.strip() for line in str(error).split("\n") if line.strip()]
        return lines[-1][:200] if lines else "without a reason"
    return "transformers fails on these values or inputs"
