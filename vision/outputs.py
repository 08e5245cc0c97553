"""What a call of any image pipeline has in common: what it gives, what it refuses, and who watches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.utils import BaseOutput
from torch import Tensor

from mmspec.decoding.batch import Step
from mmspec.decoding.loop import OnStep
from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError

OUTPUT_TYPES = ("pil", "np", "pt", "latent")


@dataclass
class ImageOutput(BaseOutput):
    """What a call gives.

    Attributes:
        images: As `output_type` asks: PIL images, floats [B, H, W, 3] ("np") or [B, 3, H, W] ("pt") in 0..1, or the
            token ids ("latent").
        tokens: int64 [B, N], an image's codes in raster order.
        seeds: The seed of each row.
        stats: What it cost.
    """

    images: Any
    tokens: Tensor
    seeds: list[int]
    stats: Stats


def check_call(num_images_per_prompt: int, output_type: str) -> None:
    """Checks the count of pictures and the output type of a call.

    Raises:
        ArgumentError: For a count below 1 and for an output type nobody knows.
    """
    if not isinstance(num_images_per_prompt, int) or num_images_per_prompt < 1:
        raise ArgumentError(f"num_images_per_prompt={num_images_per_prompt} is not allowed; it must be 1 or more")
    if output_type not in OUTPUT_TYPES:
        raise ArgumentError(f"output_type={output_type!r} is not allowed; use one of {', '.join(OUTPUT_TYPES)}")


def observer(pipe: Any, bar: Any, on_step: OnStep | None, callback: Callable[..., Any] | None) -> OnStep | None:
    """One callback that serves a progress bar, `on_step` and `callback_on_step_end`; None when nobody listens."""
    if bar.disable and on_step is None and callback is None:
        return None

    def observe(step: Step) -> None:
        bar.update(step.committed - bar.n)
        if on_step is not None:
            on_step(step)
        if callback is not None:
            callback(pipe, step.nfe, step.committed, {"tokens": step.tokens})

    return observe


@contextmanager
def memory_for(batch_size: int) -> Iterator[None]:
    """Says in one line that so many rows do not fit into memory, when that is so.

    Raises:
        ArgumentError: When what is done inside needs more memory than there is.
    """
    try:
        yield
    except RuntimeError as error:  # torch has a class of its own for memory on CUDA only
        if "allocate memory" not in str(error) and not isinstance(error, torch.OutOfMemoryError):
            raise
        raise ArgumentError(
            f"{batch_size} images in one call do not fit into memory; ask for fewer at a time"
        ) from error
