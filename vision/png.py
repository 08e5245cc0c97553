"""PNG files with the settings of their generation."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from mmspec import __version__
from mmspec.files import replacing


def write_png(image: Image.Image, path: Path, notes: Mapping[str, str]) -> None:
    """Writes `image` to `path` atomically.

    Args:
        image: The image.
        path: The file.
        notes: Text chunks of the file, in any language; a chunk `versions` is added.

    Raises:
        ArgumentError: If the file cannot be written.
    """
    chunks = PngInfo()
    for key, text in {**notes, "versions": f"mmspec {__version__}, torch {version('torch')}"}.items():
        chunks.add_text(key, text)
    with replacing(path) as partial:
        image.save(partial, format="PNG", pnginfo=chunks)
