"""`mmspec convert`: from original checkpoint files to a pipeline folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.pipelines import disable_loading_bars
from mmspec.errors import ArgumentError


def convert(
    model: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The transformer's file, a folder, or a Hub id.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write; it must not exist.")],
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
    if output.exists():
        raise ArgumentError(f"-o/--output: '{output}' already exists; name a new folder")
    if not output.parent.is_dir():
        raise ArgumentError(f"-o/--output: cannot write '{output}': the folder '{output.parent}' does not exist")
    given: dict[str, Any] | None = None
    if config is not None:
        try:
            given = json.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArgumentError(f"--config: cannot read '{config}': {error}") from error

    import mmspec

    disable_loading_bars()
    pipe = mmspec.load(model, tokenizer=tokenizer, config=given)
    partial = output.with_name(f".mmspec-{os.getpid()}.part")
    try:
        pipe.save_pretrained(partial)
        partial.rename(output)
    except OSError as error:
        raise ArgumentError(f"-o/--output: cannot write '{output}': {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(output)
