"""`mmspec export-drafter`: a trained drafter in the format of `speculators`, which vLLM runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.output_paths import OPTION, read_output
from mmspec.errors import ArgumentError
from mmspec.files import check_writable, replacing_folder
from mmspec.files.documents import read_object


def export_drafter(
    drafter: Annotated[Path, typer.Argument(metavar="DRAFTER", help="A folder written by `mmspec train-drafter`.")],
    verifier: Annotated[
        Path, typer.Option(help="The model that the drafter is for: a folder with its config.json.", metavar="FOLDER")
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", parser=read_output, metavar="FOLDER", help="The folder; it must not exist."),
    ],
    verifier_name: Annotated[
        str | None, typer.Option(help="Path or Hub id of the model to write down.", show_default="the folder")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Tokens to draft by default.", show_default="4, or a block")
    ] = None,
) -> None:
    """Write an EAGLE-3 or block drafter in the format of `speculators`, and print the folder.

    vLLM runs it with `speculative_config={"model": FOLDER}`. EAGLE heads of the first kind and Medusa heads are not
    part of the format.
    """
    if output.exists() or output.is_symlink():
        raise ArgumentError(f"{OPTION}: '{output}' already exists; name a new folder")
    check_writable(output, OPTION)
    for name, folder in (("DRAFTER", drafter), ("--verifier", verifier)):
        if not (folder / "config.json").is_file():
            raise ArgumentError(f"{name}: '{folder}' is not a folder with a config.json")
    config = read_object(verifier / "config.json")
    text = config.get("text_config", config)
    layers = text.get("num_hidden_layers") if isinstance(text, dict) else None
    if not isinstance(layers, int):
        raise ArgumentError(f"--verifier: '{verifier}' does not state num_hidden_layers")

    from mmspec.heads.checkpoint import load_head
    from mmspec.heads.eagle3 import Eagle3Head
    from mmspec.heads.speculators import SpeculatorsHead, write_speculators

    head = load_head(drafter)
    if not isinstance(head, Eagle3Head | SpeculatorsHead):
        raise ArgumentError(
            f"DRAFTER: '{drafter}' is a {type(head).__name__}, which is not part of the format; train one with `mmspec "
            "train-drafter --kind eagle3` or `--kind block`"
        )
    with replacing_folder(output) as partial:
        write_speculators(
            head, partial, verifier_name or str(verifier), config.get("architectures") or [], layers, tokens
        )
    print(output)
