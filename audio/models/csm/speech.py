"""CSM with what surrounds it: text by speaker, frames, Mimi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.depth.depth_decoding import Frames
from mmspec.audio.depth.frame_windows import MOST
from mmspec.audio.models.csm.decoding import CsmFrames, check_draft, decode_csm, depth_sampling, frame_ends
from mmspec.audio.models.flat.speech import pieces
from mmspec.audio.pipeline import Reading
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.loop import OnStep
from mmspec.engine import Decoded
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

FRAMES = 375  # half a minute, at most, of a piece of text
LETTERS = 300


class CsmAdapter:
    """A `mmspec.audio.pipeline.SpeechAdapter`.

    A call's sampling is that of all codebooks. Unless it differs from the default, the depth decoder keeps its own.

    Args:
        model: A `CsmForConditionalGeneration`.
        processor: A `CsmProcessor`, or its tokenizer.
        draft_model: A smaller one of the family, which drafts the depth, or None.
        frames: At most, of a piece of text.
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows`; 0 stays inside a frame.
        heard: A recording to go on from, what it says and its codes int64 [F, codebooks], or None.
    """

    recipe = "scd:window=8"
    guided = False
    voices = ("0", "1")

    def __init__(
        self,
        model: Any,
        processor: Any,
        codec: Codec,
        draft_model: Any = None,
        frames: int = FRAMES,
        ahead: int = 0,
        heard: tuple[str, Tensor] | None = None,
    ) -> None:
        self.model, self.processor, self.codec, self.frames = model.eval(), processor, codec, frames
        self.ahead, self.heard = ahead, heard
        self.draft_model = None if draft_model is None else check_draft(draft_model, model).eval()
        config = model.generation_config
        self.sampling = SamplingParams(
            float(config.temperature or 1.0) if config.do_sample else 0.0, int(config.top_k or 0), config.top_p or 1.0
        )

    def read(self, text: str, voice: str | None) -> Reading:
        who, before = voice or self.voices[0], []
        if self.heard is not None:
            said, codes = self.heard
            config = self.model.config
            before = [*self._ids(f"[{who}]{said}"), *[config.audio_token_id] * len(codes), config.audio_eos_token_id]
        return Reading([before + self._ids(f"[{who}]{piece}") for piece in pieces(text, LETTERS)])

    def _ids(self, line: str) -> list[int]:
        return list(torch.as_tensor(self.processor(line)["input_ids"]).flatten().tolist())

    def with_reference_audio(self, sound: ReferenceAudio) -> CsmAdapter:
        mimi = self.model.codec_model
        said, wave = sound.said("CSM"), sound.mono(self.codec.sampling_rate).to(mimi.device, mimi.dtype)
        with torch.inference_mode():
            codes = mimi.encode(wave[None, None]).audio_codes[0, : self.model.config.num_codebooks].T
        places = self.model.config.max_position_embeddings
        if len(codes) + self.frames >= places:
            raise ArgumentError(
                f"audio of {len(codes)} frames is too long for a voice; of the model's {places} places, {self.frames} "
                "are for what it says with it"
            )
        heard = said, codes.to(self.model.device)
        return CsmAdapter(self.model, self.processor, self.codec, self.draft_model, self.frames, self.ahead, heard)

    def task(self, parts: Sequence[list[int]], recipe: Recipe, samplings: Sequence[SamplingParams]) -> FrameJob:
        longest = max(len(part) for part in parts)
        ids = torch.tensor([[0] * (longest - len(part)) + part for part in parts], device=self.model.device)
        lengths = torch.tensor([[len(part)] for part in parts], device=ids.device)
        mask = torch.arange(longest, device=ids.device) >= longest - lengths
        return FrameJob(self, ids, mask)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = frame_ends(self.model)(tokens).nonzero()
        return tokens[: int(ends[0])].T if len(ends) else tokens.T


@dataclass(frozen=True)
class FrameJob:
    """A batch of texts, ids int64 [B, T] padded on the left."""

    speaker: CsmAdapter
    ids: Tensor
    mask: Tensor

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[SamplingParams],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        speaker, first = self.speaker, samplings[0]
        if measure_entropy:
            raise ArgumentError("measure_entropy is not possible for CSM, whose tokens have two models")
        rest = depth_sampling(speaker.model) if first == speaker.sampling else first
        pad = int(speaker.model.config.codebook_eos_token_id)
        frames = Frames(speaker.frames, frame_ends(speaker.model), pad, first, rest)
        draft = speaker.draft_model if recipe.needs_draft_model else None
        model, smaller = self._prompted(speaker.model), None if draft is None else self._prompted(draft)
        windows = adaptive_windows_of(speaker.model)
        made = decode_csm(model, recipe, frames, seeds, speaker.ahead, smaller, on_step, windows)
        return Decoded(made.frames, made.stats)

    def _prompted(self, model: Any) -> CsmFrames:
        config, embeds = model.config, model.embed_text_tokens(self.ids)
        if self.speaker.heard is not None:
            codes = self.speaker.heard[1]
            end = torch.full_like(codes[:1], config.codebook_eos_token_id)
            for mark, frames in ((config.audio_token_id, codes), (config.audio_eos_token_id, end)):
                read = model.backbone_model.embed_tokens(frames[None])[0]
                embeds = embeds.masked_scatter((self.ids == mark)[..., None], read.repeat(len(embeds), 1))
        return CsmFrames(model, embeds, self.mask, self.speaker.frames, self.speaker.ahead)


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> CsmAdapter:
    """The speaker around a model.

    Raises:
        ArgumentError: For options it does not have.
    """
    options = dict(config)
    frames, ahead = options.pop("frames", FRAMES), options.pop("ahead", 0)
    if options:
        wrong = sorted(options)[0]
        raise ArgumentError(
            f"config has {wrong!r}, which CSM does not have; it may have 'draft_model', 'frames' and 'ahead'"
        )
    if not isinstance(frames, int) or frames < 1:
        raise ArgumentError(f"frames={frames!r} is not allowed; it must be an integer, 1 or more")
    if not isinstance(ahead, int) or not 0 <= ahead <= MOST:
        raise ArgumentError(f"ahead={ahead!r} is not allowed; it must be an integer, 0 to {MOST}")
    return CsmAdapter(model, processor, codec or codec_of(model.codec_model), draft_model, frames, ahead)
