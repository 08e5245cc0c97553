"""The speech adapter of Pocket TTS and Gradium Phonon TTS: texts and voices, latents, their codec."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mmspec.arguments import check_integer, shown
from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec
from mmspec.audio.latents.codecs import PocketCodec
from mmspec.audio.models.pocket.decoding import FRAMES_AFTER_EOS, INPUTS, check_sibling, prepare_frames
from mmspec.audio.positions import check_positions, check_voice
from mmspec.audio.reference_audio import ReferenceAudio, refuse_unread
from mmspec.audio.text import split_tokens
from mmspec.continuous.prepared import PreparedLatents
from mmspec.errors import ArgumentError
from mmspec.files.inputs import check_regular
from mmspec.hf.padding import with_padding
from mmspec.media.listing import list_files
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

TEMPERATURE = 0.7  # for checkpoints without one
DEFAULT_VOICE = "alba"  # the first of the published voices
REFERENCE = "reference"  # the name of the voice of reference audio
MAX_TEXT_TOKENS = 50  # of a part


class PocketAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Pocket TTS and Gradium Phonon TTS.

    The temperature of a call is the variance of the noise; 0 is no noise.

    Args:
        model: `PocketTTSForConditionalGeneration` or `GradiumPhononTTSForConditionalGeneration`.
        processor: A `PocketTTSProcessor` with its audio tokenizer.
        voice_latents: Latents [frames, D] of voices, by name.
        draft_model: A smaller model of the same latents, or None.
        frames: Frames of a part, at most; None is the `max_new_tokens` of the checkpoint, or what the model's own
            `generate` allows for the text.
    """

    recipe = "plain"
    guided = False

    def __init__(
        self,
        model: Any,
        processor: Any,
        voice_latents: Mapping[str, Tensor],
        draft_model: Any = None,
        frames: int | None = None,
    ) -> None:
        self.model, self.processor, self.draft_model = model.eval(), with_padding(processor), draft_model
        self.codec = PocketCodec(processor.audio_tokenizer, processor.fade_in_duration)
        self.voice_latents, self.voices = voice_latents, tuple(voice_latents)
        config = model.generation_config
        temperature = TEMPERATURE if config.temperature is None else float(config.temperature)
        self.sampling = SamplingParams(0.0 if config.do_sample is False else temperature)
        self.frames = frames or config.max_new_tokens

    def read(self, text: str, voice: str | None) -> PreparedText:
        name = voice or (self.voices[0] if self.voices else None)
        tokenizer = self.processor.tokenizer
        # As the processor splits, but after the ends of sentences of any script, and of lines.
        pieces = split_tokens(
            text, MAX_TEXT_TOKENS, lambda piece: len(tokenizer.encode(piece, add_special_tokens=False))
        )
        parts = [(piece, name) for piece in pieces]
        for part in parts:
            inputs = self._inputs([part])
            check_positions(inputs["input_ids"].shape[1], max(self._limits(inputs)), self._positions)
        return PreparedText(parts, texts=pieces)

    def with_reference_audio(self, reference: ReferenceAudio) -> PocketAdapter:
        refuse_unread(reference, "Pocket TTS")
        wave = reference.mono(self.codec.sampling_rate)
        most = self.frames or frames_for(1, self.model.config.frame_rate)
        check_voice(len(wave), self.codec.hop, most, self._positions)
        latents = read_voice(REFERENCE, wave, voice_width(self.model), self.processor)
        voice_latents = {REFERENCE: latents, **self.voice_latents}
        return PocketAdapter(self.model, self.processor, voice_latents, self.draft_model, self.frames)

    def prepare_rows(
        self, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedLatents:
        if any(sampling.top_k or sampling.top_p != 1 for sampling in samplings):
            raise ArgumentError("top_k and top_p are not possible here: this model's tokens are vectors")
        inputs, config = self._inputs(parts), self.model.generation_config
        there = {key: value.to(self.model.device) for key, value in inputs.items()}
        names = ("num_flow_steps", "eos_threshold", "min_frames_before_eos")
        own = {name: value for name in names if (value := getattr(config, name, None)) is not None}
        temperatures, limits = [sampling.temperature for sampling in samplings], self._limits(inputs)
        return prepare_frames(self.model, there, recipe, temperatures, self.draft_model, limits, **own)

    def _inputs(self, parts: Sequence[Any]) -> Mapping[str, Tensor]:
        """The outputs of the processor for parts."""
        # The chat template only marks the place of a voice; its latents are passed to the processor.
        voices = [self.voice_latents[name] for _, name in parts if name is not None]
        prompts = [
            self.processor.apply_chat_template(
                [
                    {
                        "role": "user",
                        "content": [{"type": "audio"}] * (name is not None) + [{"type": "text", "text": text}],
                    }
                ]
            )
            for text, name in parts
        ]
        audio = {"audio_prompt_latents": voices} if voices else {}
        found: Mapping[str, Tensor] = self.processor(
            text=prompts, return_tensors="pt", padding=True, padding_side="left", **audio
        )
        return {name: found[name] for name in (*INPUTS, FRAMES_AFTER_EOS) if name in found}

    def _limits(self, inputs: Mapping[str, Tensor]) -> list[int]:
        """Frames of each row, at most."""
        names = ("audio_prompt_bos_token_id", "audio_prompt_token_id", "audio_bos_token_id", "audio_latent_token_id")
        marks = torch.tensor([getattr(self.model.config, name, -1) for name in names])
        words = (inputs["attention_mask"].bool() & ~torch.isin(inputs["input_ids"], marks)).sum(1).tolist()
        rate = self.model.config.frame_rate
        return [self.frames or frames_for(min(count, MAX_TEXT_TOKENS), rate) for count in words]

    @property
    def _positions(self) -> int:
        return int(self.model.config.max_position_embeddings)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = (tokens[:, -1] == 0).nonzero()
        kept = tokens[: int(ends[0]) + 1] if len(ends) else tokens
        return self.model.denormalize_latents(kept[:, :-1]).T


def frames_for(text_tokens: int, frame_rate: float) -> int:
    """The frames that the model's own `generate` allows for a text."""
    return math.ceil((text_tokens / 3 + 2) * frame_rate)


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> PocketAdapter:
    """The `PocketAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options, invalid voices, and a processor without its audio tokenizer.
    """
    options, name = dict(config), type(model).__name__
    given, frames = options.pop("voices", {}), options.pop("frames", None)
    check_config(options, name, ("draft_model", "frames", "voices"))
    if frames is not None:
        check_integer("frames", frames, 1, 2**31)
    if not isinstance(given, Mapping):
        raise ArgumentError(f"voices={shown(given)} is not allowed; it must be a mapping of names to voices")
    if getattr(processor, "audio_tokenizer", None) is None or processor.audio_tokenizer.decoder is None:
        raise ArgumentError(f"processor of {name} has no audio tokenizer that decodes; load the complete processor")
    if codec is not None:
        raise ArgumentError(f"codec is not possible here: {name} uses the audio tokenizer of its processor")
    if draft_model is not None:
        check_sibling(model, draft_model)
    processor.audio_tokenizer.to(model.device)
    width = voice_width(model)
    folder = Path(model.name_or_path or "-", "voices")
    published = {path.stem: path for path in list_files(folder, (".safetensors",))} if folder.is_dir() else {}
    voice_latents = {str(name): read_voice(str(name), voice, width, processor) for name, voice in given.items()}
    for name in sorted(set(published) - set(voice_latents), key=lambda name: (name != DEFAULT_VOICE, name)):
        voice_latents[name] = read_voice(name, published[name], width, processor)
    return PocketAdapter(model, processor, voice_latents, draft_model, frames)


def voice_width(model: Any) -> int:
    """Width of the latents of a voice."""
    return int(getattr(model.config, "audio_prompt_dim", model.config.latent_dim))


def read_voice(name: str, voice: Any, width: int, processor: Any) -> Tensor:
    """The latents float32 [frames, width] of a voice.

    Args:
        name: Its name, for errors.
        voice: Latents, a .safetensors file with a tensor of latents, or audio [samples] at the codec's sampling rate.
        width: Width of the latents.
        processor: Encodes audio.

    Raises:
        ArgumentError: For anything else.
    """
    allowed = f"a .safetensors file of latents [frames, {width}], these latents, or audio [samples] at the codec's rate"
    if isinstance(voice, (str, Path)):
        try:
            check_regular(Path(voice))
            (voice,) = load_file(voice).values()
        except (OSError, ValueError, SafetensorError) as error:
            raise ArgumentError(
                f"voices[{name!r}]={str(voice)!r} cannot be read ({error}); it must be {allowed}"
            ) from None
    try:
        found = torch.as_tensor(voice, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ArgumentError(f"voices[{name!r}]={shown(voice)} is not allowed; it must be {allowed}") from None
    if not found.isfinite().all():
        raise ArgumentError(f"voices[{name!r}] has values that are not finite numbers; it must be {allowed}")
    found = found[0] if found.ndim == 3 and len(found) == 1 else found
    if found.ndim == 1 and width == processor.audio_tokenizer.config.latent_dim:
        features, tokenizer = processor.feature_extractor(found.numpy()), processor.audio_tokenizer
        if tokenizer.encoder is None:
            raise ArgumentError(f"voices[{name!r}] is audio, and this codec has no encoder; pass {allowed}")
        with torch.no_grad():
            values = features["input_values"].to(tokenizer.device, tokenizer.dtype)
            encoded = tokenizer.encode(values, features["padding_mask"].to(tokenizer.device))
        found = encoded.latents[0][encoded.latents_mask[0].bool()].float().cpu()
    if found.ndim != 2 or found.shape[1] != width:
        raise ArgumentError(f"voices[{name!r}] has the shape {list(found.shape)}; it must be {allowed}")
    return found
