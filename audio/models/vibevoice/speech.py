"""The speech adapter of VibeVoice: scripts of several speakers, latents, its codec."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.arguments import check_integer, shown
from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec
from mmspec.audio.latents.codecs import VibeVoiceCodec
from mmspec.audio.models.vibevoice.decoding import latents_of, prepare_tokens
from mmspec.audio.positions import check_positions, check_voice
from mmspec.audio.reference_audio import ReferenceAudio, refuse_unread
from mmspec.audio.text import count_letters, ending_like, split_text
from mmspec.continuous.prepared import PreparedLatents
from mmspec.errors import ArgumentError, PromptError
from mmspec.hf.padding import with_padding
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

REFERENCE = "reference"  # the name of the voice of reference audio
MAX_LETTERS = 6000  # of a part: about seven minutes
# A part's limit, for speech half as fast as usual: 7.5 frames and 15 letters per second.
FRAMES_PER_LETTER, MORE_FRAMES = 1.0, 75
VOICE_SECONDS = 20  # of the first part, which later parts continue
SPEAKER = re.compile(r"^[^\S\n]*+speaker[^\S\n]++(\d+)[^\S\n]*+:\s*+", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class ScriptPart:
    """A part of a script.

    Attributes:
        lines: Speaker and text of each turn.
        voices: The audio float32 [samples] of the voices of speakers that have one.
    """

    lines: Sequence[tuple[str, str]]
    voices: Mapping[str, Any]


class VibeVoiceAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of VibeVoice.

    A text is spoken by one speaker, or it is a script whose turns begin with "Speaker 0:". Without a voice, the later
    parts of a long text of one speaker continue the voice of its first part.

    Args:
        model: A `VibeVoiceForConditionalGeneration`.
        voice_audio: Audio float32 [samples] of voices, by name. The first speaker has the voice of the call; the other
            speakers have the voices that follow it in this order.
        draft_model: A smaller model with the same audio tokenizers, or None.
        frames: Tokens of a part, at most; None is a limit that fits its text.
    """

    recipe = "plain"
    guided = True

    def __init__(
        self,
        model: Any,
        processor: Any,
        voice_audio: Mapping[str, Any],
        draft_model: Any = None,
        frames: int | None = None,
    ) -> None:
        self.model, self.draft_model, self.frames = model.eval(), draft_model, frames
        self.processor = with_padding(processor)
        self.codec = VibeVoiceCodec(model, int(processor.feature_extractor.sampling_rate))
        self.voice_audio, self.voices = voice_audio, tuple(voice_audio)
        self.draws_voice = not voice_audio
        scale = model.generation_config.guidance_scale
        self.sampling = SamplingParams(1.0, guidance_scale=1.0 if scale is None else float(scale))

    def read(self, text: str, voice: str | None) -> PreparedText:
        if (mark := self.processor.audio_token) in text:
            raise PromptError(f"text contains {mark!r}, the place of a voice in the prompt; leave it out")
        head, *rest = SPEAKER.split(text)
        lines = list(zip(rest[::2], (line.strip() for line in rest[1::2]), strict=True))
        if head.strip():
            lines.insert(0, ("0", head.strip()))
        lines = [(speaker, line) for speaker, line in lines if line]
        if not lines:
            raise PromptError(f"text={text!r} has no words; give words to say after each 'Speaker 0:'")
        first = self.voices.index(voice) if voice is not None else 0
        names = self.voices[first:] + self.voices[:first]
        speakers = list(dict.fromkeys(speaker for speaker, _ in lines))
        voices = {speaker: self.voice_audio[name] for speaker, name in zip(speakers, names, strict=False)}
        parts = [ScriptPart(part, voices) for part in split_script(lines, MAX_LETTERS)]
        for part in parts:
            check_positions(self._length(part), self.frames or 1, self._positions)
        texts = [ending_like(part.lines[-1][1], "\n".join(line for _, line in part.lines)) for part in parts]
        return PreparedText(parts, texts=texts)

    def continue_voice(self, part: ScriptPart, first: ScriptPart, tokens: Tensor) -> ScriptPart:
        speakers = {speaker for speaker, _ in (*first.lines, *part.lines)}
        latents = self.codes(tokens)[:, : round(VOICE_SECONDS * self.codec.sampling_rate / self.codec.hop)]
        if len(speakers) > 1 or not latents.shape[1]:
            return part  # a voice is of one speaker
        audio = self.codec.decode(latents[None].to(self.model.device))[0, 0].float().cpu().numpy()
        with_voice = ScriptPart(part.lines, dict.fromkeys(speakers, audio))
        fits = self._length(with_voice) + (self.frames or frames_for(part)) <= self._positions
        return with_voice if fits else part

    def with_reference_audio(self, reference: ReferenceAudio) -> VibeVoiceAdapter:
        refuse_unread(reference, "VibeVoice")
        wave = reference.mono(self.codec.sampling_rate)
        check_voice(len(wave), self.codec.hop, self.frames or 1, self._positions)
        voice_audio = {REFERENCE: wave.numpy(), **self.voice_audio}
        return VibeVoiceAdapter(self.model, self.processor, voice_audio, self.draft_model, self.frames)

    def prepare_rows(
        self, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedLatents:
        sampling = samplings[0]
        if sampling.top_k or sampling.top_p != 1 or sampling.temperature != 1:
            raise ArgumentError(
                "temperature, top_k and top_p are not possible here: this model's tokens are vectors, which its solver "
                "computes from noise deterministically; leave them out"
            )
        inputs = {key: value.to(self.model.device) for key, value in self._inputs(parts).items()}
        lengths = inputs["attention_mask"].sum(1).tolist()
        # What surely suffices for a text may be more than the model has positions for.
        limits = [
            min(self.frames or frames_for(part), self._positions - length)
            for part, length in zip(parts, lengths, strict=True)
        ]
        steps = getattr(self.model.generation_config, "num_diffusion_steps", None) or 10
        return prepare_tokens(self.model, inputs, recipe, limits, self.draft_model, sampling.guidance_scale, steps)

    def _inputs(self, parts: Sequence[ScriptPart]) -> Mapping[str, Tensor]:
        """The outputs of the processor for parts."""
        prompts, voices = [], []
        for part in parts:
            prompt, script_voices = self.script(part)
            prompts.append(prompt)
            voices += script_voices
        # The feature extractor warns if it is called without the sampling rate.
        audio = {"audio": voices, "sampling_rate": self.codec.sampling_rate} if voices else {}
        found: Mapping[str, Tensor] = self.processor(
            text=prompts, return_tensors="pt", padding=True, padding_side="left", **audio
        )
        return found

    def _length(self, part: ScriptPart) -> int:
        """Positions of the prompt of a part, with its voices, without running the processor, which reads all audio."""
        prompt, voices = self.script(part)
        samples = int(self.processor.feature_extractor.pad_to_multiple_of)
        # The prompt has one token in place of each voice.
        return len(self.processor.tokenizer(prompt)["input_ids"]) + sum(-(-len(v) // samples) - 1 for v in voices)

    @property
    def _positions(self) -> int:
        return int(self.model.config.text_config.max_position_embeddings)

    def script(self, part: ScriptPart) -> tuple[str, list[Any]]:
        """The prompt of a part, and the audio of its voices, each of which is placed in its speaker's first turn."""
        turns, voices, seen = list[Any](), list[Any](), set[str]()
        for speaker, line in part.lines:
            content = [{"type": "text", "text": line}]
            if speaker not in seen and speaker in part.voices:
                content.append({"type": "audio"})
                voices.append(part.voices[speaker])
            seen.add(speaker)
            turns.append({"role": speaker, "content": content})
        return self.processor.apply_chat_template(turns), voices

    def codes(self, tokens: Tensor) -> Tensor:
        return latents_of(self.model, tokens)


def frames_for(part: ScriptPart) -> int:
    """The number of tokens that surely suffice for a part."""
    letters = sum(count_letters(line) for _, line in part.lines)
    return round(FRAMES_PER_LETTER * letters) + MORE_FRAMES


def split_script(lines: Sequence[tuple[str, str]], max_letters: int) -> list[list[tuple[str, str]]]:
    """Splits a script between turns, and turns that are too long as texts are, into parts of at most `max_letters`."""
    parts, used = [list[tuple[str, str]]()], 0
    for speaker, line in lines:
        for piece in split_text(line, max_letters):
            if parts[-1] and used + count_letters(piece) > max_letters:
                parts.append([])
                used = 0
            parts[-1].append((speaker, piece))
            used += count_letters(piece)
    return parts


def make(
    model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any
) -> VibeVoiceAdapter:
    """The `VibeVoiceAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options, and invalid voices.
    """
    options = dict(config)
    given, frames = options.pop("voices", {}), options.pop("frames", None)
    given_names = [*options, *(["codec"] if codec is not None else [])]
    check_config(given_names, "VibeVoice", ("draft_model", "frames", "voices"))
    if frames is not None:
        check_integer("frames", frames, 1, 2**31)
    if not isinstance(given, Mapping):
        raise ArgumentError(f"voices={shown(given)} is not allowed; it must be a mapping of names to audio")
    voice_audio = {str(name): read_samples(str(name), voice) for name, voice in given.items()}
    for name, voice in voice_audio.items():
        if voice.ndim != 1 or not len(voice):
            raise ArgumentError(f"voices[{name!r}] has the shape {list(voice.shape)}; it must be audio, [samples]")
        if not np.isfinite(voice).all():
            raise ArgumentError(f"voices[{name!r}] has samples that are not finite numbers")
    return VibeVoiceAdapter(model, processor, voice_audio, draft_model, frames)


def read_samples(name: str, voice: Any) -> NDArray[np.float32]:
    """The audio of a voice.

    Raises:
        ArgumentError: If it does not consist of numbers.
    """
    try:
        return np.asarray(voice, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"voices[{name!r}]={shown(voice)} is not allowed; it must be audio, [samples]") from None
