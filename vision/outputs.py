"""The parts that all image pipelines share: outputs, checks of arguments, and callbacks."""

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
    """The output of an image pipeline.

    Attributes:
        images: By `output_type`: PIL images ("pil"), floats in 0..1 [B, H, W, 3] ("np") or [B, 3, H, W] ("pt"), or the
            tokens ("latent").
        tokens: The codes of the images in raster order, int64 [B, N]; of models of latents, float32 [B, N, D].
        seeds: The seed of each row.
        stats: Target calls, acceptance and seconds.
    """

    images: Any
    tokens: Tensor
    seeds: list[int]
    stats: Stats


def check_call(num_images_per_prompt: int, output_type: str) -> None:
    """Checks the number of images and the output type of a call.

    Raises:
        ArgumentError: If the number is not an integer of 1 or more, or there is no such output type.
    """
    if not isinstance(num_images_per_prompt, int) or num_images_per_prompt < 1:
        raise ArgumentError(f"num_images_per_prompt={num_images_per_prompt} is not allowed; it must be 1 or more")
    if output_type not in OUTPUT_TYPES:
        raise ArgumentError(f"output_type={output_type!r} is not allowed; use one of {', '.join(OUTPUT_TYPES)}")


def observer(pipe: Any, bar: Any, on_step: OnStep | None, callback: Callable[..., Any] | None) -> OnStep | None:
    """A callback that updates a progress bar and calls `on_step` and `callback_on_step_end`; None if there are none.

    Args:
        pipe: The pipeline, which `callback_on_step_end` gets.
        bar: The progress bar; it counts the tokens of all rows.
        on_step: Called after every target call, or None.
        callback: In the form of diffusers, `(pipe, target calls, tokens so far, {"tokens": ...})`.
    """
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
    """Turns an out-of-memory error of the block into one line that names the batch size.

    Raises:
        ArgumentError: If the block runs out of memory.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is raised on CUDA only
        if "allocate memory" not in str(error) and not isinstance(error, torch.OutOfMemoryError):
            raise
        raise ArgumentError(
            f"{batch_size} images in one call do not fit into memory; generate fewer per call"
        ) from error
