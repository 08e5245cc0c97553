"""The options that more than one command takes."""

from __future__ import annotations

from typing import Annotated

import typer

from mmspec.recipes import Recipe, parse

Model = Annotated[str, typer.Option("-m", "--model", help="A name from `mmspec ls models`, or a folder.")]
Seed = Annotated[int, typer.Option(min=0, help="Row i of the run uses SEED + i.")]
Temperature = Annotated[
    float | None, typer.Option(min=0, show_default="the model's", help="0 takes the likeliest token every time.")
]
TopK = Annotated[int | None, typer.Option(min=0, show_default="the model's", help="Keep the K likeliest; 0 keeps all.")]
TopP = Annotated[
    float | None, typer.Option(min=0, max=1, show_default="the model's", help="Keep the likeliest that make up P.")
]
GuidanceScale = Annotated[
    float | None, typer.Option(show_default="the model's", help="Classifier-free guidance; 1 is none.")
]
Window = Annotated[
    int | None,
    typer.Option(show_default="the recipe's", help="Tokens per target call; a knob of the recipe."),
]
Device = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1.")]
Drafter = Annotated[
    str | None, typer.Option(show_default="the model's", help="A trained drafter: a folder, or a Hub id.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and no progress.")]


def read_recipe(text: str, window: int | None) -> Recipe:
    """The recipe that `text` names, with its knob `window` set unless that is None.

    Raises:
        UnknownNameError: When a model, recipe, rule or drafter of that name does not exist.
        ArgumentError: When an argument has a value that is not allowed.
    """
    recipe = parse(text)
    return recipe if window is None else recipe.with_knobs(window=window)
