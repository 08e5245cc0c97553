"""The parts that all image pipelines share: outputs, whole or not, and checks of arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.arguments import check_callback, check_flag, check_integer, shown
from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError
from mmspec.pipeline import Output

MAX_IMAGES = 2**20  # of one prompt in one call, which memory bounds earlier
OUTPUT_TYPES = ("pil", "np", "pt", "latent")
MISSING = -1  # stands for a token that has not been generated, NaN for a latent


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


def complete(tokens: Tensor | Sequence[Tensor], length: int, codes: int) -> Tensor:
    """Codes of whole images, int64 [B, length], with -1 where they are missing.

    Args:
        tokens: int64 [B, n], or one tensor int64 [n_row] per row; each has at most `length` codes.
        length: Codes of an image.
        codes: Number of codes; ids are 0 to codes - 1.

    Raises:
        ArgumentError: If the shape, the dtype or a code is not allowed.
    """
    try:
        rows = list(tokens)
    except TypeError:
        raise ArgumentError(f"tokens={shown(tokens)} is not allowed; give codes int64 [B, n]") from None
    if not rows or not all(isinstance(row, Tensor) and row.ndim == 1 for row in rows):
        raise ArgumentError("tokens has no rows, or rows with more than one axis; give codes int64 [B, n]")
    if any(row.is_floating_point() or row.is_complex() or row.dtype == torch.bool for row in rows):
        raise ArgumentError(f"tokens has dtype {rows[0].dtype}; give codes int64 [B, n]")
    if (longest := max(len(row) for row in rows)) > length:
        raise ArgumentError(f"tokens has rows of {longest} codes; an image of this size has {length}")
    result = torch.full((len(rows), length), MISSING, device=rows[0].device)
    for target, row in zip(result, rows, strict=True):
        target[: len(row)] = row
    if bool(((result < MISSING) | (result >= codes)).any()):
        wrong = result[(result < MISSING) | (result >= codes)][0].item()
        raise ArgumentError(f"tokens has {wrong}, which is not allowed; codes are 0 to {codes - 1}, and -1 if missing")
    return result


def complete_latents(rows: Sequence[Tensor], length: int, dim: int) -> Tensor:
    """Latents of whole images, float32 [B, length, D], with NaN where they are missing at the end.

    Args:
        rows: [n_row, D] per row; empty ones may be of any shape.
        length: Latents of an image.
        dim: D.
    """
    result = torch.full((len(rows), length, dim), torch.nan, device=rows[0].device)
    for target, row in zip(result, rows, strict=True):
        target[: len(row)] = row.reshape(-1, dim)
    return result


def grey_where_missing(images: Tensor, latents: Tensor, grid: tuple[int, int]) -> Tensor:
    """Images [B, 3, H, W] in -1..1, grey where their latents [B, N, D] are NaN.

    Args:
        latents: In raster order.
        grid: Rows and columns of latents.
    """
    known = ~latents.isnan().any(-1).to(images.device)
    if bool(known.all()):
        return images
    return images.masked_fill(~visible(known, grid, (images.shape[2], images.shape[3]))[:, None], 0)


def check_latents(tokens: Tensor, places: int, dim: int) -> None:
    """Checks that tokens are latents of whole images, floats [B, places, dim].

    Raises:
        ArgumentError: If they are not.
    """
    if (
        not isinstance(tokens, Tensor)
        or tokens.ndim != 3
        or tokens.shape[1:] != (places, dim)
        or not tokens.is_floating_point()
    ):
        found = f"{tokens.dtype} {list(tokens.shape)}" if isinstance(tokens, Tensor) else shown(tokens)
        raise ArgumentError(f"tokens is {found}; it must be latents [B, {places}, {dim}], floats")


def visible(known: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The pixels of known tokens, bool [B, H, W].

    Args:
        known: bool [B, h * w], in raster order.
        grid: Rows and columns of tokens, (h, w).
        size: Height and width of the image, (H, W), multiples of the grid's.
    """
    tall, wide = size[0] // grid[0], size[1] // grid[1]
    return known.unflatten(1, grid).repeat_interleave(tall, dim=1).repeat_interleave(wide, dim=2)


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
