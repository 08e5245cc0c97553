"""The parts that all image pipelines share: outputs and checks of arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.arguments import check_callback, check_flag, check_integer
from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError
from mmspec.pipeline import Output

MAX_IMAGES = 2**20  # of one prompt in one call, which memory bounds earlier
OUTPUT_TYPES = ("pil", "np", "pt", "latent")


@dataclass(eq=False)
class ImageOutput(Output):
    """The output of an image pipeline.

    Attributes:
        images: By `output_type`: PIL images ("pil"), floats in 0..1 [B, H, W, 3] ("np") or [B, 3, H, W] ("pt"), or the
            tokens ("latent").
        tokens: The codes of the images in raster order, int64 [B, N]; of models of latents, float32 [B, N, D]. After an
            interrupted call, codes that are missing are -1, latents NaN.
        seeds: The seed of each row.
        stats: Target calls, acceptance and seconds.
    """

    images: Any
    tokens: Tensor
    seeds: list[int]
    stats: Stats


def check_call(
    name: str,
    count: int,
    output_type: str,
    on_step: Any,
    callback_on_step_end: Any = None,
    return_dict: bool = True,
    measure_entropy: bool = False,
) -> None:
    """Checks the arguments that the calls of all image and video pipelines have.

    Args:
        name: The name of `count`.
        count: Images or videos per prompt.

    Raises:
        ArgumentError: If the count is not an integer of 1 or more, there is no such output type, a callback is not a
            function, or a flag is neither True nor False.
    """
    check_integer(name, count, 1, MAX_IMAGES)
    check_output_type(output_type)
    check_callback("on_step", on_step)
    check_callback("callback_on_step_end", callback_on_step_end)
    check_flag("return_dict", return_dict)
    check_flag("measure_entropy", measure_entropy)


def check_output_type(output_type: str) -> None:
    """Checks that there is such an output type.

    Raises:
        ArgumentError: If there is none.
    """
    if not isinstance(output_type, str) or output_type not in OUTPUT_TYPES:
        raise ArgumentError(f"output_type={output_type!r} is not allowed; use one of {', '.join(OUTPUT_TYPES)}")


def images_from_pixels(pixels: Tensor, output_type: str) -> Any:
    """Images of an output type other than "latent", as diffusers' `VaeImageProcessor` makes them.

    Args:
        pixels: [B, 3, H, W], in about -1..1.
        output_type: "pil", "np" or "pt"; see `ImageOutput.images`.
    """
    pixels = (pixels * 0.5 + 0.5).clamp(0, 1)
    if output_type == "pt":
        return pixels
    array = pixels.cpu().permute(0, 2, 3, 1).float().numpy()
    if output_type == "np":
        return array
    return [Image.fromarray(each) for each in (array * 255).round().astype("uint8")]


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
