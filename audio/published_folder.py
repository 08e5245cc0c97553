"""A published folder of a model that transformers does not have, and how it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from mmspec.audio.codec import Codec

Model = TypeVar("Model")


@dataclass(frozen=True)
class PublishedFolder:
    """What the functions of `mmspec.audio.load.PUBLISHED` read.

    Attributes:
        folder: The folder.
        processor: A tokenizer, or where it is; None is the one in the folder.
        codec: The codec; None is the one in the folder, for models that are published with it.
        options: The options of `config` that belong to the family, by name.
        draft: The folder of a draft model, or None.
        device: Where to load the models.
        dtype: Their dtype, or "auto" for that of the files. Codecs are in float32.
    """

    folder: Path
    processor: Any
    codec: Codec | None
    options: Mapping[str, Any]
    draft: Path | None
    device: str
    dtype: torch.dtype | str

    def model(self, read: Callable[[Path, str, torch.dtype | str], Model]) -> Model:
        """The model, which `read` reads from a folder."""
        return read(self.folder, self.device, self.dtype)

    def draft_model(self, read: Callable[[Path, str, torch.dtype | str], Model]) -> Model | None:
        """The draft model, if one is given."""
        return None if self.draft is None else read(self.draft, self.device, self.dtype)
