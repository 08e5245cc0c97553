"""Names and paths in the documentation exist."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/*.md")]
# Entry-point groups are dotted names too, and no modules.
KINDS = ("models", "adapters", "drafters", "recipes", "rules", "metrics", "heads", "starts", "refreshes")
GROUPS = {f"mmspec.{group}" for group in KINDS}


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute inside one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            # Fields of a dataclass without a default are no attributes of the class.
            if not hasattr(found, name) and name not in getattr(found, "__annotations__", {}):
                return False
            found = getattr(found, name, None)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    dotted = set(re.findall(r"(?<![\w./-])mmspec(?:\.[A-Za-z_]\w*)+", text)) - GROUPS
    assert not [name for name in sorted(dotted) if not exists(name)]
    folders = "|".join(("mmspec", "vision", "audio", "kernels", "metrics", "tests", "examples", r"\.ci"))
    paths = set(re.findall(rf"(?<![\w./-])(?:{folders})/[\w./-]*\w", text))
    assert not [path for path in sorted(paths) if not (ROOT / path).exists() and "NAME" not in path]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_imported_names_exist(page: Path) -> None:
    lines = re.findall(r"^ *(?:>>> )?from (mmspec(?:\.\w+)*) import \(?([\w, ]+)", page.read_text(), re.MULTILINE)
    names = [f"{module}.{name.split()[0]}" for module, found in lines for name in found.split(",") if name.strip()]
    assert not [name for name in names if not exists(name)]


# `Class.method` in `folder/file.py`
PLACE = re.compile(r"`([A-Za-z_][\w.]*)`\s+in\s+`((?:mmspec|vision|audio|kernels|metrics|tests)/[\w/]+\.py)`")


def is_defined(name: str, source: str) -> bool:
    """Whether a file defines a function, class, method, field or variable of that dotted name."""
    body: list[ast.stmt] = ast.parse(source).body
    for part in name.split("."):
        found = [node for node in body if part in defined_by(node)]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def defined_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_name_in_a_file_is_defined_there(page: Path) -> None:
    places = set(PLACE.findall(page.read_text()))
    assert not [place for place in sorted(places) if not is_defined(place[0], (ROOT / place[1]).read_text())]


def test_architecture_says_where_things_happen() -> None:
    places = {name for name, _ in PLACE.findall((ROOT / "docs" / "architecture.md").read_text())}
    assert {"verify", "verify_window", "keep_top_k", "fused_sample", "select_rows", "RECIPES"} <= places


@pytest.mark.parametrize(
    ("name", "found"), [("f", True), ("C.m", True), ("C.x", True), ("V", True), ("m", False), ("C.f", False)]
)
def test_definitions_are_found(name: str, found: bool) -> None:
    source = "V = 1\ndef f(): ...\nclass C:\n    x: int\n    def m(self): ..."
    assert is_defined(name, source) is found


# What installs a package by the name "mmspec" from an index, where that name is not this project's: a command, a name
# with extras, a line of requirements, a page of the index.
NAME = "mmspec"
BY_NAME = "|".join(
    (
        rf"(?:install|add|uvx|pipx run)(?: +-[-\w=]+)* +[\"'`]?{NAME}\b(?![./-])",
        rf"{NAME}\[",
        rf"pypi\.org/\w+/{NAME}",
        rf"^ *[\"']?{NAME} *[<>=~!]=",
        rf"\A{NAME}\s*\Z",
    )
)


def installs_by_name(text: str) -> list[str]:
    return [found[0] for found in re.finditer(BY_NAME, text, re.MULTILINE)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"pip install {NAME}", True),
        (f"`pip install -U --quiet {NAME}==0.1`", True),
        (f"pip install '{NAME}[ray]'", True),
        (f"uv add {NAME}", True),
        (f"needs {NAME}[video]", True),
        (f"https://pypi.org/project/{NAME}", True),
        (f"{NAME}\n", True),
        (f"torch\n{NAME}>=0.1\n", True),
        (f'dependencies = [\n    "{NAME}>=0.1"\n]', True),
        ("pip install .", False),
        ("pip install '.[ray]'", False),
        (f"pip install ./{NAME}", False),
        (f"install {NAME}.rules", False),
        (f"docker build -t {NAME} .", False),
        (f"{NAME} image", False),
    ],
)
def test_installing_by_name_is_found(text: str, found: bool) -> None:
    assert bool(installs_by_name(text)) is found


def test_no_file_installs_mmspec_by_its_name() -> None:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for name in files:
        if (ROOT / name).is_file():
            found[name] = installs_by_name((ROOT / name).read_text(errors="replace"))
    assert len(found) > 1000
    assert {name: phrases for name, phrases in found.items() if phrases} == {}
