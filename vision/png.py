"""PNG files that say how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from mmspec import __version__
from mmspec.files import replacing


def write_png(picture: Image.Image, path: Path, notes: Mapping[str, str]) -> None:
    """Write `image` to `path`, whole or not at all.

    Args:
        notes: Become text chunks, in any language; a chunk `versions` is added.

    Raises:
        ArgumentError: When the file cannot be written.
    """
    chunks = PngInfo()
    for key, text in {**notes, "versions": f"mmspec {__version__}, torch {version('torch')}"}.items():
        chunks.add_text(key, text)
    with replacing(path) as partial:
        picture.save(partial, format="PNG", pnginfo=chunks)
