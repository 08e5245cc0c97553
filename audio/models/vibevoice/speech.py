"""The speech adapter of VibeVoice: scripts of several speakers, latents, its codec."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.latents.codecs import VibeVoiceCodec
from mmspec.audio.models.vibevoice.decoding import latents_of, sample_tokens
from mmspec.audio.pipeline import PreparedText
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.decoding.loop import OnStep
from mmspec.engine import Decoded
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

REFERENCE = "reference"  # the name of the voice of reference audio
MAX_TOKENS = 1125  # of a text: two and a half minutes
SPEAKER = re.compile(r"^\s*speaker\s+(\d+)\s*:\s*", re.IGNORECASE | re.MULTILINE)


class VibeVoiceAdapter:
    """The `mmspec.audio.pipeline.SpeechAdapter` of VibeVoice.

    A text is spoken by one speaker, or it is a script whose turns begin with "Speaker 0:".

    Args:
        model: A `VibeVoiceForConditionalGeneration`.
        processor: Its processor.
        voice_audio: Audio float32 [samples] of voices, by name. The first speaker has the voice of the call; the other
            speakers have the voices that follow it in this order.
        draft_model: A smaller model with the same audio tokenizers, or None.
        frames: Tokens of a text, at most.
    """

    recipe = "plain"
    guided = True

    def __init__(
        self,
        model: Any,
        processor: Any,
        voice_audio: Mapping[str, Any],
        draft_model: Any = None,
        frames: int = MAX_TOKENS,
    ) -> None:
        self.model, self.processor, self.draft_model, self.frames = model.eval(), processor, draft_model, frames
        self.codec = VibeVoiceCodec(model, int(processor.feature_extractor.sampling_rate))
        self.voice_audio, self.voices = voice_audio, tuple(voice_audio)
        scale = model.generation_config.guidance_scale
        self.sampling = SamplingParams(1.0, guidance_scale=1.0 if scale is None else float(scale))

    def read(self, text: str, voice: str | None) -> PreparedText:
        head, *rest = SPEAKER.split(text)
        lines = list(zip(rest[::2], (line.strip() for line in rest[1::2]), strict=True))
        if head.strip():
            lines.insert(0, ("0", head.strip()))
        first = self.voices.index(voice) if voice is not None else 0
        names = self.voices[first:] + self.voices[:first]
        return PreparedText([(lines, names)])

    def with_reference_audio(self, reference: ReferenceAudio) -> VibeVoiceAdapter:
        voice_audio = {REFERENCE: reference.mono(self.codec.sampling_rate).numpy(), **self.voice_audio}
        return VibeVoiceAdapter(self.model, self.processor, voice_audio, self.draft_model, self.frames)

    def job(self, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams]) -> VibeVoiceJob:
        sampling = samplings[0]
        if sampling.top_k or sampling.top_p != 1 or sampling.temperature != 1:
            raise ArgumentError(
                "temperature, top_k and top_p are not possible here: this model's tokens are vectors, which its solver "
                "computes from noise deterministically; leave them out"
            )
        prompts, voices = [], []
        for lines, names in parts:
            prompt, script_voices = self.script(lines, names)
            prompts.append(prompt)
            voices += script_voices
        # The feature extractor warns if it is called without the sampling rate.
        audio = {"audio": voices, "sampling_rate": self.codec.sampling_rate} if voices else {}
        inputs = self.processor(text=prompts, return_tensors="pt", padding=True, padding_side="left", **audio)
        return VibeVoiceJob(self, {key: value.to(self.model.device) for key, value in inputs.items()})

    def script(self, lines: Sequence[tuple[str, str]], names: Sequence[str]) -> tuple[str, list[Any]]:
        """The prompt of a script.

        Args:
            lines: Speaker and text of each turn.
            names: The voices of the speakers, in the order of their first turns; speakers beyond them have no voice.

        Returns:
            The prompt, and the audio of its voices, each of which is placed in its speaker's first turn.
        """
        turns, voices, speakers = list[Any](), list[Any](), list[str]()
        for speaker, line in lines:
            content = [{"type": "text", "text": line}]
            if speaker not in speakers:
                speakers.append(speaker)
                if len(speakers) <= len(names):
                    content.append({"type": "audio"})
                    voices.append(self.voice_audio[names[len(speakers) - 1]])
            turns.append({"role": speaker, "content": content})
        return self.processor.apply_chat_template(turns), voices

    def codes(self, tokens: Tensor) -> Tensor:
        return latents_of(self.model, tokens)


@dataclass(frozen=True)
class VibeVoiceJob:
    """A batch of scripts; see `mmspec.audio.pipeline.DecodingJob`.

    Attributes:
        adapter: The adapter.
        inputs: The outputs of its processor.
    """

    adapter: VibeVoiceAdapter
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
        adapter = self.adapter
        steps = getattr(adapter.model.generation_config, "num_diffusion_steps", None) or 10
        found = sample_tokens(
            adapter.model, self.inputs, recipe, seeds, adapter.draft_model, adapter.frames,
            samplings[0].guidance_scale, steps, on_step=on_step,
        )  # fmt: skip
        return Decoded(found.tokens, found.stats)


def make(
    model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any
) -> VibeVoiceAdapter:
    """The `VibeVoiceAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options, and invalid voices.
    """
    options = dict(config)
    given, frames = options.pop("voices", {}), options.pop("frames", MAX_TOKENS)
    if options or codec is not None:
        wrong = sorted(options)[0] if options else "codec"
        raise ArgumentError(
            f"config has {wrong!r}, which VibeVoice does not have; it may have 'draft_model', 'frames' and 'voices'"
        )
    if not isinstance(frames, int) or frames < 1:
        raise ArgumentError(f"frames={frames!r} is not allowed; it must be an integer, 1 or more")
    voice_audio = {str(name): np.asarray(voice, dtype=np.float32) for name, voice in given.items()}
    for name, voice in voice_audio.items():
        if voice.ndim != 1 or not len(voice):
            raise ArgumentError(f"voices[{name!r}] has the shape {list(voice.shape)}; it must be audio, [samples]")
    return VibeVoiceAdapter(model, processor, voice_audio, draft_model, frames)
