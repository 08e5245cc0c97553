"""A published folder of a model that transformers does not have, and how it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from mmspec.audio.codec import Codec
from mmspec.errors import ArgumentError
from mmspec.files.checkpoint import building, check_depths, load_tensors, read_model_tensors
from mmspec.hf.folder import BUFFERS, read_json

Model = TypeVar("Model")
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class PublishedFolder:
    """What the functions of `mmspec.audio.load.PUBLISHED` read.

    They raise `ArgumentError` for unknown options, values that are not allowed and a codec that is missing, and
    `ModelError` for missing, broken or unsupported files.

    Attributes:
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

    def needed_codec(self, family: str, name: str) -> Codec:
        """The codec, of a family that is published without one.

        Args:
            name: The codec to pass, for the error.

        Raises:
            ArgumentError: If there is none.
        """
        if self.codec is None:
            raise ArgumentError(
                f"{family} comes without a codec; pass one around {name} as config={{'codec': ...}} "
                "(mmspec.audio.codec.Codec)"
            )
        return self.codec

    def draft_model(self, read: Callable[[Path, str, torch.dtype | str], Model]) -> Model | None:
        """The draft model, if one is given."""
        return None if self.draft is None else read(self.draft, self.device, self.dtype)


def read_published(
    folder: Path,
    device: str,
    dtype: torch.dtype | str,
    kind: str,
    build: Callable[[Mapping[str, Any], str], Module],
    renamed: Callable[[str], str] = str,
    unread: tuple[str, ...] = (),
) -> Module:
    """The model in a published folder, in evaluation mode.

    Args:
        folder: Contains `config.json` and the weights, as `.safetensors`.
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the files.
        kind: What the folder should contain, for errors, such as "a MOSS-TTS-Local".
        build: Maps the content of `config.json`, and the folder's name for errors, to the model.
        renamed: Maps the name of a published tensor to that of the model's.
        unread: Prefixes of published names that the model does not need.

    Raises:
        ModelError: If files are missing, damaged or of another model.
    """
    what, found, state = f"model {str(folder)!r}", read_json(folder / "config.json"), read_model_tensors(folder)
    check_depths(what, found, len(state))
    with building(what, kind):
        model = build(found, what)
    own = {name: value for name, value in state.items() if not name.startswith(unread) and not BUFFERS.search(name)}
    used = {renamed(name): value for name, value in own.items()}
    load_tensors(what, used, model, device, dtype)
    return model.requires_grad_(False).eval()
