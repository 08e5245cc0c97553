"""Entry points: models, adapters, drafters, recipes, rules and metrics of other installed packages.

| group             | entry-point name        | object                                                       |
| ----------------- | ----------------------- | ------------------------------------------------------------ |
| `mmspec.models`   | a model's name          | a function (device, dtype) that returns a pipeline           |
| `mmspec.adapters` | a transformers class    | a `mmspec.hf.adapters.GenerateAdapter`, a module or object   |
| `mmspec.drafters` | a recipe                | a builder, see `mmspec.decoding.resources.DraftingContext`   |
| `mmspec.recipes`  | a recipe                | a `mmspec.recipes.RecipeInfo`                                |
| `mmspec.rules`    | an acceptance rule      | a `mmspec.rules.Rule`                                        |
| `mmspec.metrics`  | a metric                | a metric object, see docs/adding-a-metric.md                 |

Each group has a guide in docs/. Nothing is imported before it is used.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from mmspec.rules import RULES, Rule


@dataclass(frozen=True)
class Info:
    """A named component.

    Attributes:
        summary: One line.
        where: Where it is defined, "module:attribute" or "module".
    """

    summary: str
    where: str


@cache
def plugins(group: str) -> dict[str, Info]:
    """The entry points of a group, by name."""
    return {e.name: Info(f"plug-in {e.value}", e.value) for e in entry_points(group=group)}


@cache
def rules() -> dict[str, Rule]:
    """The acceptance rules of mmspec and of plug-ins, by name."""
    return {**RULES, **{name: resolve(info.where) for name, info in plugins("mmspec.rules").items()}}


def resolve(where: str) -> Any:
    """Imports "module:attribute" and returns the attribute, or the module if no attribute is given."""
    module, _, attribute = where.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found
