"""What the components of each kind are, whether they are registered or named by an entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mmspec.arguments import shown
from mmspec.drafters.recipe_info import Choice, RecipeInfo
from mmspec.environment.importing import resolve
from mmspec.errors import PluginError
from mmspec.heads.info import HeadInfo
from mmspec.registry import Info
from mmspec.rules import Rule

Expected = tuple[str, Callable[[Any], bool]]


def _instance(kind: type[Any]) -> Expected:
    return f"a {kind.__module__}.{kind.__name__}", lambda found: isinstance(found, kind)


# By entry-point group: what a component must be, and whether an object is that.
EXPECTED: Mapping[str, Expected] = MappingProxyType(
    {
        "mmspec.models": ("a function (device, dtype) that returns a pipeline", callable),
        "mmspec.adapters": (
            "a module or an object with the functions vocab_size and plan",
            lambda found: all(callable(getattr(found, name, None)) for name in ("vocab_size", "plan")),
        ),
        "mmspec.drafters": ("a function (context) that returns a drafter", callable),
        "mmspec.recipes": _instance(RecipeInfo),
        "mmspec.rules": _instance(Rule),
        "mmspec.heads": _instance(HeadInfo),
        "mmspec.starts": _instance(Choice),
        "mmspec.refreshes": _instance(Choice),
        "mmspec.metrics": ("a function (extractor) that returns a metric", callable),
    }
)


def component(found: str | Info, group: str) -> Any:
    """A component by where it is, imported.

    Args:
        found: "module:attribute" of one of mmspec, an `Info` of another.
        group: The entry-point group.

    Raises:
        PluginError: If it cannot be imported, or is not what its group requires.
    """
    if not isinstance(found, Info):
        return resolve(found)
    made, (must, fits) = resolve(found.where), EXPECTED[group]
    if not fits(made):
        raise PluginError(f"plug-in {found.where!r} ({group}) must be {must}, not {shown(made)}")
    return made
