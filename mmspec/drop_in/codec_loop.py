"""A loop of another package that generates codes of speech, with a decoder that `CodecLM` describes."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.drop_in.replacement import Replacement
from mmspec.errors import ArgumentError
from mmspec.hf.generate import choose_recipe
from mmspec.hf.ngram import count_table
from mmspec.recipes import Recipe


class CodecLoop(Replacement):
    """A method of a codec language model; see `mmspec.accelerate`."""

    PACKAGE: ClassVar[str]

    def check_method(self) -> None:
        """Refuses a draft model, and a method that is not the package's own.

        Raises:
            ArgumentError: For one of them.
        """
        if self.settings.draft_model is not None:
            raise ArgumentError(f"draft_model is not possible: a {type(self.owner).__name__} reads voices of its own")
        if self._previous or not self.__wrapped__.__module__.startswith(f"{self.PACKAGE}."):
            raise ArgumentError(f"another package has set {self.NAME}, which mmspec would pass by")

    def rows(
        self,
        model: CodecLM,
        cond: Tensor,
        uncond: Tensor | None,
        layout: Layout,
        settings: CodecLMSettings,
        before: Tensor | None = None,
    ) -> tuple[PreparedRows, Recipe]:
        """One prompt [T, D] that is ready to be decoded, and how; the arguments are those of `CodecLM.target`."""
        given, device = self.settings, model.embed.weight.device
        recipe = choose_recipe(given.recipe, None)
        resources = DraftResources(
            table=count_table(given.table, recipe, layout, 0, model.head.out_features, device),
            heads={head.kind: head.to(device) for head in given.heads},
            adaptive_windows=adaptive_windows_of(model.decoder),
        )
        target = model.target(
            [cond], None if uncond is None else [uncond], layout.length, recipe.window, settings, before
        )
        return PreparedRows(target, layout, [settings.sampling], resources), recipe
