"""The ways of drafting, by name: `RECIPES`, which has a row for each, and those of plug-ins.

This module does not import torch, so that a command can check a recipe before it loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mmspec.errors import ArgumentError
from mmspec.knobs import RUNNERS, Branching, Knob
from mmspec.registry import Components, Info, installed, registered


@dataclass(frozen=True)
class RecipeInfo:
    """A way of drafting.

    Attributes:
        summary: One line.
        builders: The function that builds the drafter, or "module:function", by the kind of token: "tokens", "columns"
            (one token per codebook), "latents" (vectors). It takes a `mmspec.decoding.resources.DraftingContext`. A
            recipe without builders is plain decoding.
        knobs: The knobs, by name. A recipe that drafts has `window`, `branch`, or `drafts` and `length`, which set the
            number of tokens in a target call.
        tree: Whether it drafts trees; the builders then return a `mmspec.decoding.tree_loop.TreeDrafter`.
        runner: The network that drafts are sampled from: "model", "eagle", "medusa", "hydra", "kangaroo", "block",
            "grid", "frame", "prompt" or "one-step".
        table: Whether it drafts from the model's n-gram table.
        draft_model: Whether its builder may use the model's draft model. Recipes with the knob `layers` tell by their
            knobs.
    """

    summary: str
    builders: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    tree: bool = False
    runner: str = "model"
    table: bool = False
    draft_model: bool = False

    def __post_init__(self) -> None:
        if self.builders and not ({"window", "branch"} & set(self.knobs) or {"drafts", "length"} <= set(self.knobs)):
            raise ArgumentError(
                "RecipeInfo has builders, but no knob for the number of tokens in a target call; knobs must have "
                "'window', 'branch', or 'drafts' and 'length'"
            )

    @property
    def drafts(self) -> bool:
        """Whether it drafts at all; plain decoding does not."""
        return bool(self.builders)

    @property
    def continuous(self) -> bool:
        """Whether it is for tokens that are vectors only; its default rule is then `smoothed`."""
        return list(self.builders) == ["latents"]

    def supports(self, kind: str) -> bool:
        """Whether it decodes a kind of token; see `mmspec.decoding.layout.TokenKind`."""
        return not self.builders or kind in self.builders


def _window(default: int) -> Knob:
    return Knob(
        default,
        "tokens in one target call, the last accepted one included; auto: the fastest, by measurement (a seed then "
        "gives other tokens of the same distribution in another run)",
        low=2,
        high=1024,
        choices=("auto",),
    )


def _nodes(default: int) -> Knob:
    return Knob(default, "nodes in one target call, the last accepted token included", low=2, high=1024)


def _branch(default: str, high: int = 1023) -> Branching:
    return Branching(
        default,
        "children of a node at each depth; auto: the shape with the most tokens per second, by measurement (a seed "
        "then gives other tokens of the same distribution in another run)",
        high=high,
        choices=("auto",),
    )


def _recent(default: int, low: int) -> Knob:
    every = "" if low else "; 0: all"
    return Knob(default, f"last tokens that a draft attends to besides the prompt{every}", low=low, high=1_000_000)


_START = Knob(
    "auto",
    "token initialization of positions new to the window; auto: the model's n-gram table if it has one, else the token "
    "above, else the token before; recycle: an n-gram table built while decoding; stand: samples of stored "
    "distributions; one-step: a one-step generator; model, eagle, medusa, block, grid, frame: the network of the "
    "recipes draft, eagle, medusa, block, grid, frame",
    choices=("auto", "random", "left", "up", "table", "recycle", "stand", "one-step", *RUNNERS),
)

_GUIDANCE = Knob(1.0, "guidance scale of the drafts; 1 turns guidance off and halves the work", low=0.0, high=1e4)
_MODEL = {
    "layers": Knob(
        0,
        "number of the target's first layers to draft with; 0: the draft model. With refresh=outer: of its layers that "
        "run, the first one and the last ones; 0: 2",
        low=0,
        high=1000,
    ),
    "guidance": _GUIDANCE,
}
_REFRESH = {
    "refresh": Knob(
        "none",
        "what reused drafts are coupled to, after the corrected prefix: the first ones to the network of the recipes "
        "draft, eagle, medusa, block, grid, frame; outer: all of them to the target's first and last layers",
        choices=("none", "outer", *RUNNERS),
    ),
    "refreshed": Knob(1, "drafts per window to refresh", low=1, high=64),
    "passes": Knob(1, "how often the layers of refresh=outer read a window", low=1, high=16),
    "weight": Knob(
        "auto",
        "share of the network in the refreshed distribution; auto: by the overlap measured in earlier windows",
        low=0.0,
        high=1.0,
        choices=("auto",),
    ),
}
_DEPTH = "length of the longest path of drafts"
_TOP = "children of a node, and nodes that get children at each depth"

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


RECIPES: Mapping[str, RecipeInfo] = MappingProxyType(
    {
        "plain": RecipeInfo("one token per target call, without drafts; the baseline"),
        "draft": RecipeInfo("a smaller draft model", _MODEL_BUILDERS, {"window": _window(5), **_MODEL}),
        "draft-stop": RecipeInfo(
            "a smaller draft model, as long as it is sure of its drafts; the rest of the window are guesses",
            {"tokens": "mmspec.methods.draft_stop.drafter:build"},
            {
                "window": _window(16),
                "stop": Knob(0.3, "least predicted chance that all drafts so far are accepted", low=0.0, high=1.0),
                **_MODEL,
            },
        ),
        "pearl": RecipeInfo(
            "a smaller draft model, which drafts the next window while the target reads this one",
            {"tokens": "mmspec.methods.pearl:build"},
            {"window": _window(5), "guidance": _GUIDANCE},
            draft_model=True,
        ),
        "layer-skip": RecipeInfo(
            "early exit: the target's first layers draft on its own KV cache",
            _MODEL_BUILDERS,
            {
                "window": _window(5),
                "layers": Knob(2, "number of the target's first layers to draft with", low=1, high=1000),
                "guidance": _GUIDANCE,
            },
        ),
        "short-cache": RecipeInfo(
            "the target itself with a short KV cache: the prompt and the last tokens",
            {"tokens": "mmspec.drafters.shared_cache:build"},
            {"window": _window(5), "recent": _recent(64, 1), "guidance": _GUIDANCE},
        ),
        "swift": RecipeInfo(
            "the target itself without some of its layers, which were chosen on its own sequences",
            {"tokens": "mmspec.methods.swift.drafter:build"},
            {
                "window": _window(5),
                "skip": Knob(0.4, "share of the layers that drafts skip", low=0.0, high=1.0),
                "guidance": _GUIDANCE,
            },
        ),
        "cascade": RecipeInfo(
            "a cascade: the target with a short KV cache, or its first layers; a smaller model drafts for those",
            {"tokens": "mmspec.methods.cascade:build"},
            {
                "window": _window(9),
                "inner": Knob(4, "tokens in one call of the drafter, which verifies the smaller model", low=2, high=64),
                "recent": _recent(64, 0),
                "layers": Knob(0, "number of the target's first layers that draft; 0: all", low=0, high=1000),
                "guidance": _GUIDANCE,
            },
            draft_model=True,
        ),
        "table": RecipeInfo(
            "an n-gram table over the left and the upper neighbor",
            {"tokens": "mmspec.drafters.jacobi:build_ngram"},
            {"window": _window(9)},
            table=True,
        ),
        "recycle": RecipeInfo(
            "token recycling: an n-gram table built online from the target's own distributions",
            {
                "tokens": "mmspec.drafters.jacobi:build_recycle",
                "columns": "mmspec.drafters.columns.jacobi:build_recycle",
            },
            {"window": _window(9)},
        ),
        "stand": RecipeInfo(
            "stochastic n-grams: tokens sampled from the target's own distributions after the same neighbors",
            {"tokens": "mmspec.drafters.jacobi:build_stand"},
            {"window": _window(9)},
        ),
        "retrieval": RecipeInfo(
            "the tokens that followed the longest similar context, in a datastore or in the same row",
            {"tokens": "mmspec.methods.retrieval.drafter:build"},
            {
                "window": _window(9),
                "store": Knob(
                    "auto",
                    "where to search: the datastore and the row's own tokens, or these alone; auto: the datastore too, "
                    "if the model has one",
                    choices=("auto", "datastore", "row"),
                ),
            },
        ),
        "eagle": RecipeInfo(
            "an EAGLE head on the target's features",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": _window(5)},
            runner="eagle",
        ),
        "medusa": RecipeInfo(
            "Medusa heads on the target's last feature, each one position further ahead",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": _window(5)},
            runner="medusa",
        ),
        "block": RecipeInfo(
            "a block head: one pass over mask tokens drafts the whole window (DFlash, DSpark)",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": _window(8)},
            runner="block",
        ),
        "grid": RecipeInfo(
            "a grid head: the features of the row above and the left neighbor draft the next row of an image",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": _window(8)},
            runner="grid",
        ),
        "frame": RecipeInfo(
            "a frame head: multi-token prediction of whole frames, for models with a depth decoder",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": _window(33)},
            runner="frame",
        ),
        "sjd": RecipeInfo(
            "speculative Jacobi decoding: the rejected part of the previous window, resampled",
            _JACOBI_BUILDERS,
            {"window": _window(16), "start": _START, **_MODEL, **_REFRESH},
        ),
        "scd": RecipeInfo(
            "speculative coupled decoding: the rejected part of the previous window, coupled to its old tokens",
            _JACOBI_BUILDERS,
            {
                "window": _window(16),
                "start": _START,
                "coupling": Knob("maximal", "coupling of the old and the new tokens", choices=("maximal", "gumbel")),
                **_MODEL,
                **_REFRESH,
            },
        ),
        "few-steps": RecipeInfo(
            "the target with fewer steps of its diffusion head; for tokens that are vectors",
            {"latents": "mmspec.continuous.draft_model:build_few_steps"},
            {"window": _window(5), "steps": Knob(4, "steps of the diffusion head for drafts", low=1, high=1000)},
        ),
        "tree": RecipeInfo(
            "a tree from a smaller model, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": _branch("3/2/1"), **_MODEL},
            tree=True,
        ),
        "tree-chains": RecipeInfo(
            "several independent drafts from a smaller model, verified as a tree",
            {"tokens": "mmspec.drafters.tree.specinfer:build_independent"},
            {"branch": _branch("4/1/1/1"), **_MODEL},
            tree=True,
        ),
        "spectr": RecipeInfo(
            "several independent drafts from a smaller model, verified by SpecTr's K-SEQ test",
            {"tokens": "mmspec.drafters.tree.specinfer:build_k_seq"},
            {
                "drafts": Knob(4, "number of drafts", low=1, high=64),
                "length": Knob(4, "tokens of each draft", low=1, high=64),
                **_MODEL,
            },
            tree=True,
        ),
        "tree-table": RecipeInfo(
            "a tree from an n-gram table, whose candidates are siblings",
            {"tokens": "mmspec.drafters.tree.ngram_tree:build"},
            {"branch": _branch("3/2/1")},
            tree=True,
            table=True,
        ),
        "tree-dynamic": RecipeInfo(
            "a dynamic tree: the nodes of a smaller model with the largest joint probability (EAGLE-2)",
            {"tokens": "mmspec.drafters.tree.eagle2:build"},
            {
                "window": _nodes(16),
                "depth": Knob(5, _DEPTH, low=1, high=64),
                "top": Knob(4, _TOP, low=1, high=64),
                **_MODEL,
            },
            tree=True,
        ),
        "tree-sampled": RecipeInfo(
            "a dynamic tree sampled node by node from a smaller model, by expected value (DySpec)",
            {"tokens": "mmspec.methods.dyspec.drafter:build"},
            {"window": _nodes(16), "depth": Knob(8, _DEPTH, low=1, high=64), **_MODEL},
            tree=True,
        ),
        "tree-eagle": RecipeInfo(
            "a tree from an EAGLE head, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": _branch("3/2/1")},
            tree=True,
            runner="eagle",
        ),
        "tree-medusa": RecipeInfo(
            "a tree from Medusa heads, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": _branch("3/2/1")},
            tree=True,
            runner="medusa",
        ),
        "tree-block": RecipeInfo(
            "a tree from a block head, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": _branch("3/2/1")},
            tree=True,
            runner="block",
        ),
        "eagle-2": RecipeInfo(
            "a dynamic tree: the nodes of an EAGLE head with the largest joint probability",
            {"tokens": "mmspec.drafters.tree.eagle2:build"},
            {
                "window": _nodes(16),
                "depth": Knob(5, _DEPTH, low=1, high=64),
                "top": Knob(4, _TOP, low=1, high=64),
            },
            tree=True,
            runner="eagle",
        ),
        "masked": RecipeInfo(
            "a masked model fills the whole window in one pass (MAGNeT for MusicGen)",
            {"tokens": "mmspec.methods.masked:build", "columns": "mmspec.methods.masked:build"},
            {"window": _window(8)},
            draft_model=True,
        ),
        "hydra": RecipeInfo(
            "Hydra heads: Medusa heads that also read the drafts before them",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": _window(5)},
            runner="hydra",
        ),
        "tree-hydra": RecipeInfo(
            "a tree from Hydra heads, siblings sampled without replacement",
            {"tokens": "mmspec.drafters.tree.specinfer:build_without_replacement"},
            {"branch": _branch("3/2/1")},
            tree=True,
            runner="hydra",
        ),
        "kangaroo": RecipeInfo(
            "an early exit and a trained adapter after it (Kangaroo)",
            {"tokens": "mmspec.drafters.chain:build"},
            {"window": _window(5)},
            runner="kangaroo",
        ),
        "prompt": RecipeInfo(
            "learned prompt tokens, at which the target predicts the next window in the same call (PPD)",
            {"tokens": "mmspec.methods.prompt.drafter:build"},
            {"branch": _branch("1/1/1", high=63)},
            tree=True,
            runner="prompt",
        ),
        "one-step": RecipeInfo(
            "a one-step generator maps noise to the whole window, or the whole image (Distilled Decoding)",
            {"tokens": "mmspec.drafters.jacobi:build_one_step"},
            {"window": _window(16)},
            runner="one-step",
        ),
    }
)


def ways_to_draft() -> Components[RecipeInfo]:
    """The recipes of mmspec and of plug-ins, by name.

    An entry point in the group `mmspec.recipes` names a `RecipeInfo`. One in the group `mmspec.drafters` names a
    builder and becomes a recipe of the same name with the knob `window`.
    """
    group = "mmspec.drafters"
    own = {**RECIPES, **{name: _of_drafter(info) for name, info in registered(group).items()}}
    others = {name: _of_drafter(info) for name, info in installed(group).items()}
    return Components(own, "mmspec.recipes", RecipeInfo, others)


def _of_drafter(info: Info) -> RecipeInfo:
    """The recipe of a drafter that has no other knobs."""
    return RecipeInfo(info.summary, {"tokens": info.where}, {"window": _window(5)}, draft_model=True)
