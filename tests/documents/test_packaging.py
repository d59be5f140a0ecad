"""What is published: the files of source archives and wheels, the description, the extras."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from locations import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD = SETTINGS["project"], SETTINGS["tool"]["scikit-build"]
FOLDERS = ("placewise", "native", "docs", "examples", "tests")
JUNK = (
    "plan.json", "demo/plan.json", "examples/plan.json", "examples/notebooks/profile.json", "tests/native/left.cpp",
    "placewise/_native.cpython-399-x.so", "placewise/_native.cp399.pyd", "placewise/__pycache__/api.pyc",
    "build/x/_native.so", "dist/placewise-0.tar.gz", ".venv/bin/python", "benchmarks/real/scratch/a.json",
)  # fmt: skip
"""What people and examples leave in a checkout."""
MAPPING = """
import sys
from pathlib import Path
from scikit_build_core.build._pathutil import packages_to_file_mapping
include, exclude = (sys.argv[n].split("|") if sys.argv[n] else [] for n in (1, 2))
found = packages_to_file_mapping(packages={"placewise": "placewise"}, platlib_dir=Path("/wheel"), include=include,
                                 src_exclude=exclude, target_exclude=[], build_dir="", mode="default")
print(*found.values(), sep="\\n")
"""


@pytest.fixture(scope="module")
def littered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with junk in it."""
    pytest.importorskip("scikit_build_core", reason="archives are made with scikit-build-core")
    copy = tmp_path_factory.mktemp("project")
    for each in ROOT.iterdir():
        if each.is_file() and each.name != ".git":
            shutil.copy(each, copy)
    leave = shutil.ignore_patterns("__pycache__", "*.so", "*.onnx")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=leave)
    for name in JUNK:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("junk")
    return copy


def files_of(folder: str) -> set[str]:
    """The files of a folder of the project, without what Python or a compiler made of them."""
    found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts and path.suffix not in (".so", ".pyd")}


def test_a_source_archive_holds_what_a_wheel_is_built_of(littered: Path, tmp_path: Path) -> None:
    """The package, the kernels, how to build them, licence and description: nothing else, whatever lies about."""
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=littered, check=True, capture_output=True)
    (archive,) = tmp_path.iterdir()
    assert archive.name == f"placewise-{PROJECT['version']}.tar.gz"
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    own = {"CMakeLists.txt", "pyproject.toml", "PKG-INFO", "LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"}
    assert names == files_of("placewise") | files_of("native") | own | {"docs/package.md"}


def test_a_wheel_holds_the_package_only(littered: Path) -> None:
    """Every file of the package, and no module that was compiled before; the build adds its own."""
    patterns = ["|".join(BUILD["sdist"][name]) for name in ("include", "exclude")]
    done = subprocess.run(
        [sys.executable, "-c", MAPPING, *patterns], cwd=littered, check=True, capture_output=True, text=True
    )
    assert BUILD["wheel"] == {"packages": ["placewise"]}
    assert {line.removeprefix("/wheel/") for line in done.stdout.split()} == files_of("placewise")


def test_the_description_stands_alone() -> None:
    """It is shown where neither pictures nor other pages of the project are."""
    text = (ROOT / PROJECT["readme"]).read_text()
    assert "![" not in text and "<img" not in text and not re.search(r"\]\((?!https://)", text)
    table = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(table))) == sorted(
        PROJECT["optional-dependencies"].keys() - {"dev", "docs"}
    )


def test_the_extra_all_has_every_other() -> None:
    """But for what only the check and the site need."""
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = re.fullmatch(r"placewise\[(.*)\]", everything)
    assert named is not None and named[1].split(",") == sorted(extras.keys() - {"all", "dev", "docs"})


def test_every_library_of_an_extra_has_its_version() -> None:
    """In the list of what the project was resolved with."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    needed = [*PROJECT["dependencies"], *SETTINGS["build-system"]["requires"]]
    needed += [each for extra, names in PROJECT["optional-dependencies"].items() if extra != "all" for each in names]
    assert {re.split(r"[\[>=]", each)[0].lower().replace("_", "-") for each in needed} <= pinned
