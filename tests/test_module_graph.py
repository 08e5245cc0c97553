"""Modules import each other without circles, and rooms only what lies below them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from module_graph import (
    FOLDERS,
    Module,
    circles,
    graph_of,
    inside,
    modules_of,
    resolves,
    shortest_circle,
    strings_of,
    upward,
)

import mmspec

# From the lowest; a room imports rooms of lower layers only.
LAYERS = (
    ("mmspec.errors",),
    ("mmspec.limits",),
    ("mmspec.files",),
    ("mmspec.environment", "mmspec.knobs", "mmspec.hub", "mmspec.arguments", "mmspec.versions"),
    ("mmspec.pipeline",),
    ("mmspec.media",),
    ("mmspec.kernels",),
    ("mmspec.sampling",),
    ("mmspec.codebook",),
    ("mmspec.rules",),
    ("mmspec.decoding",),
    ("mmspec.heads",),
    ("mmspec.drafters", "mmspec.masked"),
    ("mmspec.continuous",),
    ("mmspec.methods.table", "mmspec.methods.trained"),
    ("mmspec.registry",),
    ("mmspec.heads.checkpoint", "mmspec.ways_to_draft"),
    ("mmspec.recipes",),
    ("mmspec.decoding.assembly",),
    ("mmspec.batching",),
    ("mmspec.continuous.prepared",),
    ("mmspec.hf", "mmspec.training", "mmspec.testing"),
    ("mmspec.methods",),
    ("mmspec.bulk",),
    ("mmspec.vision", "mmspec.audio", "mmspec.metrics"),
    ("mmspec.serving",),
    ("mmspec.drop_in",),
    ("mmspec.loading",),
    ("mmspec.compat",),
    ("mmspec.bulk.generator", "mmspec.ray_serve", "mmspec.registry.registration"),
    ("mmspec.cli", "mmspec.__main__"),
)
# Arrows between rooms of one layer, or up, and why they may be.
ALLOWED = (
    # The tables of the methods lie in their room; `test_methods_are_guests` says who else may look into it.
    ("mmspec.registry", "mmspec.methods"),
    ("mmspec.ways_to_draft", "mmspec.methods"),
    ("mmspec.training.kinds", "mmspec.methods"),
    # Metrics and benchmarks use the models that ship with mmspec, and one benchmark a LlamaGen transformer.
    ("mmspec.metrics", "mmspec.vision.shapes"),
    ("mmspec.metrics", "mmspec.vision.scenes"),
    ("mmspec.metrics", "mmspec.audio.spoken"),
    ("mmspec.metrics.bench.steps", "mmspec.vision.llamagen"),
    # Generated images are saved with their prompt and seed, as `mmspec image` saves them.
    ("mmspec.bulk.media", "mmspec.vision.png"),
    # `python -m mmspec` is the command.
    ("mmspec.__main__", "mmspec.cli"),
)
# Groups of entry points, which have the names of modules.
GROUPS = (
    *("mmspec.models", "mmspec.adapters", "mmspec.drafters", "mmspec.recipes", "mmspec.rules", "mmspec.metrics"),
    *("mmspec.heads", "mmspec.starts", "mmspec.refreshes"),
)
NAMED = re.compile(r"`(mmspec(?:\.\w+)+(?::\w+)?)`")


@pytest.fixture(scope="module")
def modules(root: Path) -> dict[str, Module]:
    return modules_of(root)


@pytest.fixture(scope="module")
def graph(modules: dict[str, Module]) -> dict[str, set[str]]:
    """All arrows: imports, those of types, and names in strings."""
    return graph_of(modules, typing=True, groups=GROUPS, doors=mmspec._HOMES)


@pytest.fixture(scope="module")
def imports(modules: dict[str, Module]) -> dict[str, set[str]]:
    """The graph without the names in strings."""
    return graph_of(modules, strings=False, doors=mmspec._HOMES)


def made_up(**sources: str) -> dict[str, Module]:
    """Modules of a package by the text of each; `__` in a name is a dot, and `mmspec.a` is a package."""
    found = {f"mmspec.{name.replace('__', '.')}": Module(ast.parse(text)) for name, text in sources.items()}
    return {"mmspec": Module(ast.parse("")), **found}


def test_no_module_imports_itself_through_others(graph: dict[str, set[str]]) -> None:
    found = circles(graph)
    assert not found, "\n".join(f"{len(group)}: {' -> '.join(shortest_circle(graph, group))}" for group in found)


def array_classes(modules: dict[str, Module]) -> list[str]:
    """Classes that are arrays or tensors with something more, or take over operations on these."""
    found = []
    for name, module in modules.items():
        for each in (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)):
            bases = {ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in each.bases}
            own = {part.name for part in each.body if isinstance(part, ast.FunctionDef)}
            arrays = {base.rpartition(".")[2] for base in bases} & {"ndarray", "NDArray", "Tensor", "Parameter"}
            if arrays or own & {"__array_finalize__", "__array_ufunc__", "__torch_function__"}:
                found.append(f"{name}.{each.name}")
    return found


def test_no_array_has_hidden_state(modules: dict[str, Module]) -> None:
    """State of an array of a class of its own is lost by any arithmetic; `mmspec.sampling.numbers` has it openly."""
    assert not array_classes(modules)
    hidden = (
        "class A(np.ndarray[Any, Any]): pass\nclass B(torch.Tensor): pass\nclass C:\n def __array_ufunc__(self): pass"
    )
    assert array_classes(made_up(a=hidden, b="class D(Sequence[Tensor]): pass")) == [f"mmspec.a.{n}" for n in "ABC"]


def test_methods_are_guests(modules: dict[str, Module]) -> None:
    """Nothing outside of `mmspec.methods` imports or names a method, but for its tables; nor do other methods."""
    room = "mmspec.methods"
    tables = {f"{room}.table", f"{room}.trained"}
    graph = graph_of(modules, typing=True, groups=GROUPS, doors=mmspec._HOMES)
    readers = {module: targets & tables for module, targets in graph.items() if targets & tables}
    assert readers == {
        "mmspec.registry": {f"{room}.table"},
        "mmspec.ways_to_draft": {f"{room}.table"},
        "mmspec.training.kinds": {f"{room}.trained"},
        "mmspec.cli.train_drafter": {f"{room}.trained"},
        "mmspec.serving.learning": {f"{room}.trained"},
    }
    found = [
        (module, target)
        for module, targets in graph.items()
        for target in targets - tables - {room}
        if inside(target, room) and module not in tables and _method(module) != _method(target)
    ]
    # The command that trains the judge, and a benchmark of one method.
    allowed = {"mmspec.cli.train_judge", "mmspec.metrics.bench.gpu.outer_passes"}
    assert not {module for module, _ in found} - allowed, "\n".join(map(str, found))


def _method(module: str) -> str:
    """The method that a module belongs to, `mmspec.methods.NAME`; other modules are returned."""
    return ".".join(module.split(".")[:3]) if inside(module, "mmspec.methods") else module


def test_rooms_import_rooms_below(imports: dict[str, set[str]]) -> None:
    found = upward(imports, LAYERS, ALLOWED)
    assert not found, "\n".join(f"{module} -> {target}" for module, target in found)


def test_every_exception_is_needed(imports: dict[str, set[str]]) -> None:
    pairs = [(a, b) for a, targets in imports.items() for b in targets]
    unneeded = {(low, high) for low, high in ALLOWED if not any(inside(a, low) and inside(b, high) for a, b in pairs)}
    assert not unneeded


def test_every_name_in_a_string_exists(modules: dict[str, Module]) -> None:
    named = {text for module in modules.values() for text in strings_of(module.tree)} - set(GROUPS)
    assert len(named) > 20
    missing = [text for text in sorted(named) if not resolves(text)]
    assert not missing, "\n".join(missing)


def test_every_name_in_the_documentation_exists(root: Path) -> None:
    texts = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md")]
    texts += [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    named = set[tuple[Path, str]]()
    for path in texts:
        text = path.read_text("utf-8")
        named |= {(path.relative_to(root), name) for name in NAMED.findall(text)}
    assert len(named) > 20
    missing = {name for _, name in named if name not in GROUPS and not resolves(name)}
    assert not missing, "\n".join(f"{path}: {name}" for path, name in sorted(named) if name in missing)


# --- The graph itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "closing",
    [
        "import mmspec.a",
        "import mmspec.a.x as x",
        "from mmspec import a",
        "from mmspec.a.x import name",
        "def f():\n    from mmspec.a import x",
        "TABLE = {'x': 'mmspec.a.x:make'}",
        "import mmspec\ndef f():\n    return mmspec.load()",
        "from mmspec import load",
    ],
)
def test_a_circle_is_found(closing: str) -> None:
    modules = made_up(a="", a__x="from mmspec.b import y", b="import mmspec.c", c=closing, d="from mmspec.a.x import z")
    modules["mmspec.a"] = Module(ast.parse("from mmspec.a.x import name"))
    graph = graph_of(modules, doors={"load": "mmspec.a.x"})
    (found,) = circles(graph)
    assert {"mmspec.a.x", "mmspec.b", "mmspec.c"} <= set(found) <= set(modules) - {"mmspec", "mmspec.d"}
    way = shortest_circle(graph, found)
    assert way[0] == way[-1] and len(way) == len(set(way)) + 1
    assert all(b in graph[a] for a, b in zip(way, way[1:], strict=False))


@pytest.mark.parametrize(
    "harmless",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mmspec.a import x",
        "TEXT = 'see mmspec.a.x'",
        "GROUP = 'mmspec.a'",
        "from mmspec import __version__",
        "import mmspec",
    ],
)
def test_what_is_no_import_closes_no_circle(harmless: str) -> None:
    modules = made_up(a="from mmspec.b import y", b=harmless)
    assert not circles(graph_of(modules, groups=["mmspec.a"], doors={"load": "mmspec.a"}))


def test_imports_of_types_close_a_circle_where_they_count() -> None:
    modules = made_up(
        a="from mmspec.b import y", b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mmspec.a import x"
    )
    assert not circles(graph_of(modules)) and circles(graph_of(modules, typing=True)) == [["mmspec.a", "mmspec.b"]]


def test_a_package_that_gathers_its_modules_is_a_circle_only_when_they_import_it() -> None:
    gathering = made_up(a="from mmspec.a.x import y\nZ = 1", a__x="y = 1", b="import mmspec.a.x")
    assert not circles(graph_of(gathering))
    assert graph_of(gathering)["mmspec.b"] == {"mmspec.a", "mmspec.a.x"}
    back = made_up(a="from mmspec.a.x import y\nZ = 1", a__x="from mmspec.a import Z")
    assert circles(graph_of(back)) == [["mmspec.a", "mmspec.a.x"]]


def test_arrows_that_do_not_lead_down_are_found() -> None:
    modules = made_up(
        low="from mmspec.high import x", mid__x="import mmspec.side", mid__y="import mmspec.mid.x, mmspec.low", side="",
        high="import mmspec.mid.y", mid="",
    )  # fmt: skip
    graph = graph_of(modules)
    layers = [["mmspec.low"], ["mmspec.mid", "mmspec.side"], ["mmspec.high"]]
    assert upward(graph, layers) == [("mmspec.low", "mmspec.high"), ("mmspec.mid.x", "mmspec.side")]
    assert upward(graph, layers, [("mmspec.mid", "mmspec.side")]) == [("mmspec.low", "mmspec.high")]
    with pytest.raises(AssertionError, match="mmspec.high lies in no room"):
        upward(graph, layers[:2])


def test_names_resolve_to_what_can_be_imported() -> None:
    for name in ("mmspec.rules", "mmspec.rules:Rule", "mmspec.rules.Rule.build", "mmspec.rules:Rule.summary"):
        assert resolves(name), name
    for name in ("mmspec.rulez", "mmspec.rules:Rules", "mmspec.rules.Rule.bild"):
        assert not resolves(name), name
