"""`mmspec generate`: images or audio from a file of prompts, on one machine or many."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.limited import say_limit
from mmspec.cli.model_options import Codec, Config, DraftModel, DType, Style, Tokenizer, Weights, read_config
from mmspec.cli.options import (
    Device,
    Drafter,
    GuidanceScale,
    Height,
    Json,
    MinP,
    Model,
    NegativePrompt,
    PreviousChunks,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    Width,
    read_recipe,
)
from mmspec.cli.run_progress import EVERY, LogEvery, RunProgress
from mmspec.errors import ArgumentError


def generate(
    prompts: Annotated[
        Path | None,
        typer.Option(
            show_default=False,
            help="A file with a prompt per line, or a JSON object with `prompt` and any of seed, id, recipe, "
            "temperature, top_k, top_p, min_p, typical_p, guidance_scale, negative_prompt, height, width, voice, "
            "condition_on_previous_chunks; - is stdin.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", show_default=False, help="The folder; an existing one is continued."),
    ] = None,
    model: Model = "shapes",
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="Samples per prompt.")] = 1,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            show_default="that of torchrun or Slurm",
            help="Generate every N-th sample from the I-th, I from 0; processes of torchrun and Slurm share them.",
        ),
    ] = None,
    format: Annotated[
        str, typer.Option(help="files (PNG or WAV), webdataset (tar archives) or parquet (needs pyarrow).")
    ] = "files",
    pack: Annotated[int, typer.Option(min=1, help="Samples of an archive.")] = 1000,
    batch: Annotated[int, typer.Option(min=1, help="Samples per call.")] = 8,
    limit: Annotated[
        int | None, typer.Option(min=1, show_default="all", help="Number of prompts to use, from the first.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(show_default="the model's", help="A name from `mmspec ls recipes`, with knobs: scd:window=32."),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**62 - 1, help="With the prompt's text it gives the seed of lines that name none."),
    ] = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    guidance_scale: GuidanceScale = None,
    negative_prompt: NegativePrompt = None,
    height: Height = None,
    width: Width = None,
    voice: Annotated[str | None, typer.Option(show_default="the model's", help="One of the model's voices.")] = None,
    condition_on_previous_chunks: PreviousChunks = False,
    drafter: Drafter = None,
    tokenizer: Tokenizer = None,
    codec: Codec = None,
    style: Style = None,
    config: Config = None,
    draft_model: DraftModel = None,
    dtype: Weights = DType.auto,
    device: Device = "cpu",
    log_every: LogEvery = EVERY,
    status: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", show_default=False, help="Print how far the runs that write into this folder are, instead."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Generate a sample per prompt into a folder, with a journal, and print what was done.

    A run that was stopped or killed continues where it was: a sample is generated once, under a name that depends on
    its prompt, seed and settings only. Exit status 1 when the model refused a prompt.
    """
    if status is not None:
        print_status(status, as_json)
        return
    if prompts is None or output is None:
        raise ArgumentError(f"{'-o/--output' if output is None else '--prompts'} is missing; see `mmspec generate -h`")
    from mmspec.bulk.folder import RunIdentity, check_output, open_shard
    from mmspec.bulk.requests import SampleSettings, read_requests
    from mmspec.bulk.stores import check_format, open_store
    from mmspec.environment.distributed import Shard, launched_shard, local_device, read_shard

    if tokenizer is not None and codec is not None:
        raise ArgumentError("--tokenizer and --codec name the same file; leave one of them out")
    check_format(format)
    chosen = None if recipe is None else str(read_recipe(recipe, None))
    settings = SampleSettings(
        chosen, temperature, top_k, top_p, guidance_scale, negative_prompt, height, width, voice, min_p, typical_p,
        condition_on_previous_chunks or None,
    )  # fmt: skip
    options = read_config(config, style=style, draft_model=draft_model)
    mine = (Shard() if shard is None else read_shard(shard)).split(launched_shard())
    check_output(output)
    said = partial(say_limit, limit)
    requests = mine.of(read_requests(prompts, settings, seed=seed, number=number, limit=limit, on_lines=said))

    from mmspec.bulk.run import generate_missing
    from mmspec.cli.pipelines import load_generator
    from mmspec.files.fingerprint import fingerprint

    pipe = load_generator(model, local_device(device), drafter, tokenizer or codec, options, dtype)
    identity = RunIdentity(model, fingerprint(pipe), format)
    with open_shard(output, mine, identity) as folder:
        store = open_store(format, folder, identity.fingerprint, pack)
        with _counted(len(requests), as_json, log_every) as on_samples:
            result = generate_missing(
                pipe,
                requests,
                folder,
                store,
                batch_size=batch,
                fingerprint=identity.fingerprint,
                on_samples=on_samples,
            )
    part = f", shard {mine}" if mine.count > 1 else ""
    if as_json:
        record = {"output": str(output), "shard": [mine.index, mine.count], "samples": len(requests)}
        record |= {"finished_before": result.finished, "generated": result.generated, "failed": result.failed}
        print(json.dumps(record | {"model": model, "fingerprint": identity.fingerprint, "format": format}))
    else:
        print(f"{output}: {len(requests)} samples{part}: {result.generated} generated, {result.finished} before")
    if result.failed:
        print(
            f"mmspec: the model refused {result.failed} prompts; see '{folder.failures.path}'",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def print_status(output: Path, as_json: bool) -> None:
    """Prints how far the processes are that generate into a folder."""
    from mmspec.bulk.status import read_status, table

    found = read_status(output)
    if not as_json:
        print(table(found))
        return
    shards = [
        asdict(one) | {"shard": [one.shard.index, one.shard.count], "seconds_left": one.seconds_left} for one in found
    ]
    print(json.dumps({"output": str(output), "shards": shards}))


@contextmanager
def _counted(total: int, quiet: bool, every: float) -> Iterator[Callable[[int], None]]:
    """Yields a callback that counts samples on stderr; its first count is that of samples of earlier runs."""
    progress: RunProgress | None = None

    def on_samples(count: int) -> None:
        nonlocal progress
        if progress is None:
            progress = stack.enter_context(RunProgress(total, "samples", quiet=quiet, every=every, done=count))
        else:
            progress.update(count)

    with ExitStack() as stack:
        yield on_samples
