"""Names that begin with an underscore, and that mmspec uses of other packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("mmspec", "vision", "audio", "kernels", "metrics", "examples/gpu")
# Attributes of modules that mmspec defines from outside.
OWN = {"_codebook"}
LOOKUPS = ("getattr", "hasattr", "setattr")
PRIVATE = re.compile(r"_[a-z]\w*(?<!__)")


def sources() -> dict[str, ast.AST]:
    """The modules of mmspec, by path."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


def foreign_attributes(trees: dict[str, ast.AST]) -> dict[str, set[str]]:
    """Attributes that no module of mmspec defines, with the files that use them."""
    own = OWN | {name for tree in trees.values() for name in _defined(tree)}
    found: dict[str, set[str]] = {}
    for file, tree in trees.items():
        for name in set(attributes(tree)) - own:
            found.setdefault(name, set()).add(file)
    return found


def foreign_modules(trees: dict[str, ast.AST]) -> dict[str, set[str]]:
    """Parts of imports from other packages, with the files that import them."""
    found: dict[str, set[str]] = {}
    for file, tree in trees.items():
        for name in imports(tree):
            found.setdefault(name, set()).add(file)
    return found


def attributes(tree: ast.AST) -> Iterator[str]:
    """Attributes that a module reads or sets, also by name: in `getattr` and its like, or from a tuple of names."""
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Attribute(attr=name):
                names = [name]
            case ast.For(iter=ast.Tuple(elts=words)) | ast.comprehension(iter=ast.Tuple(elts=words)):
                names = [str(word.value) for word in words if isinstance(word, ast.Constant)]
        if getattr(getattr(node, "func", None), "id", None) in LOOKUPS:
            names = [str(each.value) for each in getattr(node, "args", ()) if isinstance(each, ast.Constant)]
        yield from filter(PRIVATE.fullmatch, names)


def imports(tree: ast.AST) -> Iterator[str]:
    """Parts of imports from packages other than mmspec and Python's stubs."""
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] not in _OURS:
                names = [*module.split("."), *(each.name for each in aliases)]
            case ast.Import(names=aliases):
                names = [part for each in aliases for part in each.name.split(".")]
        yield from filter(PRIVATE.fullmatch, names)


_OURS = ("mmspec", "__future__", "_typeshed")


def _defined(tree: ast.AST) -> Iterator[str]:
    """Names that a module defines, or sets on `self`."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
