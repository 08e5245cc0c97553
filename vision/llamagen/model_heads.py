"""The draft heads of a model, by kind."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmspec.heads.head import Head
    from mmspec.vision.llamagen.transformer import LlamaGenTransformer


class ModelHeads(MutableMapping[str, "Head"]):
    """The draft heads of a model by kind, on its device and in its dtype; those in a folder are read when first used.

    Args:
        model: The target.
        folder: The folder of a pipeline, whose heads `mmspec.heads.checkpoint.save_heads` has written.
    """

    def __init__(self, model: LlamaGenTransformer, folder: Path | None = None) -> None:
        self._model = model
        saved = () if folder is None else sorted(folder.glob("drafters/*/config.json"))
        self._heads: dict[str, Head | Path] = {file.parent.name: file.parent for file in saved}

    def __getitem__(self, kind: str) -> Head:
        found = self._heads[kind]
        if isinstance(found, Path):
            from mmspec.heads.checkpoint import load_head  # all kinds of heads

            self._heads[kind] = found = load_head(found)
        return found.to(self._model.device, self._model.dtype)  # weights may be packed into integers

    def __setitem__(self, kind: str, head: Head) -> None:
        self._heads[kind] = head

    def __delitem__(self, kind: str) -> None:
        del self._heads[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._heads)

    def __len__(self) -> int:
        return len(self._heads)
