"""Options of commands that say how a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from mmspec.errors import ArgumentError, unknown_name

Style = Annotated[
    str | None,
    typer.Option(show_default=False, help="The family of a flat speech model, such as llasa, orpheus or kani."),
]
Codec = Annotated[
    str | None,
    typer.Option(show_default=False, help="The codec of a model that comes without one: a folder or a Hub id."),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(show_default=False, help="The image tokenizer of a model that comes without one: a file or a Hub id."),
]
Config = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", show_default=False, help="An option of the model, as in `mmspec.load`."),
]
DraftModel = Annotated[
    str | None,
    typer.Option(show_default=False, help='A smaller model of the family: a folder, a Hub id, or "pair".'),
]


class DType(StrEnum):
    """Names of dtypes of weights; `auto` is that of the model's files."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


Weights = Annotated[DType, typer.Option("--dtype", help="The dtype of the weights; auto is that of the files.")]


def read_dtype(name: str) -> DType:
    """The dtype of a name, as in a configuration file.

    Raises:
        UnknownNameError: If there is none.
    """
    if name not in list(DType):
        raise unknown_name("dtype", name, list(DType))
    return DType(name)


def read_config(pairs: Sequence[str] | None, **named: str | None) -> dict[str, Any] | None:
    """The argument `config` of `mmspec.load`, or None if nothing is set.

    Args:
        pairs: `name=value`; a value is JSON, or else text.
        **named: Options of the command line that are options of the config, too.

    Raises:
        ArgumentError: For a pair without "=", and for a name that is given twice.
    """
    config: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ArgumentError(f"--config {pair!r} is not allowed; it must be NAME=VALUE, such as frames=500")
        if name in config:
            raise ArgumentError(f"--config {pair!r}: {name!r} is given twice")
        try:
            config[name] = json.loads(value)
        except (ValueError, RecursionError):
            config[name] = value
    return config or None
