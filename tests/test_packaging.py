"""The five source folders import as `mmspec.*` from a wheel, an editable install and a checkout."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mmspec.versions import TESTED

ROOTS = {
    "mmspec": "mmspec", "vision": "mmspec.vision", "audio": "mmspec.audio", "kernels": "mmspec.kernels",
    "metrics": "mmspec.metrics",
}  # fmt: skip
DATA = {".json", ".safetensors", ".typed", ".html", ".css", ".js", ".yaml"}


@pytest.fixture(scope="module")
def settings(root: Path) -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text())


def shipped(root: Path) -> dict[str, Path]:
    """Source and data files under the five roots, by their names in a wheel."""
    files = {}
    for folder, package in ROOTS.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".py", *DATA} and "__pycache__" not in path.parts:
                files[f"{package.replace('.', '/')}/{path.relative_to(root / folder).as_posix()}"] = path
    return files


def python(code: str, cwd: Path, *flags: str, **environment: str) -> str:
    """Runs `code` in a new interpreter with `cwd` first on its path; returns its output."""
    # In safe-path mode the current folder would not be on the path.
    names = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *flags, "-c", code],
        cwd=cwd,
        env=names | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_folder_with_code_is_a_listed_package(root: Path, settings: dict[str, Any]) -> None:
    found = {name.rpartition("/")[0].replace("/", ".") for name in shipped(root) if name.endswith(".py")}
    assert found == set(settings["tool"]["setuptools"]["packages"])


def test_every_mapped_folder_is_one_of_the_roots(settings: dict[str, Any]) -> None:
    mapped = settings["tool"]["setuptools"]["package-dir"]
    assert mapped == {package: folder for folder, package in ROOTS.items() if folder != "mmspec"}


def test_no_init_where_it_would_shadow_another_package(root: Path) -> None:
    tops = [root / folder / "__init__.py" for folder in ROOTS if folder != "mmspec"]
    assert [path for path in [*tops, *(root / "tests").rglob("__init__.py")] if path.exists()] == []


def test_transformers_imports_with_the_checkout_on_the_path(root: Path) -> None:
    assert python("from transformers import AutoModel; print(AutoModel.__name__)", root) == "AutoModel"


def test_kernels_is_the_package_of_hugging_face_or_missing(root: Path) -> None:
    installed = any(True for _ in importlib.metadata.distributions(name="kernels"))
    origin = python("import importlib.util as u; s = u.find_spec('kernels'); print(s.origin if s else None)", root)
    assert ("site-packages" in origin) if installed else (origin == "None")


def test_an_installed_kernels_package_wins_over_the_folder(root: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("NAME = 'installed'\n")
    assert python("import kernels; print(kernels.NAME)", root, PYTHONPATH=str(tmp_path)) == "installed"


@pytest.fixture(scope="module")
def source(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that builds neither write to the checkout nor reuse files from it."""
    copy = tmp_path_factory.mktemp("source")
    for folder in ROOTS:
        if (root / folder).is_dir():
            shutil.copytree(root / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(root / "tests" / "golden", copy / "tests" / "golden")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(root / name, copy)
    return copy


def build(source: Path, kind: str, out: Path) -> Path:
    """Builds a distribution ("wheel", "editable" or "sdist") with the installed setuptools, without warnings."""
    done = subprocess.run(
        [sys.executable, "-c", f"from setuptools import build_meta as b; b.build_{kind}({str(out)!r})"],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert not re.search(r"would be ignored|Deprecat", done.stdout + done.stderr), done.stderr
    (result,) = out.iterdir()
    return result


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_file_and_nothing_else(root: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == set(shipped(root))
        for name, path in shipped(root).items():
            assert archive.getinfo(name).file_size == path.stat().st_size, name


def test_the_wheel_declares_command_and_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        assert "mmspec = mmspec.__main__:main" in archive.read(info["entry_points.txt"]).decode()
        assert archive.read(info["top_level.txt"]).decode().split() == ["mmspec"]
        assert "License-Expression: Apache-2.0" in archive.read(info["METADATA"]).decode()
        assert "Apache License" in archive.read(info["licenses/LICENSE"]).decode()


WHERE = "import mmspec.metrics.prompts as m, mmspec.vision.shapes as v; print(m.__file__, v.__file__)"


def test_a_checkout_imports_without_being_installed(root: Path) -> None:
    metrics, vision = python(WHERE, root).split()
    assert Path(metrics) == root / "metrics" / "prompts.py"
    assert Path(vision) == root / "vision" / "shapes" / "__init__.py"


def test_a_wheel_imports_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = unpack(wheel, tmp_path / "site")
    for path in imported_from(site, elsewhere(tmp_path)):
        assert Path(path).is_relative_to(site)


@pytest.mark.parametrize("at_root", [True, False], ids=["at the root", "elsewhere"])
def test_an_editable_install_imports_the_checkout(source: Path, tmp_path: Path, at_root: bool) -> None:
    (tmp_path / "out").mkdir()
    site = unpack(build(source, "editable", tmp_path / "out"), tmp_path / "site")
    cwd = source if at_root else elsewhere(tmp_path)
    for path in imported_from(site, cwd):
        assert Path(path).is_relative_to(source)


def imported_from(site: Path, cwd: Path) -> list[str]:
    """Paths of mmspec.metrics and mmspec.vision when `site` is the only folder of installed packages."""
    return python(f"import site; site.addsitedir({str(site)!r}); {WHERE}", cwd, "-S").split()


def unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def elsewhere(tmp_path: Path) -> Path:
    """An empty working directory."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def test_the_source_distribution_is_complete(root: Path, source: Path, tmp_path: Path) -> None:
    with tarfile.open(build(source, "sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {path.relative_to(root).as_posix() for path in shipped(root).values()} <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    # The tests come with all that they read, so that distributors can run them.
    golden = {path.relative_to(root).as_posix() for path in (root / "tests" / "golden").rglob("*.*")}
    assert golden <= names and sum((root / name).stat().st_size for name in golden) < 5.5e6


def test_the_lowest_versions_are_those_that_are_promised(root: Path, settings: dict[str, Any]) -> None:
    project = settings["project"]
    tools = ("ruff", "mypy")  # they check the code, and need not be old
    promised = {}
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["test"]):
        name, bound = re.fullmatch(r"([\w-]+)>=([\d.]+).*", requirement).groups()  # type: ignore[union-attr]
        if name not in tools:
            promised[name] = bound
    lines = (root / ".ci" / "lowest.txt").read_text().splitlines()
    lowest = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert set(lowest) == {*promised, "click"}
    for name, bound in promised.items():
        assert f"{lowest[name]}.".startswith(f"{bound}."), name


def test_the_image_has_one_version_of_all_that_the_server_needs(root: Path, settings: dict[str, Any]) -> None:
    lines = (root / ".ci" / "docker.lock").read_text().splitlines()
    locked = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = settings["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"]["serve"]):
        needed = Requirement(text)
        assert locked[canonicalize_name(needed.name)] in needed.specifier, text
    assert (root / "Dockerfile").read_text().count("--constraint /docker.lock") == 2


def test_upper_bounds_end_at_the_newest_tested_release(settings: dict[str, Any]) -> None:
    found = {}
    for requirement in settings["project"]["dependencies"]:
        name, bounds = re.fullmatch(r"([\w-]+)([^;]*).*", requirement).groups()  # type: ignore[union-attr]
        found[name] = bounds
    for name, (lowest, newest) in TESTED.items():
        major, minor = newest.split(".")
        assert found[name] == f">={lowest},<{major}.{int(minor) + 1}", name


def test_the_table_of_versions_is_that_of_the_tests(root: Path) -> None:
    text = (root / "docs" / "compatibility.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert {name: (lowest, newest) for name, lowest, newest in rows} == TESTED
