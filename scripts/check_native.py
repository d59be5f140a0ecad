"""Run Python on the kernels under a checker: `python scripts/check_native.py sanitized -- -m native_fuzz`.

`definitions` builds the extension with link-time optimization, so that GCC finds two types of one name, and runs
nothing. `sanitized` builds it with assertions and the address and undefined-behaviour sanitizers; `valgrind` builds it
with symbols and runs it under memcheck. The package is copied beside the module into build/<checker>/site, and the
interpreter behind the virtual environment runs it with PYTHONPATH set to that folder, the tests and the libraries of
the environment: an editable installation is not found. The exit code is that of the run; what a checker finds fails it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILDS = {
    "definitions": ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-flto -Werror=odr"],
    "sanitized": ["-DCMAKE_BUILD_TYPE=Debug", "-DPLACEWISE_SANITIZE=ON"],
    "valgrind": ["-DCMAKE_BUILD_TYPE=RelWithDebInfo"],
}
SUPPRESSIONS = ROOT / "tests" / "native" / "python.supp"


def main() -> int:
    """Build, then run; the exit code."""
    checker, *arguments = (argument for argument in sys.argv[1:] if argument != "--")
    if checker == "valgrind" and shutil.which("valgrind") is None:
        print("valgrind is not installed (Debian, Ubuntu: apt install valgrind): not run", file=sys.stderr)
        return 1
    build = ROOT / "build" / checker
    site = build / "site"
    shutil.rmtree(site, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "_native*.so")
    shutil.copytree(ROOT / "placewise", site / "placewise", ignore=ignored)
    compiled(build, site / "placewise", BUILDS[checker])
    if not arguments:
        return 0
    python = [getattr(sys, "_base_executable", sys.executable)]
    paths = [str(site), str(ROOT / "tests" / "helpers"), str(ROOT / "tests"), sysconfig.get_path("platlib")]
    variables = {**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONPATH": os.pathsep.join(paths)}
    if checker == "sanitized":
        variables["LD_PRELOAD"] = " ".join(library(f"lib{name}.so") for name in ("asan", "ubsan"))
        # Python leaks on purpose at its end; a size that no memory has is refused by the kernels themselves.
        variables["ASAN_OPTIONS"] = "detect_leaks=0:allocator_may_return_null=1"
        variables["UBSAN_OPTIONS"] = "print_stacktrace=1"
    else:
        variables["PYTHONMALLOC"] = "malloc"
        python = ["valgrind", "-q", "--error-exitcode=9", f"--suppressions={SUPPRESSIONS}", *python]
    # Not in the root of the repository: a module that is run by name finds the working directory first.
    return subprocess.run([*python, *arguments], cwd=build, env=variables).returncode


def compiled(build: Path, output: Path, options: list[str]) -> None:
    """Build the extension into a folder."""
    programs = Path(sys.executable).parent
    configure = [
        programs / "cmake", "-S", ROOT, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}",
        f"-DPython_EXECUTABLE={sys.executable}", f"-DPLACEWISE_OUTPUT={output}", "-DPLACEWISE_WERROR=ON", *options,
    ]  # fmt: skip
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([programs / "cmake", "--build", build], check=True, stdout=subprocess.DEVNULL)


def library(name: str) -> str:
    """Where the compiler's runtime library is."""
    compiler = os.environ.get("CXX", "c++")
    return subprocess.run(
        [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
