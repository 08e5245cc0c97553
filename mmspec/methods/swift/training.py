"""Chooses the layers that a model skips when it drafts for itself, for the recipe `swift`. Nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmspec.decoding.target import EarlyExit, SupportsEarlyExit, skips_layers
from mmspec.errors import ArgumentError
from mmspec.files import replacing_folder
from mmspec.files.folders import replacing_inside
from mmspec.methods.swift.head import SkippedLayers
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.training.acceptance_probe import measure_acceptance
from mmspec.training.curve import SCHEMA_VERSION, CurvePoint
from mmspec.training.objectives import LOSSES, TeacherOutput, feature_target, masked_mean, run_teacher, spread
from mmspec.training.prepared import PreparedPrompts, TrainablePipeline
from mmspec.training.sequences import claim_folder, read_sequences, sequences_folder, write_sequences
from mmspec.training.settings import TrainingSettings


def write_skipped_layers(
    pipe: TrainablePipeline,
    settings: TrainingSettings,
    folder: Path,
    on_chunk: Callable[[int], None] | None = None,
    on_point: Callable[[CurvePoint], None] | None = None,
) -> dict[str, Any]:
    """Chooses the layers on one batch of sequences, and writes the choice and its `training.json`.

    Args:
        pipe: The pipeline of the target.
        settings: The kind is "swift"; at most `batch` sequences are read, and the options of networks are not used.
        folder: Folder of the result; its subfolder `work` holds the sequences.
        on_chunk: Called after each chunk with its number of sequences.
        on_point: Called with the measurement on the held-out prompts.

    Returns:
        The content of `training.json`; `overlap` has the mean acceptance probability by the number of skipped layers.

    Raises:
        ArgumentError: If the target cannot skip layers.
    """
    work = sequences_folder(folder)
    claim_folder(work, settings, pipe)
    count = min(settings.sequences, settings.batch)
    prompts = [settings.prompts[i % len(settings.prompts)] for i in range(count)]
    prepared = settings.prepare(pipe, prompts, 1)
    _check(prepared)
    prepare = partial(settings.prepare, pipe)
    write_sequences(prepare, settings.prompts, count, settings.seed, work, features=False, on_chunk=on_chunk)
    teacher = run_teacher(prepared, read_sequences(work, count, features=False).tokens)
    target = feature_target(prepared)
    assert isinstance(target, SupportsEarlyExit)
    order, overlap = _search(target, teacher)
    chosen = SkippedLayers(target.vocab_size, teacher.features.shape[-1], target.layers)
    chosen.order.copy_(torch.tensor(order))
    recipe = parse("swift").with_knobs(window=settings.depth + 1)
    held_out = settings.prepare(pipe, settings.held_out, recipe.window)
    held_out = replace(held_out, resources=replace(held_out.resources, heads={chosen.kind: chosen}))
    measured = measure_acceptance(held_out, recipe, [settings.seed - 1 - i for i in range(len(settings.held_out))])
    point = CurvePoint(0, None, measured.by_position, measured.tokens_per_call)
    if on_point is not None:
        on_point(point)
    known = {**asdict(settings), "prompts": len(settings.prompts)}
    record = {"schema_version": SCHEMA_VERSION, "settings": known, "seconds": 0.0, "curve": [asdict(point)]}
    record |= {"order": order, "overlap": overlap}
    with replacing_folder(folder) as partial_folder:
        chosen.save_pretrained(partial_folder)
    with replacing_inside(folder, "training.json") as partial_file:
        partial_file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def _check(prepared: PreparedPrompts) -> None:
    target = prepared.make()
    if not (isinstance(target, SupportsEarlyExit) and skips_layers(target) and target.layers > 1):
        raise ArgumentError(f"--kind swift is not possible here: {type(target).__name__} cannot skip layers")


def _search(target: SupportsEarlyExit, teacher: TeacherOutput) -> tuple[list[int], list[float]]:
    """Skips one more layer at a time, the one that costs least; returns the layers and the overlap with each."""
    # The overlap is the sum of min(p, q), the chance that a draft is accepted.
    order, overlap = list[int](), list[float]()
    tokens, mask = teacher.tokens, teacher.mask[:, 1:]
    positions = spread(len(tokens), 1, tokens.shape[1] - 1)
    at = np.zeros(len(tokens), dtype=np.int64)

    def of(skip: list[int]) -> float:
        part = EarlyExit(target.layers, guided=False, skip=tuple(sorted(skip)))
        q = teacher.sampler(Logits(target.forward(tokens[:, :-1], at, part).cond, None), positions)
        return 1 - float(masked_mean(LOSSES["tvd"](teacher.p[:, 1:], q, None, None), mask))

    with torch.inference_mode():
        target.prefill()
        while len(order) < target.layers - 1:
            found = {layer: of([*order, layer]) for layer in range(target.layers) if layer not in order}
            best = max(found, key=lambda layer: found[layer])
            order.append(best)
            overlap.append(found[best])
    return order, overlap
