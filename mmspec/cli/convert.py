"""`mmspec convert`: from original checkpoint files to a pipeline folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.output_paths import OPTION, read_output
from mmspec.cli.pipelines import disable_loading_bars
from mmspec.errors import ArgumentError, ModelError
from mmspec.files import check_writable, replacing_folder
from mmspec.files.documents import read_object


def convert(
    model: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The transformer's file, a folder, or a Hub id.")],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", parser=read_output, metavar="FOLDER", help="The folder; it must not exist."),
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="The tokenizer's file; without it the model generates tokens only.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A JSON file with settings that tensors lack: original argument names, or Chameleon's layout."
        ),
    ] = None,
) -> None:
    """Write a model with its tokenizer as one folder for `mmspec image -m FOLDER`, and print the folder."""
    if output.exists() or output.is_symlink():
        raise ArgumentError(f"{OPTION}: '{output}' already exists; name a new folder")
    check_writable(output, OPTION)
    given: dict[str, Any] | None = None
    if config is not None:
        try:
            given = read_object(config)
        except ModelError as error:
            raise ArgumentError(f"--config: {error}") from error

    import mmspec

    disable_loading_bars()
    pipe = mmspec.load(model, tokenizer=tokenizer, config=given)
    with replacing_folder(output) as partial:
        pipe.save_pretrained(partial)
    print(output)
