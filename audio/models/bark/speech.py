"""The speech adapter of Bark: texts and voices by its processor, three stages, EnCodec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.bark.parts import BarkPart, BarkVoice
from mmspec.audio.models.bark.stages import BarkBatch, stage_defaults
from mmspec.audio.text import split_text
from mmspec.batching.closed import PreparedClosed
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_LETTERS = 200  # of a part: Bark's audio is good for about 13 seconds
# A voice shorter than this is none: transformers reads the whole of a history of which no pair of tokens fits.
MIN_HISTORY = 4


class BarkAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Bark.

    A text without a voice is spoken by a random one. Its first part is the voice of the others.

    The sampling parameters of a call apply to the first two stages. For those that a call leaves at their defaults,
    each stage has its own. The temperature of the third stage is that of its generation config, unless the call's is 0.

    The last stage is not causal, so that a stream arrives as one chunk per part.

    Args:
        model: A `BarkModel`.
        processor: A `BarkProcessor`.
        codec: The codec of its codes.
        draft_model: A smaller `BarkModel` that drafts the second stage, or None.
    """

    recipe = "scd:window=6"
    takes_min_p = True
    guided = False
    draws_voice = True

    def __init__(self, model: Any, processor: Any, codec: Codec, draft_model: Any = None) -> None:
        self.model, self.processor, self.codec = model.eval(), processor, codec
        self.draft_model = None if draft_model is None else draft_model.eval()
        self.voices: Sequence[str] = tuple(getattr(processor, "available_voice_presets", ()))
        self._presets: dict[str, BarkVoice] = {}
        self.sampling = stage_defaults(model.generation_config.semantic_config)

    def read(self, text: str, voice: str | None) -> PreparedText:
        preset = None if voice is None else self._preset(voice)
        pieces = split_text(text, MAX_LETTERS)
        parts = [self.processor(piece) for piece in pieces]
        length = int(self.model.generation_config.semantic_config.get("max_input_semantic_length", 256))
        ids, masks = (
            [torch.as_tensor(part[name]).view(1, -1)[:, :length] for part in parts]
            for name in ("input_ids", "attention_mask")
        )
        return PreparedText([BarkPart(i, m, preset) for i, m in zip(ids, masks, strict=True)], texts=pieces)

    def _preset(self, voice: str) -> BarkVoice:
        """The voice of a name, the same object at each call, also in other threads."""
        if voice not in self._presets:
            self._presets.setdefault(voice, self._read_preset(voice))
        return self._presets[voice]

    def _read_preset(self, voice: str) -> BarkVoice:
        try:
            found = self.processor("", voice_preset=voice)["history_prompt"]
        except (OSError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ArgumentError(f"voice={voice!r} cannot be read: {reason}") from None
        semantic, codes, coarse = (
            torch.as_tensor(found[f"{name}_prompt"]).long() for name in ("semantic", "fine", "coarse")
        )
        return BarkVoice(semantic, codes, coarse, voice)

    def continue_voice(self, part: BarkPart, first: BarkPart, tokens: Tensor) -> BarkPart:
        if part.voice is not None:
            return part
        semantic, codes = tokens[tokens[:, -1] >= 0, -1], self.codes(tokens)
        if min(len(semantic), codes.shape[1]) < MIN_HISTORY:
            return part
        return replace(part, voice=BarkVoice(semantic, codes, codes[:2], tokens))

    def kind(self, part: BarkPart) -> int:
        """Parts with voices from the same object are decoded together: transformers takes one voice per call."""
        return id(None if part.voice is None else part.voice.source)

    def prepare_rows(
        self, parts: Sequence[BarkPart], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedClosed:
        made = partial(BarkBatch, self.model, self.draft_model, parts, recipe, self.sampling, samplings[0])
        return PreparedClosed(made)

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens[tokens[:, 0] >= 0, :-1].T


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> BarkAdapter:
    """The `BarkAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options.
    """
    check_config(config, "Bark", ["draft_model"])
    return BarkAdapter(model, processor, codec or codec_of(model.codec_model), draft_model)
