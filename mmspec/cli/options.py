"""Options that several commands share."""

from __future__ import annotations

import secrets
import sys
from typing import Annotated, Any

import typer

from mmspec.recipes import Recipe, parse

Model = Annotated[
    str, typer.Option("-m", "--model", help="A name from `mmspec ls models`, a folder, a checkpoint or a Hub id.")
]


def _chosen_seed(seed: int) -> int:
    """A random seed for -1; it is printed, as not every output names it."""
    if seed != -1:
        return seed
    chosen = secrets.randbits(62)
    print(f"mmspec: note: --seed is {chosen}", file=sys.stderr)
    return chosen


Seed = Annotated[
    int,
    typer.Option(
        min=-1, max=2**63 - 1, callback=_chosen_seed, help="Row i of the run uses SEED + i; -1 is a random one."
    ),
]
Temperature = Annotated[
    float | None, typer.Option(min=0, show_default="the model's", help="0 takes the most likely token every time.")
]
TopK = Annotated[
    int | None, typer.Option(min=0, show_default="the model's", help="Keep the K most likely tokens; 0 keeps all.")
]
TopP = Annotated[
    float | None,
    typer.Option(min=0, max=1, show_default="the model's", help="Keep the most likely tokens that make up P."),
]
MinP = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, show_default="the model's", help="Keep tokens at least P times as likely as the likeliest one."
    ),
]
TypicalP = Annotated[
    float | None,
    typer.Option(min=0, max=1, show_default="the model's", help="Keep the most typical tokens that make up P."),
]
GuidanceScale = Annotated[
    float | None, typer.Option(show_default="the model's", help="Classifier-free guidance; 1 and below is none.")
]
Height = Annotated[
    int | None, typer.Option(min=1, show_default="the model's", help="Height in pixels, for models of several sizes.")
]
Width = Annotated[
    int | None, typer.Option(min=1, show_default="the model's", help="Width in pixels, for models of several sizes.")
]
NegativePrompt = Annotated[
    str | None, typer.Option(show_default="the model's", help="What guidance leads away from, for models that take it.")
]
PreviousChunks = Annotated[
    bool,
    typer.Option(
        "--condition-on-previous-chunks",
        help="Let each part of a long text continue the one before it, for models that clone from codes and text.",
    ),
]
Window = Annotated[
    int | None,
    typer.Option(show_default="the recipe's", help="Tokens per target call: the recipe's knob `window`."),
]
Device = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1.")]
Drafter = Annotated[
    str | None, typer.Option(show_default="the model's", help="A trained drafter: a folder or a Hub id.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and no progress.")]


def given(**values: Any) -> dict[str, Any]:
    """The arguments of a call that the user gave, those that are not None: models lack some of the others."""
    return {name: value for name, value in values.items() if value is not None}


def read_recipe(text: str, window: int | None) -> Recipe:
    """The recipe that `text` names, with its knob `window` set unless that is None.

    Raises:
        UnknownNameError: When there is no such recipe.
        ArgumentError: When a knob is unknown, or its value is out of range.
    """
    recipe = parse(text)
    return recipe if window is None else recipe.with_knobs(window=window)
