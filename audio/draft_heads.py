"""Draft heads of speech models: prompts to train them with, and folders to read them from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmspec.audio.adapter import (
    MergesVocabularies,
    SpeechAdapter,
    SupportsFrameHeads,
    SupportsHeads,
)
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.target import FrameFeatureTarget, Target
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.checkpoint import check_fits_model, load_head
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.training.frame_teacher import frame_teacher
from mmspec.training.objectives import feature_target
from mmspec.training.prepared import PreparedPrompts


def supports_heads(adapter: SpeechAdapter) -> SupportsHeads:
    """The adapter, if draft heads can be trained for its model.

    Raises:
        ArgumentError: If not.
    """
    if not isinstance(adapter, SupportsHeads):
        raise ArgumentError(f"no drafter can be trained for this model: {type(adapter).__name__} takes no heads")
    return adapter


def training_prompts(
    adapter: SupportsHeads, parts: Sequence[Any], samplings: Sequence[SamplingParams], slack: int
) -> PreparedPrompts:
    """Parts of texts as a batch, ready to be decoded for training.

    Args:
        adapter: The model.
        samplings: Their sampling parameters.
        slack: Number of tokens by which windows may reach past the end of a sequence.

    Raises:
        ArgumentError: If the model decodes in a way that no drafter is trained for.
    """
    recipe = parse("frame" if isinstance(adapter, SupportsFrameHeads) else "scd").with_knobs(window=max(slack, 2))

    def ready() -> PreparedRows:
        found = adapter.prepare_rows(parts, recipe, samplings)
        if not isinstance(found, PreparedRows):
            raise ArgumentError(f"no drafter can be trained for this model: its rows are {type(found).__name__}")
        return found

    first = ready()
    embedding = adapter.embedding() if isinstance(adapter, MergesVocabularies) else None
    return PreparedPrompts(lambda: ready().target, first.layout, first.samplings, first.resources, embedding)


def add_head(adapter: SupportsHeads, folder: str | Path, prepared: PreparedPrompts) -> None:
    """Adds a draft head to a model; it replaces one of the same kind.

    Args:
        adapter: The model.
        folder: Written by `mmspec train-drafter`.
        prepared: Any batch of the model, whose features tell whether the head fits.

    Raises:
        ModelError: If the folder contains no head, or one for another model.
    """
    merged = adapter.merged_vocabulary() if isinstance(adapter, MergesVocabularies) else None
    head = load_head(folder, prepared.embedding, merged)
    with torch.no_grad():
        target, width = _features(adapter, prepared)
    if isinstance(target, FrameFeatureTarget):
        check_fits_model(folder, "codebooks", head.codebooks, target.frame_size)
    elif head.codebooks > 1:
        raise ModelError(f"drafter {str(folder)!r} predicts frames; this model has no depth decoder")
    check_fits_model(folder, "vocab_size", head.vocab_size, target.vocab_size)
    check_fits_model(folder, "hidden_size", head.hidden_size, width)
    adapter.heads[head.kind] = head.to(target.device)


def _features(adapter: SupportsHeads, prepared: PreparedPrompts) -> tuple[Target, int]:
    """A target after its prefill, and the width of its features."""
    if isinstance(adapter, SupportsFrameHeads):
        frames = frame_teacher(prepared)
        frames.prefill()
        return frames, frames.frame_features(np.zeros(len(prepared.samplings), dtype=np.int64)).shape[-1]
    target = feature_target(prepared)
    target.prefill()
    return target, target.features().shape[-1]
