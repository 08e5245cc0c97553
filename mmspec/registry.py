"""What can be named: models, drafters and acceptance rules, our own and those of installed plug-ins.

A plug-in declares entry points in the groups `mmspec.adapters`, `mmspec.families`, `mmspec.drafters` and
`mmspec.acceptance`. Nothing is imported before it is used.
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
    """A named part: `summary` in one line, `exact` when the outcome keeps the target distribution, `module:attribute`."""

    summary: str
    exact: bool
    where: str


_MODELS = {
    "shapes": Info("64x64 images of coloured shapes; ships with mmspec", True, "mmspec.vision.shapes.model:load"),
    "shapes-latent": Info(
        "the same, drawn as vectors by a flow head; ships with mmspec", True, "mmspec.vision.shapes.latent.model:load"
    ),
    "spoken": Info(
        "speech from a small vocabulary, two voices; ships with mmspec", True, "mmspec.audio.spoken.model:load"
    ),
}
_DRAFTERS = {
    "model": Info("a smaller model of the same vocabulary", True, "mmspec.drafters.draft_model:ModelDrafter"),
    "first-layers": Info("the target's own first layers", True, "mmspec.drafters.early_exit:FirstLayers"),
    "table": Info("an n-gram table over left and upper neighbour", True, "mmspec.drafters.ngram:NGramTable"),
    "followers": Info(
        "such a table of what was seen, with several guesses",
        True,
        "mmspec.drafters.sparse_ngram:FollowerTable",
    ),
    "recycle": Info("such a table, made from the target's own distributions", True, "mmspec.drafters.recycle:Recycle"),
    "eagle": Info("an EAGLE head on the target's features", True, "mmspec.drafters.eagle:EagleReader"),
    "medusa": Info("Medusa heads on the target's features", True, "mmspec.drafters.medusa:MedusaReader"),
    "jacobi": Info("the window's own leftovers and start tokens", True, "mmspec.drafters.jacobi:Jacobi"),
    "tree-model": Info("such a model, for trees of one shape", True, "mmspec.drafters.tree.specinfer:TreeModelDrafter"),
    "tree-dynamic": Info(
        "such a model, for trees of its likeliest drafts", True, "mmspec.drafters.tree.eagle2:TreeDynamicDrafter"
    ),
    "tree-sampled": Info(
        "such a model, drawing nodes where they are worth most", True, "mmspec.drafters.tree.dyspec:TreeSampledDrafter"
    ),
    "tree-table": Info(
        "several guesses of an n-gram table as a tree", True, "mmspec.drafters.tree.ngram_tree:TreeTableDrafter"
    ),
}


def models() -> dict[str, Info]:
    """Models that `mmspec.load` knows by name."""
    return _MODELS | _plugins("mmspec.adapters")


def drafters() -> dict[str, Info]:
    """Drafters; any of them is exact under an exact rule."""
    return _DRAFTERS | _plugins("mmspec.drafters")


@cache
def rules() -> dict[str, Rule]:
    """Acceptance rules; a plug-in's entry point names a `mmspec.rules.Rule`."""
    return {**RULES, **{e.name: e.load() for e in entry_points(group="mmspec.acceptance")}}


def adapters() -> dict[str, Info]:
    """Classes of transformers, by name, that plug-ins teach `mmspec.generate`."""
    return _plugins("mmspec.families")


@cache
def _plugins(group: str) -> dict[str, Info]:
    return {e.name: Info(f"plug-in {e.value}", False, e.value) for e in entry_points(group=group)}


def resolve(info: Info) -> Any:
    """Imports what an entry points to: an attribute of a module, or the module itself."""
    module, _, attribute = info.where.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found
