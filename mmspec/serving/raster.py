"""Images of tokens that arrive one by one, in blocks or in maps."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.errors import ArgumentError

MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}


@dataclass(frozen=True)
class Raster:
    """The grid of what arrives: codes, or blocks of codes.

    Attributes:
        rows: Rows of codes or blocks.
        columns: Codes or blocks per row.
        width: Of the image in pixels.
        height: Of the image in pixels.
    """

    rows: int
    columns: int
    width: int
    height: int

    @property
    def size(self) -> str:
        """Width and height as OpenAI's API writes them."""
        return f"{self.width}x{self.height}"


def size_of(text: str | None) -> tuple[int, int] | None:
    """Height and width of a parameter `size`, such as "512x512"; None for the model's default."""
    if text in (None, "auto"):
        return None
    width, _, height = str(text).partition("x")
    return int(height), int(width)


def check_served(pipe: Any, name: str) -> None:
    """Checks that a server can show the images of a pipeline.

    Raises:
        ArgumentError: If it cannot.
    """
    from mmspec.vision.hf.pipeline import TransformersPipeline
    from mmspec.vision.llamagen.generation import LlamaGenGenerator

    if not isinstance(pipe, (LlamaGenGenerator, TransformersPipeline)) and not hasattr(pipe, "preview"):
        raise ArgumentError(
            f"model {name!r} cannot be served; `mmspec serve` takes speech and image models, and {type(pipe).__name__} "
            "has no `preview` of images"
        )


def takes_size(pipe: Any) -> bool:
    """Whether an image model has images of several sizes."""
    return not hasattr(pipe, "transformer") and not hasattr(pipe, "preview")


def raster_of(pipe: Any, size: tuple[int, int] | None = None) -> Raster:
    """The grid of a pipeline's images.

    Args:
        size: Height and width in pixels; None is the model's default, for which an image without codes is decoded.

    Raises:
        ArgumentError: If the model has no images of this size.
    """
    if hasattr(pipe, "preview"):
        image = pipe.preview(torch.zeros(0, dtype=torch.int64))
        rows, columns = pipe.grid
        return Raster(rows, columns, image.width, image.height)
    transformer = getattr(pipe, "transformer", None)
    if transformer is not None:
        rows = columns = transformer.config.grid_size
    else:
        from mmspec.vision.hf.image_adapter import Components
        from mmspec.vision.hf.registry import image_adapter_of

        adapter = image_adapter_of(pipe.model, Components(pipe.processor, pipe.vqvae, pipe.config.layout))
        rows, columns = adapter.grid(*(size or (None, None)))
    if size is None or transformer is not None:
        (image,) = pipe.decode(torch.full((1, rows * columns), -1))
        size = image.height, image.width
    return Raster(rows, columns, size[1], size[0])


def encoded_image(
    pipe: Any, codes: Tensor, size: tuple[int, int] | None, format: str, quality: int | None = None
) -> str:
    """An image of the codes so far, in base64.

    Args:
        codes: int64 [n] in raster order, blocks int64 [n, K], or latents [n, D]; the pixels of missing ones are grey.
        size: Height and width in pixels, if the request sets them.
        format: A key of `MEDIA_TYPES`.
        quality: Of a JPEG or WebP file, 0 to 100; None is Pillow's.
    """
    from mmspec.vision.image_stream import preview_of

    return base64.b64encode(encode(preview_of(pipe, codes, size), format, quality)).decode()


def encode(image: Image.Image, format: str, quality: int | None = None) -> bytes:
    """An image file."""
    file = io.BytesIO()
    image.save(file, format, **({} if quality is None else {"quality": quality}))
    return file.getvalue()
