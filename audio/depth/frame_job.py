"""A batch of texts whose tokens are frames with a depth decoder, as the speech adapters of such models prepare it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_batch import PreparedFrames, decode_frames
from mmspec.audio.depth.frame_windows import decode_frame_windows, frames_ahead, prepare_frame_windows
from mmspec.batching.request import PreparedBatch
from mmspec.batching.run import Decoded
from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import OnStep
from mmspec.errors import ArgumentError
from mmspec.heads.head import Head
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class FrameJob:
    """A batch to decode; it is a `mmspec.audio.adapter.PreparableJob`.

    Attributes:
        name: The name of the model in errors.
        model: The model, whose window controllers runs share.
        codebooks: Tokens of a frame.
        rows: B, texts of the batch.
        ahead: Frames in a window that the user asks for, see `mmspec.audio.depth.frame_windows.frames_ahead`.
        prompted: Takes a model, which is this one or the draft model, the frames in a window, and the sampling
            parameters of the call. It returns the model with the prompts given: a
            `mmspec.audio.depth.depth_decoding.FrameModel` and `mmspec.audio.depth.frame_windows.FrameWindowModel`.
        spec: Takes the sampling parameters of the call, and returns the frames to generate.
        draft_model: A smaller model; None refuses recipes that need one.
        heads: Draft heads by kind.
    """

    name: str
    model: Any
    codebooks: int
    rows: int
    ahead: int
    prompted: Callable[[Any, int, SamplingParams], Any] = field(repr=False)
    spec: Callable[[SamplingParams], FrameSpec] = field(repr=False)
    draft_model: Any = None
    heads: Mapping[str, Head] = field(default_factory=dict)

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[SamplingParams],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        """See `mmspec.audio.adapter.DecodingJob`. All rows have the first sampling parameters.

        Raises:
            ArgumentError: If entropies are asked for, or the recipe needs a draft model that is missing.
        """
        if measure_entropy:
            raise ArgumentError(f"measure_entropy is not possible for {self.name}, whose tokens come from two models")
        ahead, windows, spec = self._ahead(recipe), adaptive_windows_of(self.model), self.spec(samplings[0])
        model, draft = self._models(recipe, ahead, samplings[0])
        if ahead:
            decoded = decode_frame_windows(model, recipe, spec, seeds, ahead, draft, on_step, windows, self.heads)
        else:
            decoded = decode_frames(model, recipe, spec, seeds, draft, on_step, windows)
        return Decoded(decoded.frames, decoded.stats)

    def prepare(self, recipe: Recipe, samplings: Sequence[SamplingParams]) -> PreparedBatch:
        """See `mmspec.audio.adapter.PreparableJob`. All rows have the first sampling parameters."""
        ahead, windows, spec = self._ahead(recipe), adaptive_windows_of(self.model), self.spec(samplings[0])
        model, draft = self._models(recipe, ahead, samplings[0])
        if not ahead:
            return PreparedFrames(model, spec, DraftResources(adaptive_windows=windows), draft)
        return prepare_frame_windows(model, recipe, spec, self.rows, ahead, draft, windows, self.heads)

    def _ahead(self, recipe: Recipe) -> int:
        return frames_ahead(self.ahead, self.codebooks, recipe)

    def _models(self, recipe: Recipe, ahead: int, sampling: SamplingParams) -> tuple[Any, Any]:
        """The model, and the draft model if the recipe uses one, with the prompts."""
        draft = None
        if recipe.needs_draft_model and self.draft_model is not None:
            draft = self.prompted(self.draft_model, ahead, sampling)
        return self.prompted(self.model, ahead, sampling), draft
