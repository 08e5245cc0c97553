"""`from_pretrained` of the image and video pipelines: what a folder says may not choose the code that runs."""

from __future__ import annotations

from os.path import isdir
from pathlib import Path
from typing import Any, Self

from diffusers import DiffusionPipeline

from mmspec.files.inputs import check_files
from mmspec.hf.folder import check_part


class FolderPipeline(DiffusionPipeline):
    """A pipeline whose `from_pretrained` checks the files before diffusers and transformers read them.

    The components themselves are those that `model_index.json` names, of any library; `mmspec.load` takes those that
    it knows.
    """

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Self:
        """The pipeline in a folder or a repository of the Hub.

        Args:
            pretrained_model_name_or_path: The folder, or the id.
            **kwargs: Those of `DiffusionPipeline.from_pretrained`; components that are given are not read.

        Raises:
            ArgumentError: If there is a device, FIFO or socket among the files, or one is too large.
            ModelError: If the config.json of a component chooses code, or names weights elsewhere.
        """
        where = str(pretrained_model_name_or_path)
        folder = Path(where if isdir(where) else cls.download(where, **kwargs))
        check_files(folder, f"pretrained_model_name_or_path={where!r}")
        for part in sorted(folder.iterdir()):
            if part.is_dir() and part.name not in kwargs:
                check_part(part, f"{part.name} {str(part)!r}")
        pipe: Self = super().from_pretrained(folder, **kwargs)
        return pipe
