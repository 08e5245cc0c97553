"""The LlamaGen models in the package, which are loaded without diffusers: its import takes longer than an image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import torch

from mmspec.files.documents import read_object
from mmspec.pipeline import ModelPipeline
from mmspec.vision.component import Component
from mmspec.vision.llamagen.components import NGramTokens
from mmspec.vision.llamagen.generation import LlamaGenGenerator
from mmspec.vision.llamagen.model_heads import ModelHeads
from mmspec.vision.llamagen.transformer import LlamaGenTransformer
from mmspec.vision.shapes.fsq_tokenizer import FSQTokenizer

INDEX_NAME = "model_index.json"
DEFAULTS = ("temperature", "top_k", "top_p", "guidance_scale", "recipe")


class EmbeddedLlamaGen(LlamaGenGenerator, ModelPipeline):
    """A generator whose components are modules of torch, from a folder in diffusers' layout.

    `LlamaGenPipeline` reads what its `save_pretrained` writes, and is the same model as a pipeline of diffusers.
    """

    _elsewhere = (
        "saved with save_pretrained and loaded with mmspec.load it is a pipeline of diffusers, with offloading and "
        "transformer.load_lora_adapter"
    )

    @classmethod
    def from_folder(cls, folder: Path, text_encoder: type[Component], device: str, dtype: torch.dtype) -> Self:
        """The generator in a folder.

        Args:
            text_encoder: The class of the text encoder.
            device: Where to put the weights.
            dtype: The type of the weights.
        """
        index = read_object(folder / INDEX_NAME)
        pipe = cls(
            LlamaGenTransformer.from_folder(folder / "transformer", dtype).to(device),
            FSQTokenizer.from_folder(folder / "vqvae", dtype).to(device),
            text_encoder.from_folder(folder / "text_encoder", dtype).to(device),
            None,
            LlamaGenTransformer.from_folder(folder / "draft_transformer", dtype).to(device),
            NGramTokens.from_folder(folder / "table", dtype).to(device),
            {name: index[name] for name in DEFAULTS},
        )
        pipe.heads = ModelHeads(pipe.transformer, folder)
        pipe._index = index
        return pipe

    _index: dict[str, Any]

    @property
    def components(self) -> dict[str, Any]:
        """The modules by name, as of a pipeline of diffusers."""
        names = ("transformer", "vqvae", "text_encoder", "tokenizer", "draft_transformer", "table")
        return {name: getattr(self, name) for name in names}

    def _convert(self, dtype: torch.dtype) -> None:
        for part in self.components.values():
            if part is not None:
                part.to(dtype)

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Writes a folder for `mmspec.load` and `LlamaGenPipeline.from_pretrained`.

        Args:
            save_directory: The folder.
        """
        from mmspec.heads.checkpoint import save_heads

        folder = Path(save_directory)
        index = {**self._index, **self.config}
        for name, part in self.components.items():
            if part is None:
                index[name] = [None, None]
            else:
                part.save_pretrained(folder / name)
        save_heads(self.heads, folder)
        (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
