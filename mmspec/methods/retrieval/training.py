"""Builds a datastore: sequences that the target generates, for the recipe `retrieval`. Nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mmspec.files import replacing_folder
from mmspec.files.folders import replacing_inside
from mmspec.methods.retrieval.head import Datastore
from mmspec.recipes import parse
from mmspec.training.acceptance_probe import measure_acceptance
from mmspec.training.curve import SCHEMA_VERSION, CurvePoint
from mmspec.training.objectives import feature_target
from mmspec.training.prepared import TrainablePipeline
from mmspec.training.sequences import claim_folder, read_sequences, sequences_folder, write_sequences
from mmspec.training.settings import TrainingSettings


def write_datastore(
    pipe: TrainablePipeline,
    settings: TrainingSettings,
    folder: Path,
    on_chunk: Callable[[int], None] | None = None,
    on_point: Callable[[CurvePoint], None] | None = None,
) -> dict[str, Any]:
    """Generates the sequences that are not on disk yet, and writes the datastore and its `training.json`.

    Args:
        pipe: The pipeline of the target.
        settings: The kind is "retrieval"; steps, batch and the options of networks are not used.
        folder: Folder of the result; its subfolder `work` holds the sequences.
        on_chunk: Called after each chunk with its number of sequences.
        on_point: Called with the measurement on the held-out prompts.

    Returns:
        The content of `training.json`.
    """
    work = sequences_folder(folder)
    claim_folder(work, settings, pipe)
    prepare = partial(settings.prepare, pipe)
    write_sequences(
        prepare, settings.prompts, settings.sequences, settings.seed, work, features=False, on_chunk=on_chunk
    )
    tokens = read_sequences(work, settings.sequences, features=False).tokens
    prepared = settings.prepare(pipe, settings.held_out[:1], 1)
    target = feature_target(prepared)
    with torch.no_grad():
        target.prefill()
        store = Datastore(target.vocab_size, target.features().shape[-1], *tokens.shape)
    if ends := sorted(prepared.layout.eos):
        # A sequence counts up to its end.
        is_end = torch.isin(tokens, torch.tensor(ends)).long()
        tokens = tokens.masked_fill(is_end.cumsum(1) > is_end, -1)
    store.tokens.copy_(tokens)
    recipe = parse("retrieval").with_knobs(window=settings.depth + 1)
    held_out = settings.prepare(pipe, settings.held_out, recipe.window)
    held_out = replace(held_out, resources=replace(held_out.resources, heads={store.kind: store}))
    measured = measure_acceptance(held_out, recipe, [settings.seed - 1 - i for i in range(len(settings.held_out))])
    point = CurvePoint(0, None, measured.by_position, measured.tokens_per_call)
    if on_point is not None:
        on_point(point)
    known = {**asdict(settings), "prompts": len(settings.prompts)}
    record = {"schema_version": SCHEMA_VERSION, "settings": known, "seconds": 0.0, "curve": [asdict(point)]}
    with replacing_folder(folder) as partial_folder:
        store.save_pretrained(partial_folder)
    with replacing_inside(folder, "training.json") as partial_file:
        partial_file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record
