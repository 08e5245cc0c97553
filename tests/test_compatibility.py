"""docs/compatibility.md names all that mmspec uses of other packages without a promise, and what exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from private_names import OWN, attributes, foreign_attributes, foreign_modules, imports, sources

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
# Packages whose modules below the top are named on the page.
PACKAGES = ("transformers", "diffusers", "huggingface_hub", "triton")


def inner_modules(tree: ast.AST) -> Iterator[str]:
    """Modules of other packages that lie below the top, as "package.module"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, rest = node.module.partition(".")
            if package in PACKAGES and rest:
                yield node.module


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    return sources()


@pytest.fixture(scope="module")
def private(trees: dict[str, ast.AST]) -> dict[str, set[str]]:
    """Private names of other packages, with the files that use them."""
    return {**foreign_attributes(trees), **foreign_modules(trees)}


def rows() -> list[tuple[str, str]]:
    """The first cell of each row, and the others."""
    cells = [line.strip("|").split(" | ", 1) for line in PAGE.splitlines() if line.startswith("| ")]
    return [(first, rest) for first, rest in cells]


def test_every_private_name_stands_on_the_page_with_its_files(private: dict[str, set[str]]) -> None:
    assert len(private) > 20
    missing = [
        (name, file)
        for name, files in private.items()
        for file in sorted(files)
        if not any(f"`{name}`" in what and f"`{file}`" in where for what, where in rows())
    ]
    assert missing == []


def test_every_private_name_on_the_page_is_used(private: dict[str, set[str]]) -> None:
    named = {name for what, _ in rows() for name in re.findall(r"`(_\w+)`", what)}
    assert named - set(private) - OWN == set()


def test_every_inner_module_stands_on_the_page(trees: dict[str, ast.AST]) -> None:
    found = {module for tree in trees.values() for module in inner_modules(tree)}
    named = re.findall(r"`((?:" + "|".join(PACKAGES) + r")[\w.]*)`", PAGE)
    assert [module for module in sorted(found) if not any(f"{module}.".startswith(f"{name}.") for name in named)] == []


def test_every_row_names_files_and_tests_that_exist() -> None:
    for what, where in rows():
        paths = re.findall(r"`([\w./-]+/[\w./-]+)`", where)
        if re.search(r"\.py", where):
            assert all((ROOT / path).exists() for path in paths), what
            assert any(path.startswith("tests/") for path in paths), what
            assert any(not path.startswith("tests/") for path in paths), what


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("x._cache = 1", ["_cache"]),
        ("from torch._inductor import config", ["_inductor"]),
        ("from a.b import _c", ["_c"]),
        ("import torch._dynamo as d", ["_dynamo"]),
        ("getattr(model, '_hook', None)", ["_hook"]),
        ("any(hasattr(x, name) for name in ('_a', 'b'))", ["_a"]),
        ("from mmspec.a import _b", []),
        ("x.__dict__", []),
        ("f('_word')", []),
    ],
)
def test_private_names_are_found(code: str, names: list[str]) -> None:
    tree = ast.parse(code)
    assert [*attributes(tree), *imports(tree)] == names


def test_triton_has_the_hook_that_is_called_on_a_device_only() -> None:
    knobs = pytest.importorskip("triton.knobs")
    assert hasattr(knobs.runtime, "jit_post_compile_hook")


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 900


def test_what_is_compared_with_other_code_runs_with_other_releases() -> None:
    """`.ci/release` runs what is marked: at least one test in every file that compares greedy tokens of an adapter."""
    files = [path for folder in ("hf", "vision", "audio") for path in (ROOT / "tests" / folder).glob("test_*.py")]
    comparing = [path for path in files if re.search(r"def test_\w*greedy", path.read_text())]
    unmarked = {path.stem for path in comparing if "mark.releases" not in path.read_text()}
    own = {"test_infinity", "test_llamagen", "test_llamagen_checkpoints"}
    assert len(comparing) > 30 and unmarked == own  # those are models of mmspec's own code
