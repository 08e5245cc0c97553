"""What a recipe says of its way of drafting, and the knobs that several recipes have.

This module does not import torch, so that a command can check a recipe before it loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmspec.errors import ArgumentError
from mmspec.knobs import BY_MODEL, Branching, Knob

# Of the knobs of Jacobi recipes: the values that the core has, besides the networks of drafters.
START_VALUES = ("auto", "random", "left", "up", "table")
REFRESH_VALUES = ("none",)


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
        tree: Whether it drafts trees; the builders then return a `mmspec.decoding.trees.TreeDrafter`.
        runner: The network that drafts are sampled from: "model", or the kind of a head, such as "eagle".
        table: Whether it drafts from the model's n-gram table.
        draft_model: Whether its builder may use the model's draft model. Recipes with the knob `layers` tell by their
            knobs.
        prompts: Whether the target reads as many prompt tokens after every node of a tree as its drafts are deep.
        toy: Makes the model of `DraftResources.models` for `mmspec check`, from vocabulary size, layout and seed:
            "module:function"; "" for a recipe without such a model.
    """

    summary: str
    builders: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    tree: bool = False
    runner: str = "model"
    table: bool = False
    draft_model: bool = False
    prompts: bool = False
    toy: str = ""

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


@dataclass(frozen=True)
class Choice:
    """A value of the knob `start` or `refresh` of Jacobi recipes, from outside the core.

    Attributes:
        summary: One line.
        builders: The function that builds it, or "module:function", by the kind of token. It takes a
            `mmspec.decoding.resources.DraftingContext`. For `start` it returns a
            `mmspec.decoding.drafter.ContinuationDrafter`, for `refresh` a `mmspec.drafters.jacobi.CouplesToLayers`.
        learns: Whether it learns from all slots of a window, rejected ones too; see `mmspec.drafters.coupling`.
        knobs: Knobs that recipes have for this value alone.
        uses: Knobs of the recipes that it reads, with what they mean here.
    """

    summary: str
    builders: Mapping[str, str | Callable[[Any], Any]]
    learns: bool = False
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    uses: Mapping[str, str] = field(default_factory=dict)


def window_knob(default: int) -> Knob:
    """The knob `window` of chains."""
    return Knob(
        default,
        "tokens in one target call, the last accepted one included; auto: the fastest, by measurement (a seed then "
        "gives other tokens of the same distribution in another run)",
        low=2,
        high=1024,
        choices=("auto",),
    )


def model_window_knob() -> Knob:
    """The knob `window` of drafts that are reused: the wider it is, the better they are, and the more a call costs."""
    knob = window_knob(16)
    summary = f"{knob.summary}; {BY_MODEL}: by device, dtype and size of the model"
    return replace(knob, default=BY_MODEL, summary=summary, choices=(BY_MODEL, *knob.choices))


def nodes_knob(default: int) -> Knob:
    """The knob `window` of trees whose shape is dynamic."""
    return Knob(default, "nodes in one target call, the last accepted token included", low=2, high=1024)


def branch_knob(default: str, high: int = 1023) -> Branching:
    """The knob `branch` of trees of a fixed shape."""
    return Branching(
        default,
        "children of a node at each depth; auto: the shape with the most tokens per second, by measurement (a seed "
        "then gives other tokens of the same distribution in another run)",
        high=high,
        choices=("auto",),
    )


def recent_knob(default: int, low: int) -> Knob:
    """The knob `recent` of drafts that attend to a part of the cache."""
    every = "" if low else "; 0: all"
    return Knob(default, f"last tokens that a draft attends to besides the prompt{every}", low=low, high=1_000_000)


GUIDANCE = Knob(1.0, "guidance scale of the drafts; 1 turns guidance off and halves the work", low=0.0, high=1e4)
MODEL = {
    "layers": Knob(0, "number of the target's first layers to draft with; 0: the draft model", low=0, high=1000),
    "guidance": GUIDANCE,
}
DEPTH = "length of the longest path of drafts"
TOP = "children of a node, and nodes that get children at each depth"
