"""`mmspec train-drafter`: trains a drafter on sequences that its target generates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.builtin_prompts import builtin_prompts
from mmspec.cli.model_options import Codec, Config, DType, Style, read_config
from mmspec.cli.options import Device, Drafter, Json, Model
from mmspec.cli.output_paths import OPTION, check_folder, read_output
from mmspec.cli.pipelines import load_audio_pipeline, load_pipeline, without_bars
from mmspec.cli.run_progress import EVERY, LogEvery, RunProgress
from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError, unknown_name
from mmspec.files.inputs import open_regular
from mmspec.methods.trained import TRAINED

if TYPE_CHECKING:
    from mmspec.training.curve import CurvePoint

KINDS = ("eagle", "eagle3", "small", *TRAINED)
LOSSES = ("kl", "tvd", "tvd++", "lk", "smooth-l1+ce")
ROTARY = ("auto", "1d")


def train_drafter(
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            parser=read_output,
            metavar="FOLDER",
            help="The drafter's folder; an unfinished training with the same options in it is continued.",
        ),
    ],
    model: Model = "shapes",
    kind: Annotated[
        str,
        typer.Option(
            help="eagle: a layer on the model's features; eagle3: one on features of three layers; medusa: heads on "
            "the features; hydra: heads that also read the drafts before them; block: a whole block in one pass; grid: "
            "the next row of an image; kangaroo: an adapter after an early exit; prompt: embeddings at which the model "
            "predicts later tokens; one-step: a generator from noise in one pass; outer: "
            "what inner layers do to a change, for refresh=outer; frame: whole frames of codes, for "
            "speech models with a depth decoder; small: a "
            "smaller model; retrieval: a datastore of the model's sequences; swift: which of its layers drafts skip."
        ),
    ] = "eagle",
    loss: Annotated[
        str,
        typer.Option(
            help="kl, tvd (the rejection probability), tvd++ (its gradient normalized by position), lk (the expected "
            "number of accepted drafts), or smooth-l1+ce (features too)."
        ),
    ] = "kl",
    prompts: Annotated[str, typer.Option(help="A text file with a prompt per line, or `builtin`.")] = "builtin",
    held_out: Annotated[int, typer.Option(min=1, help="Prompts, the last ones, that only measure acceptance.")] = 8,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences to generate from the prompts and train on.")] = 512,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 2000,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per step, over all processes.")] = 8,
    lr: Annotated[float, typer.Option(min=1e-7, max=1.0, help="Peak learning rate of AdamW.")] = 1e-3,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Tokens ahead: unrolled drafts (eagle), heads (medusa, hydra), prompt tokens, or the block or row; 4, "
            "or 15 for these two. Frames ahead of a frame head; 2.",
        ),
    ] = None,
    hidden: Annotated[
        int,
        typer.Option(min=0, max=2**20, help="Width of a head's feed-forward layers; 0 is 8/3 of the features' width."),
    ] = 0,
    layers: Annotated[
        int, typer.Option(min=1, max=16, help="Layers of a block head; of the model, before a Kangaroo adapter.")
    ] = 2,
    markov_rank: Annotated[
        int,
        typer.Option(
            min=0, max=4096, help="Rank of a block head's bias by the token before, which joins its drafts; 0: none."
        ),
    ] = 64,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.05, max=10.0, help="Temperature that the drafter will be used at; default: the model's."),
    ] = None,
    guidance_scale: Annotated[
        float | None, typer.Option(min=0.0, max=100.0, help="Guidance that it will be used at; default: the model's.")
    ] = None,
    rotary: Annotated[
        str,
        typer.Option(
            help="auto: a 2-D rotary embedding where the tokens of an image fill a square; 1d: never, as `mmspec "
            "export-drafter` requires."
        ),
    ] = "auto",
    mask_token: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Token of the model that a block head reads as mask, as `mmspec export-drafter` requires; the head "
            "then keeps the model's embedding.",
            show_default="an embedding of its own",
        ),
    ] = None,
    keep_features: Annotated[
        bool,
        typer.Option(help="Cache the model's features on disk; otherwise each step computes them."),
    ] = True,
    codec: Codec = None,
    style: Style = None,
    config: Config = None,
    voice_file: Annotated[
        Path | None,
        typer.Option(show_default=False, help="An audio file with a voice, for speech models that accept one."),
    ] = None,
    voice_text: Annotated[
        str | None, typer.Option(show_default=False, help="The transcript of the voice file.")
    ] = None,
    drafter: Drafter = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="DRAFTER",
            help="A trained small model of the same size: a small model then learns where it lags behind that one.",
        ),
    ] = None,
    select: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1.0, help="The share of positions to learn from with --reference.", show_default="0.4"
        ),
    ] = None,
    sequences_of: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Another drafter of the model, whose sequences are taken over instead of generated again.",
        ),
    ] = None,
    validate_every: Annotated[int, typer.Option(min=1, help="Steps between measurements of acceptance.")] = 500,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 100,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Seed of the sequences, the weights and their order.")
    ] = 0,
    device: Device = "cpu",
    log_every: LogEvery = EVERY,
    as_json: Json = False,
) -> None:
    """Train a drafter on the model's own sequences, and print its folder.

    `mmspec image --drafter FOLDER`, or in Python `mmspec.load(model, drafter=FOLDER)`, uses the folder. Of the steps at
    which acceptance is measured on held-out prompts, it has the drafter of the one with the most tokens per call. Its
    `training.json` has that step, and the curve of the expected acceptance rate of each draft in a window; `work` has
    the sequences and the checkpoint, and may be deleted. The same command continues a training that was stopped. With
    --drafter, a small model starts from the weights of that drafter. Under `accelerate launch` or torchrun, several
    processes share the work.
    """
    for name, value, known in (("kind", kind, KINDS), ("loss", loss, LOSSES), ("rotary", rotary, ROTARY)):
        if value not in known:
            raise unknown_name(name, value, known)
    options = read_config(config, style=style)
    check_folder(output, OPTION, "training.json")

    import torch

    from mmspec.environment.distributed import local_device, process_group
    from mmspec.files.folders import make_folder
    from mmspec.files.locks import locked
    from mmspec.metrics.prompts import read_prompts
    from mmspec.training.kinds import check_loss
    from mmspec.training.sequences import sequences_folder, take_sequences
    from mmspec.training.settings import TrainingSettings
    from mmspec.training.trainer import Trainer, split_prompts

    train_on, measure_on = split_prompts(read_prompts(prompts), held_out)  # before the model is loaded
    settings = TrainingSettings(
        kind,
        loss,
        train_on,
        measure_on,
        sequences,
        steps,
        batch,
        lr,
        depth or (TRAINED[kind].depth if kind in TRAINED else 4),
        hidden,
        seed,
        keep_features,
        None if drafter is None else str(drafter),
        layers,
        markov_rank,
        temperature,
        guidance_scale,
        rotary,
        mask_token,
        reference,
        None if reference is None else 0.4 if select is None else select,
        speech_options(codec, options, voice_file, voice_text),
    )
    check_loss(settings)
    with process_group() as processes:
        if batch < processes.count:
            raise ArgumentError(f"--batch: {batch} is less than the number of processes, {processes.count}")
        own_device = local_device(device)
        if codec or options or voice_file:
            of_speech = voice_file, voice_text, options, codec, DType.float32
            pipe = without_bars(load_audio_pipeline(model, own_device, *of_speech), drafter)
        else:
            pipe = load_pipeline(model, own_device, drafter)
        check_trainable(pipe)
        if prompts == "builtin":
            train_on, measure_on = split_prompts(builtin_prompts(model, pipe), held_out)
            settings = replace(settings, prompts=train_on, held_out=measure_on)
        if sequences_of is not None and processes.rank == 0:
            take_sequences(sequences_of, sequences_folder(output), settings, pipe)
        if kind in TRAINED and TRAINED[kind].write:
            record = build(pipe, settings, output, as_json, log_every)
            print(json.dumps({"output": str(output), **record}) if as_json else output)
            return
        trainer = Trainer(pipe, settings, output, processes.rank, processes.count)
        lead = processes.rank == 0
        output.mkdir(parents=True, exist_ok=True)
        work = make_folder(output, "work")
        # The processes of one training share the folder. One of them prints progress, and none does with --json.
        with (
            locked(work, OPTION) if lead else nullcontext(),
            Bars(as_json or not lead, sequences, steps, trainer.step, log_every) as show,
        ):
            if processes.count > 1:
                torch.distributed.barrier()  # all processes write after the leftovers of an earlier run are gone
            own = trainer.collect(show.chunk)
            show.collected()
            trainer.train(own, validate_every, save_every, show.step, show.point)
            show.kept(trainer.best)
    if not lead:
        return
    if as_json:
        print(json.dumps({"output": str(output), **trainer.record()}))
        return
    print(output)


def speech_options(
    codec: str | None, options: Mapping[str, Any] | None, voice_file: Path | None, voice_text: str | None
) -> dict[str, Any] | None:
    """The `TrainingSettings.speech_options` of these options; of the voice's file a hash of its content.

    Raises:
        ArgumentError: If the file cannot be read.
    """
    given: dict[str, Any] = {} if codec is None else {"codec": codec}
    if options:
        given["config"] = dict(options)
    if voice_file is not None:
        try:
            with open_regular(voice_file) as file:
                given["voice_file"] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ArgumentError(f"--voice-file: cannot read '{voice_file}': {error.strerror}") from None
    if voice_text is not None:
        given["voice_text"] = voice_text
    return given or None


def build(pipe: Any, settings: Any, output: Path, quiet: bool, log_every: float) -> dict[str, Any]:
    """Builds a drafter that needs no training, in one process; returns its record."""
    from mmspec.files.folders import make_folder
    from mmspec.files.locks import locked

    write = resolve(TRAINED[settings.kind].where)
    output.mkdir(parents=True, exist_ok=True)
    work = make_folder(output, "work")
    with locked(work, OPTION), Bars(quiet, settings.sequences, 0, 0, log_every) as show:
        return write(pipe, settings, output, show.chunk, show.point)


def check_trainable(pipe: Any) -> None:
    """Checks that a pipeline generates token by token, so that drafters and judges are possible.

    Raises:
        ArgumentError: When it does not.
    """
    if not hasattr(pipe, "prepare"):
        raise ArgumentError(f"--model: {type(pipe).__name__} has no drafts of tokens, so that nothing can be trained")


class Bars:
    """Progress of a training on stderr: that of its sequences and steps, and a line for each measurement."""

    def __init__(self, quiet: bool, sequences: int, steps: int, step: int, log_every: float = EVERY) -> None:
        self._quiet = quiet
        self._made = RunProgress(sequences, "sequences", quiet=quiet, every=log_every)
        self._steps = RunProgress(steps, "steps", quiet=quiet, every=log_every, done=step)

    def chunk(self, count: int) -> None:
        self._made.update(count)

    def collected(self) -> None:
        self._steps.restart()

    def step(self, step: int, loss: float) -> None:
        self._steps.update(note=f"loss {loss:.4f}")

    def point(self, point: CurvePoint) -> None:
        if self._quiet:
            return
        shares = " ".join("-" if share is None else f"{share:.3f}" for share in point.acceptance)
        loss = "" if point.loss is None else f"loss {point.loss:.4f}, "
        line = f"step {point.step}: {loss}acceptance {shares}, {point.tokens_per_call:.2f} tokens per call"
        self._steps.write(line)

    def kept(self, point: CurvePoint) -> None:
        if not self._quiet:
            line = f"kept step {point.step}, the best measured: {point.tokens_per_call:.2f} tokens per call"
            if point.step == 0:
                line += (
                    "; that is the drafter as it was before the training, which has made it no better: give more "
                    "--steps, --sequences or --prompts, or another --lr"
                )
            self._steps.write(line)

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        self._made.close()
        self._steps.close()
