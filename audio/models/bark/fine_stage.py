"""Bark's third stage: six further codebooks of EnCodec, each predicted for all frames of a window at once."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def generate_fine(
    model: Any,
    coarse: Tensor,
    settings: Any,
    codebook_size: int,
    temperature: float,
    seed: int,
    history: Tensor | None = None,
) -> Tensor:
    """All codes of one row.

    `BarkFineModel.generate` samples from torch's global generator, which other threads share; this does the same from a
    generator of its own.

    Args:
        model: A `BarkFineModel`.
        coarse: int64 [F, n], the codes of the first codebooks.
        settings: A `BarkFineGenerationConfig`.
        codebook_size: V; the id V is padding.
        temperature: 0 takes the most likely codes.
        seed: Of the samples.
        history: int64 [H, codebooks], frames of a voice to continue, or None.

    Returns:
        int64 [F, codebooks].
    """
    generator = torch.Generator(model.device).manual_seed(seed % 2**63)
    given, codebooks = coarse.shape[1], int(settings.n_fine_codebooks)
    room, overlap = int(settings.max_fine_input_length), int(settings.max_fine_history_length)
    frames = F.pad(coarse, (0, codebooks - given), value=codebook_size)
    before = 0
    if history is not None:
        history = history[-overlap:].to(frames)
        before, frames = len(history), torch.cat([history, frames])
    padding = max(room - len(frames), 0)  # the model reads whole windows: it is not causal
    frames = F.pad(frames, (0, 0, 0, padding), value=codebook_size)
    for window in range(max(math.ceil((len(coarse) - (room - before)) / overlap), 0) + 1):
        start = min(window * overlap, len(frames) - room)
        first = min(before + window * overlap, len(frames) - overlap) - start  # of the frames to predict
        for book in range(given, codebooks):
            view = frames[start : start + room]
            logits = model(book, view[None]).logits[0, first:, :codebook_size].float()
            if temperature == 0:
                view[first:, book] = logits.argmax(-1)
            else:
                probs = (logits / temperature).softmax(-1)
                view[first:, book] = torch.multinomial(probs, 1, generator=generator)[:, 0]
    return frames[before : before + len(coarse)]
