"""PNG files with the settings of their generation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from mmspec import __version__
from mmspec.files import replacing


def encode_png(image: Image.Image, notes: Mapping[str, str]) -> bytes:
    """The bytes of a PNG file.

    Args:
        notes: Text chunks of the file, in any language; a chunk `versions` is added.
    """
    chunks = PngInfo()
    for key, text in {**notes, "versions": _versions()}.items():
        chunks.add_text(key, text)
    buffer = BytesIO()
    image.save(buffer, format="PNG", pnginfo=chunks)
    return buffer.getvalue()


def write_png(image: Image.Image, path: Path, notes: Mapping[str, str]) -> None:
    """Writes `image` to `path` atomically.

    Args:
        path: The file.

    Raises:
        ArgumentError: If the file cannot be written.
    """
    encoded = encode_png(image, notes)
    with replacing(path) as partial:
        partial.write_bytes(encoded)


@cache
def _versions() -> str:
    return f"mmspec {__version__}, torch {version('torch')}"  # torch's takes milliseconds to look up
