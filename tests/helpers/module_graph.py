"""The graph of a checkout's modules: an arrow from each module to the modules that it imports or names in a string.

Imports inside functions count, and those under `TYPE_CHECKING` where `typing` says so. A string names a module as
"package.module" or "package.module:attribute"; the names of entry-point groups look alike and are left out.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

FOLDERS = {
    "mmspec": "mmspec", "vision": "mmspec.vision", "audio": "mmspec.audio", "kernels": "mmspec.kernels",
    "metrics": "mmspec.metrics",
}  # fmt: skip
_DOTTED = re.compile(r"mmspec(?:\.\w+)+(?::\w+(?:\.\w+)*)?")

Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Module:
    """A parsed module.

    Attributes:
        tree: Its syntax tree.
        package: Whether it is an `__init__.py`.
    """

    tree: ast.Module
    package: bool = False


def modules_of(root: Path) -> dict[str, Module]:
    """The modules of a checkout by their import names."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join([package, *(parts[:-1] if is_package else parts)])
            found[name] = Module(ast.parse(path.read_text(encoding="utf-8")), is_package)
    return found


def graph_of(
    modules: Mapping[str, Module],
    strings: bool = True,
    typing: bool = False,
    groups: Iterable[str] = (),
    doors: Mapping[str, str] | None = None,
) -> dict[str, set[str]]:
    """The modules that each module imports.

    Args:
        modules: By import name.
        strings: Whether a string that names a module counts as an import of it.
        typing: Whether imports under `TYPE_CHECKING` count.
        groups: Names of entry-point groups, which are strings of the same form.
        doors: Attributes of the root package that it imports when they are used, and the modules they come from. Every
            module imports the root package, whose own imports are therefore left out.
    """
    doors, groups = doors or {}, set(groups)
    root = next(iter(modules)).partition(".")[0]
    graph: dict[str, set[str]] = {}
    for name, module in modules.items():
        named = set() if name == root else _imported(module, modules, root, doors, typing)
        if strings and name != root:
            named |= {text.partition(":")[0] for text in strings_of(module.tree) if text not in groups}
        targets = {target for each in named if (target := nearest(each, modules)) is not None}
        # Importing a.b.c imports a and a.b first, except for a module inside of them, which they contain.
        targets |= {parent for each in targets for parent in _parents(each) if not f"{name}.".startswith(f"{parent}.")}
        graph[name] = targets & set(modules) - {name, root}
    return graph


def _imported(
    module: Module, modules: Mapping[str, Module], root: str, doors: Mapping[str, str], typing: bool
) -> set[str]:
    """Dotted names that a module imports; they may go on beyond a module, to an attribute."""
    named, roots = set[str](), set[str]()
    for node in _nodes(module.tree, typing):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names if alias.name != root}
            roots |= {alias.asname or root for alias in node.names if alias.name.partition(".")[0] == root}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                named.add(doors.get(alias.name, full) if node.module == root and full not in modules else full)
        elif isinstance(node, ast.ImportFrom):
            raise AssertionError(f"line {node.lineno}: relative import")
    for node in _nodes(module.tree, typing):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in roots:
            named.add(doors.get(node.attr, f"{root}.{node.attr}"))
    return named


def strings_of(tree: ast.AST) -> set[str]:
    """String constants that have the form "package.module" or "package.module:attribute"."""
    constants = {node.value for node in _nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in constants if _DOTTED.fullmatch(text)}


def _nodes(tree: ast.AST, typing: bool = False) -> Iterator[ast.AST]:
    """All nodes; those under `if TYPE_CHECKING:` only with `typing`."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if not typing and _is_typing(node):
            skipped |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
        yield node


def _is_typing(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether a node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def nearest(name: str, modules: Mapping[str, Module]) -> str | None:
    """The module that a dotted name lies in: itself, or the one whose attribute it is."""
    return name if name in modules else next((parent for parent in _parents(name) if parent in modules), None)


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules each of which is reached from every other one (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            at = stack.index(module)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return [group for group in found if len(group) > 1]


def shortest_circle(graph: Graph, group: Iterable[str]) -> list[str]:
    """A shortest way from a module of a circle back to itself."""
    inside = set(group)
    best: list[str] = []
    for start in sorted(inside):
        paths = {start: [start]}
        reached = [start]
        for module in reached:
            if start in graph[module]:
                way = [*paths[module], start]
                best = way if not best or len(way) < len(best) else best
                break
            for target in sorted(graph[module] & inside - set(paths)):
                paths[target] = [*paths[module], target]
                reached.append(target)
    return best


def upward(
    graph: Graph, layers: Sequence[Sequence[str]], allowed: Iterable[tuple[str, str]] = ()
) -> list[tuple[str, str]]:
    """Arrows that do not lead to a lower layer: up, or between two rooms of one layer.

    Args:
        graph: Of the modules.
        layers: From the lowest; each lists its rooms, by the names of packages and modules that everything in it begins
            with. The longest name counts.
        allowed: Pairs of names, as of rooms, between which arrows may go whatever their layers are.
    """
    height = {room: i for i, rooms in enumerate(layers) for room in rooms}
    bad = []
    for module, targets in graph.items():
        for target in targets:
            a, b = room_of(module, height), room_of(target, height)
            if (
                a != b
                and height[b] >= height[a]
                and not any(inside(module, x) and inside(target, y) for x, y in allowed)
            ):
                bad.append((module, target))
    return sorted(bad)


def room_of(module: str, rooms: Iterable[str]) -> str:
    """The room, by its longest name, that a module lies in.

    Raises:
        AssertionError: When it lies in none.
    """
    found = [room for room in rooms if inside(module, room)]
    assert found, f"{module} lies in no room; name its layer"
    return max(found, key=len)


def inside(module: str, room: str) -> bool:
    """Whether a module is `room` or lies in that package."""
    return f"{module}.".startswith(f"{room}.")


def resolves(name: str) -> bool:
    """Whether "a.b", "a.b:c", "a.b.c" or "a.b:c.d" is a module, or an attribute of one or of a class; imports it."""
    parts = name.replace(":", ".").split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name is None or not ".".join(parts).startswith(error.name):
                raise
            continue
        for part in parts[count:]:
            if part in getattr(found, "__annotations__", {}):  # a field without a default
                return True
            if isinstance(found, type) and f"self.{part}" in inspect.getsource(found):  # set by a method
                return True
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
