"""Images of any kind as 8-bit RGB, of files, of Pillow and of arrays."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageSequence
from torch import Tensor

from mmspec import limits
from mmspec.arguments import shown
from mmspec.errors import ArgumentError
from mmspec.files.documents import one_line

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
# What Pillow reads, moving or not.
MOVING_SUFFIXES = (*SUFFIXES, ".gif")
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# How to turn an image upright, by its orientation in Exif.
_TURNS = dict(
    enumerate(
        (
            Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM,
            Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE,
            Image.Transpose.ROTATE_90,
        ),
        start=2,
    )
)  # fmt: skip
# A broken PNG is a SyntaxError.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Opens an image whose header has been checked; its pixels are not decoded yet.

    Raises:
        ArgumentError: If the file cannot be read, there or inside the block, or has more pixels than `limits.PIXELS`.
    """
    if not path.is_file():
        raise ArgumentError(f"{shown(str(path))} is not a readable image (no such file)")
    with _named(shown(str(path))), warnings.catch_warnings():
        # Pillow has two bounds of its own, a warning and an error.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path, formats=_FORMATS) as image:
            limits.PIXELS.check(f"'{path}'", image.width * image.height)
            yield image


def read_image(path: Path) -> NDArray[np.uint8]:
    """An image of a file as uint8 [H, W, 3]; see `to_rgb`.

    Raises:
        ArgumentError: If the file cannot be read, moves, or has more pixels than `limits.PIXELS`.
    """
    with open_image(path) as image:
        if (count := frame_count(image)) > 1:
            raise ArgumentError(f"{shown(str(path))} is not a readable image (it moves, with {count} frames)")
        return np.asarray(to_rgb(image, shown(str(path))))


def frame_count(image: Image.Image) -> int:
    """The frames of a moving image; 1 for others, such as photographs that contain previews of themselves (MPO)."""
    return 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))


def rgb_frames(image: Image.Image, name: str = "image") -> Iterator[tuple[Image.Image, float]]:
    """The frames of an image, see `to_rgb`, and the milliseconds that each stays; 0 if unknown.

    Args:
        image: Moving or not.
        name: What it is called, for messages.

    Raises:
        ArgumentError: As `to_rgb`.
    """
    with _named(name):
        if frame_count(image) == 1:
            yield to_rgb(image, name), 0.0
            return
        for frame in ImageSequence.Iterator(image):
            pixels = to_rgb(frame, name)
            yield pixels, float(frame.info.get("duration", 0))  # known once the frame is decoded


def to_rgb(image: Image.Image, name: str = "image") -> Image.Image:
    """An image of Pillow in RGB with 8 bits, upright.

    Of 16 bits the upper 8 are kept, as Pillow does in colors; an integer image (`I`) has 16 bits, as Pillow writes it.
    Transparency is dropped.

    Args:
        image: Of any mode.
        name: What it is called, for messages.

    Raises:
        ArgumentError: For a mode whose values have no known range, and for an image that cannot be decoded.
    """
    with _named(name):
        try:
            turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
        except Exception:  # damaged notes do not make the pixels unreadable
            turn = None
        found = _eight_bits(image, name)
        return found if turn is None else found.transpose(turn)


def to_unit(pixels: NDArray[Any] | Tensor, name: str) -> NDArray[np.float32]:
    """Pixels of any type as float32 in 0..1: integers of 8 and 16 bits and booleans are divided by their largest.

    Args:
        pixels: Of any shape.
        name: What they are called, for messages.

    Raises:
        ArgumentError: For another type, and for real numbers outside 0..1.
    """
    values: NDArray[Any] = _numpy(pixels)
    if values.dtype in (np.bool_, np.uint8, np.uint16):
        largest = 1 if values.dtype == np.bool_ else np.iinfo(values.dtype).max
        return values.astype(np.float32) / np.float32(largest)
    if values.dtype.kind != "f":
        raise ArgumentError(f"{name} is of {values.dtype}; it must be uint8, uint16, bool, or real numbers in 0..1")
    if values.size and not (values.min() >= -1e-3 and values.max() <= 1 + 1e-3):
        raise ArgumentError(f"{name} has values from {values.min():g} to {values.max():g}; they must be in 0..1")
    return values.astype(np.float32)


def to_frames(pixels: NDArray[Any] | Tensor, name: str) -> NDArray[np.float32]:
    """One image or several as float32 [F, 3, H, W] in 0..1.

    Tensors have their channels before rows and columns and arrays after them, as in diffusers; where only the other
    reading gives 1, 3 or 4 channels, that one holds. Gray is repeated, and transparency is dropped.

    Args:
        pixels: [H, W], [H, W, C], [C, H, W], [F, H, W, C] or [F, C, H, W], of a type of `to_unit`.
        name: What they are called, for messages.

    Raises:
        ArgumentError: For another shape or type, and real numbers outside 0..1.
    """
    values: NDArray[Any] = to_unit(pixels, name)
    shape = list(pixels.shape)
    if values.ndim == 2:
        values = values[None]
    elif values.ndim in (3, 4):
        axes = [-3, -1] if isinstance(pixels, Tensor) else [-1, -3]
        axis = next((axis for axis in axes if shape[axis] in (1, 3, 4)), None)
        values = np.zeros(0) if axis is None else np.moveaxis(values, axis, -3)
    if values.ndim == 3 and values.size:
        values = values[None]
    if values.ndim != 4 or not values.size:
        raise ArgumentError(f"{name} has shape {shape}; it must be [frames, 3, height, width], or [frames, ..., 3]")
    return np.repeat(values, 3, axis=1) if values.shape[1] == 1 else values[:, :3]


def _eight_bits(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "F":
        raise ArgumentError(f"{name} is not a readable image (mode F has no range; convert it to RGB)")
    if image.mode == "I" or image.mode.startswith("I;16"):
        gray = np.asarray(image)
        if gray.min() < 0 or gray.max() > 0xFFFF:
            raise ArgumentError(
                f"{name} is not a readable image (mode I has 16 bits, and its values are {gray.min()} to {gray.max()})"
            )
        return Image.fromarray((gray >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the direct way warns
    return image.convert("RGB")


def _numpy(pixels: NDArray[Any] | Tensor) -> NDArray[Any]:
    if not isinstance(pixels, Tensor):
        return np.asarray(pixels)
    found = pixels.detach().cpu()
    return (found.float() if found.is_floating_point() else found).numpy()  # NumPy has no bfloat16


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Turns errors of Pillow into one that names the image."""
    try:
        yield
    except Image.DecompressionBombError:
        raise ArgumentError(
            f"{name} is not a readable image: it exceeds the {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels of Pillow"
        ) from None
    except ArgumentError:
        raise
    except _BROKEN as error:
        raise ArgumentError(f"{name} is not a readable image ({one_line(error)})") from error
