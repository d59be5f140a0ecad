"""Write placewise/_native.pyi from the extension module as it is built: `python scripts/write_native_stub.py`.

With --check nothing is written, and the exit code is 1 if the file is not what would be written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from nanobind.stubgen import StubGen

from placewise import _native

STUB = Path(__file__).resolve().parents[1] / "placewise" / "_native.pyi"
_ARRAY = re.compile(r"Annotated\[NDArray\[numpy\.(\w+)\], dict\(shape=\([^)]*\)[^\[\]]*\)\]")
HEAD = '"""The kernels in C++ (native/). Written by scripts/write_native_stub.py; do not edit."""\n\n'


def stub() -> str:
    """The text of the stub."""
    generator = StubGen(_native, include_docstrings=True)
    generator.put(_native)
    text = _ARRAY.sub(r"NDArray[numpy.\1]", generator.get()).replace("numpy.typing.NDArray", "NDArray")
    text = text.replace("import numpy.typing\n", "").replace("from typing import Annotated\n\n", "")
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", STUB.name, "-"]
    return HEAD + subprocess.run(command, input=text, capture_output=True, check=True, text=True).stdout.lstrip()


if __name__ == "__main__":
    text = stub()
    if "--check" in sys.argv:
        raise SystemExit(int(STUB.read_text() != text))
    STUB.write_text(text)
