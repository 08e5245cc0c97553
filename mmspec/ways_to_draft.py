"""The ways of drafting, by name: those of the core, of the methods and of plug-ins.

This module does not import torch, so that a command can check a recipe before it loads a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from mmspec.drafters.recipe_info import (
    DEPTH,
    GUIDANCE,
    MODEL,
    REFRESH_VALUES,
    START_VALUES,
    TOP,
    Choice,
    RecipeInfo,
    branch_knob,
    model_window_knob,
    nodes_knob,
    window_knob,
)
from mmspec.heads.info import HeadInfo
from mmspec.knobs import Knob
from mmspec.methods import table
from mmspec.registry import HEADS, Components, Info, heads, installed, plugins, refreshes, registered, starts

__all__ = ["RECIPES", "RecipeInfo", "networks", "ways_to_draft"]

_START = Knob(
    "auto",
    "token initialization of positions new to the window; auto: the model's n-gram table if it has one, else the token "
    "above, else the token before",
    choices=START_VALUES,
)
_REFRESH = {
    "refresh": Knob(
        "none",
        "what reused drafts are coupled to, after the corrected prefix",
        choices=REFRESH_VALUES,
    ),
    "refreshed": Knob(1, "drafts per window to refresh", low=1, high=64),
    "weight": Knob(
        "auto",
        "share of the network in the refreshed distribution; auto: by the overlap measured in earlier windows",
        low=0.0,
        high=1.0,
        choices=("auto",),
    ),
}

_MODEL_BUILDERS = {
    "tokens": "mmspec.drafters.draft_model:build",
    "columns": "mmspec.drafters.draft_model:build",
    "latents": "mmspec.continuous.draft_model:build",
}
_JACOBI_BUILDERS = {
    "tokens": "mmspec.drafters.jacobi:build",
    "columns": "mmspec.drafters.columns.jacobi:build",
    "latents": "mmspec.continuous.jacobi:build",
}

_CORE: Mapping[str, RecipeInfo] = MappingProxyType(
    {
        "plain": RecipeInfo("one token per target call, without drafts; the baseline"),
        "draft": RecipeInfo("a smaller draft model", _MODEL_BUILDERS, {"window": window_knob(5), **MODEL}),
        "layer-skip": RecipeInfo(
            "early exit: the target's first layers draft on its own KV cache",
            _MODEL_BUILDERS,
            {
                "window": window_knob(5),
                "layers": Knob(2, "number of the target's first layers to draft with", low=1, high=1000),
                "guidance": GUIDANCE,
            },
        ),
        "table": RecipeInfo(
            "an n-gram table over the left and the upper neighbor",
            {"tokens": "mmspec.drafters.jacobi:build_ngram"},
            {"window": window_knob(9)},
            table=True,
        ),
        "eagle": RecipeInfo(
            "an EAGLE head on the target's features",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": window_knob(5)},
            runner="eagle",
        ),
        "sjd": RecipeInfo(
            "speculative Jacobi decoding: the rejected part of the previous window, resampled",
            _JACOBI_BUILDERS,
            {"window": model_window_knob(), "start": _START, **MODEL, **_REFRESH},
        ),
        "scd": RecipeInfo(
            "speculative coupled decoding: the rejected part of the previous window, coupled to its old tokens",
            _JACOBI_BUILDERS,
            {
                "window": model_window_knob(),
                "start": _START,
                "coupling": Knob("maximal", "coupling of the old and the new tokens", choices=("maximal", "gumbel")),
                **MODEL,
                **_REFRESH,
            },
        ),
        "tree": RecipeInfo(
            "a tree from a smaller model, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": branch_knob("3/2/1"), **MODEL},
            tree=True,
        ),
        "tree-chains": RecipeInfo(
            "several independent drafts from a smaller model, verified as a tree",
            {"tokens": "mmspec.drafters.tree.specinfer:build_independent"},
            {"branch": branch_knob("4/1/1/1"), **MODEL},
            tree=True,
        ),
        "tree-table": RecipeInfo(
            "a tree from an n-gram table, whose candidates are siblings",
            {"tokens": "mmspec.drafters.tree.ngram_tree:build"},
            {"branch": branch_knob("3/2/1")},
            tree=True,
            table=True,
        ),
        "tree-dynamic": RecipeInfo(
            "a dynamic tree: the nodes of a smaller model with the largest joint probability (EAGLE-2)",
            {"tokens": "mmspec.drafters.tree.eagle2:build"},
            {
                "window": nodes_knob(16),
                "depth": Knob(5, DEPTH, low=1, high=64),
                "top": Knob(4, TOP, low=1, high=64),
                **MODEL,
            },
            tree=True,
        ),
        "tree-eagle": RecipeInfo(
            "a tree from an EAGLE head, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": branch_knob("3/2/1")},
            tree=True,
            runner="eagle",
        ),
        "eagle-2": RecipeInfo(
            "a dynamic tree: the nodes of an EAGLE head with the largest joint probability",
            {"tokens": "mmspec.drafters.tree.eagle2:build"},
            {
                "window": nodes_knob(16),
                "depth": Knob(5, DEPTH, low=1, high=64),
                "top": Knob(4, TOP, low=1, high=64),
            },
            tree=True,
            runner="eagle",
        ),
    }
)


def networks() -> tuple[str, ...]:
    """The networks that the knobs `start` and `refresh` may name."""
    return _networks(heads().usable())


def _networks(known: Mapping[str, HeadInfo]) -> tuple[str, ...]:
    return "model", *(name for name, head in known.items() if head.continues)


def _with_choices(
    info: RecipeInfo, begins: Mapping[str, Choice], changes: Mapping[str, Choice], runners: Sequence[str]
) -> RecipeInfo:
    """A Jacobi recipe with the values of `start` and `refresh` that the core does not have, and with their knobs."""
    if "start" not in info.knobs:
        return info
    start, refresh, knobs = info.knobs["start"], info.knobs["refresh"], dict(info.knobs)
    recipes = ", ".join(["draft", *runners[1:]])
    knobs["start"] = replace(
        start,
        summary="; ".join([start.summary, *_summaries(begins), f"{', '.join(runners)}: the network of {recipes}"]),
        choices=(*start.choices, *begins, *runners),
    )
    knobs["refresh"] = replace(
        refresh,
        summary="; ".join([f"{refresh.summary}: the first ones to the network of {recipes}", *_summaries(changes)]),
        choices=(*refresh.choices, *changes, *runners),
    )
    for name, choice in changes.items():
        for knob, meaning in choice.uses.items():
            knobs[knob] = replace(knobs[knob], summary=f"{knobs[knob].summary}. With refresh={name}: {meaning}")
        knobs |= choice.knobs
    return replace(info, knobs=knobs)


def _summaries(choices: Mapping[str, Choice]) -> list[str]:
    return [f"{name}: {choice.summary}" for name, choice in choices.items()]


_ROWS = {**_CORE, **table.RECIPES}
# Those of mmspec.
RECIPES: Mapping[str, RecipeInfo] = MappingProxyType(
    {name: _with_choices(info, table.STARTS, table.REFRESHES, _networks(HEADS)) for name, info in _ROWS.items()}
)


def ways_to_draft() -> Components[RecipeInfo]:
    """The recipes of mmspec and of plug-ins, by name.

    An entry point in the group `mmspec.recipes` names a `RecipeInfo`. One in the group `mmspec.drafters` names a
    builder and becomes a recipe of the same name with the knob `window`.
    """
    group, known = "mmspec.drafters", RECIPES
    if any(plugins(part) for part in ("mmspec.heads", "mmspec.starts", "mmspec.refreshes")):
        choices = starts().usable(), refreshes().usable(), networks()
        known = {name: _with_choices(info, *choices) for name, info in _ROWS.items()}
    own = {**known, **{name: _of_drafter(info) for name, info in registered(group).items()}}
    others = {name: _of_drafter(info) for name, info in installed(group).items()}
    return Components(own, "mmspec.recipes", others)


def _of_drafter(info: Info) -> RecipeInfo:
    """The recipe of a drafter that has no other knobs."""
    return RecipeInfo(info.summary, {"tokens": info.where}, {"window": window_knob(5)}, draft_model=True)
