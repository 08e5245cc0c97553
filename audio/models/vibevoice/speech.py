"""VibeVoice with what surrounds it: scripts of several voices, latents, its codec."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.latents.codecs import VibeVoiceCodec
from mmspec.audio.models.vibevoice.decoding import draw_tokens, latents_of
from mmspec.audio.pipeline import Reading
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.decoding.loop import OnStep
from mmspec.engine import Decoded
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

HEARD = "heard"
FRAMES = 1125  # two and a half minutes
SPEAKER = re.compile(r"^\s*speaker\s+(\d+)\s*:\s*", re.IGNORECASE | re.MULTILINE)


class VibeVoiceAdapter:
    """A `mmspec.audio.pipeline.SpeechAdapter`. A text is one speaker's, or a script of lines that begin with "Speaker 0:".

    Args:
        model: A `VibeVoiceForConditionalGeneration`.
        processor: Its own.
        known: Sound float32 [samples] of voices by name; the one of a call is the first speaker's, those after it in
            this order are the others'.
        draft_model: A smaller model of the same tokenizers, or None.
        frames: Tokens, at most, of a text.
    """

    recipe = "plain"
    guided = True

    def __init__(
        self, model: Any, processor: Any, known: Mapping[str, Any], draft_model: Any = None, frames: int = FRAMES
    ) -> None:
        self.model, self.processor, self.draft_model, self.frames = model.eval(), processor, draft_model, frames
        self.codec = VibeVoiceCodec(model, int(processor.feature_extractor.sampling_rate))
        self.known, self.voices = known, tuple(known)
        scale = model.generation_config.guidance_scale
        self.sampling = SamplingParams(1.0, guidance_scale=1.0 if scale is None else float(scale))

    def read(self, text: str, voice: str | None) -> Reading:
        head, *rest = SPEAKER.split(text)
        lines = list(zip(rest[::2], (line.strip() for line in rest[1::2]), strict=True))
        if head.strip():
            lines.insert(0, ("0", head.strip()))
        first = self.voices.index(voice) if voice is not None else 0
        names = self.voices[first:] + self.voices[:first]
        return Reading([(lines, names)])

    def with_reference_audio(self, sound: ReferenceAudio) -> VibeVoiceAdapter:
        known = {HEARD: sound.mono(self.codec.sampling_rate).numpy(), **self.known}
        return VibeVoiceAdapter(self.model, self.processor, known, self.draft_model, self.frames)

    def task(self, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams]) -> VibeVoiceJob:
        sampling = samplings[0]
        if sampling.top_k or sampling.top_p != 1 or sampling.temperature != 1:
            raise ArgumentError(
                "temperature, top_k and top_p are not possible here: this model's tokens are vectors, which its solver "
                "makes of noise without further chance; leave them out"
            )
        prompts, sounds = [], []
        for lines, names in parts:
            prompt, heard = self.script(lines, names)
            prompts.append(prompt)
            sounds += heard
        # It repeats the rate: an extractor that is not told warns.
        spoken = {"audio": sounds, "sampling_rate": self.codec.sampling_rate} if sounds else {}
        inputs = self.processor(text=prompts, return_tensors="pt", padding=True, padding_side="left", **spoken)
        return VibeVoiceJob(self, {key: value.to(self.model.device) for key, value in inputs.items()})

    def script(self, lines: Sequence[tuple[str, str]], names: Sequence[str]) -> tuple[str, list[Any]]:
        """The prompt of a script, and the voices that it has places for, each where its speaker first speaks."""
        turns, heard, met = list[Any](), list[Any](), list[str]()
        for role, line in lines:
            content = [{"type": "text", "text": line}]
            if role not in met:
                met.append(role)
                if len(met) <= len(names):
                    content.append({"type": "audio"})
                    heard.append(self.known[names[len(met) - 1]])
            turns.append({"role": role, "content": content})
        return self.processor.apply_chat_template(turns), heard

    def codes(self, tokens: Tensor) -> Tensor:
        return latents_of(self.model, tokens)


@dataclass(frozen=True)
class VibeVoiceJob:
    """A batch of scripts, as the processor gives them."""

    speaker: VibeVoiceAdapter
    inputs: dict[str, Tensor]

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[SamplingParams],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        if measure_entropy:
            raise ArgumentError("measure_entropy is not possible here: a vector's distribution has no entropy in bits")
        speaker = self.speaker
        steps = getattr(speaker.model.generation_config, "num_diffusion_steps", None) or 10
        found = draw_tokens(
            speaker.model, self.inputs, recipe, seeds, speaker.draft_model, speaker.frames,
            samplings[0].guidance_scale, steps, on_step=on_step,
        )  # fmt: skip
        return Decoded(found.tokens, found.stats)


def make(
    model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any
) -> VibeVoiceAdapter:
    """The speaker around a model.

    Raises:
        ArgumentError: For options it does not have, and voices that are none.
    """
    options = dict(config)
    given, frames = options.pop("voices", {}), options.pop("frames", FRAMES)
    if options or codec is not None:
        wrong = sorted(options)[0] if options else "codec"
        raise ArgumentError(
            f"config has {wrong!r}, which VibeVoice does not have; it may have 'draft_model', 'frames' and 'voices'"
        )
    if not isinstance(frames, int) or frames < 1:
        raise ArgumentError(f"frames={frames!r} is not allowed; it must be an integer, 1 or more")
    known = {str(name): np.asarray(voice, dtype=np.float32) for name, voice in given.items()}
    for name, voice in known.items():
        if voice.ndim != 1 or not len(voice):
            raise ArgumentError(f"voices[{name!r}] has the shape {list(voice.shape)}; it must be sound, [samples]")
    return VibeVoiceAdapter(model, processor, known, draft_model, frames)
