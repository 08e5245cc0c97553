"""Pocket TTS and Gradium Phonon TTS with what surrounds them: text and voice, latents, their codec."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.latents.codecs import PocketCodec
from mmspec.audio.models.pocket.decoding import check_sibling, draw_frames
from mmspec.audio.pipeline import Reading
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.decoding.loop import OnStep
from mmspec.engine import Decoded
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

TEMPERATURE = 0.7  # where a checkpoint names none
HEARD = "heard"
PIECE = 50  # tokens of a text that are said at once, at most


class PocketAdapter:
    """A `mmspec.audio.pipeline.SpeechAdapter`. A call's temperature is the variance of the noise; 0 takes none.

    Args:
        model: `PocketTTSForConditionalGeneration` or `GradiumPhononTTSForConditionalGeneration`.
        processor: A `PocketTTSProcessor` with its audio tokenizer.
        known: Latents [frames, D] of voices by name.
        draft_model: A smaller model of the same latents, or None.
    """

    recipe = "plain"
    guided = False

    def __init__(self, model: Any, processor: Any, known: Mapping[str, Tensor], draft_model: Any = None) -> None:
        self.model, self.processor, self.draft_model = model.eval(), processor, draft_model
        self.codec = PocketCodec(processor.audio_tokenizer, processor.fade_in_duration)
        self.known, self.voices = known, tuple(known)
        config = model.generation_config
        warmth = TEMPERATURE if config.temperature is None else float(config.temperature)
        self.sampling = SamplingParams(0.0 if config.do_sample is False else warmth)
        # What its own `generate` allows a text of that length.
        self.frames = math.ceil((PIECE / 3 + 2) * model.config.frame_rate)

    def read(self, text: str, voice: str | None) -> Reading:
        name = voice or (self.voices[0] if self.voices else None)
        return Reading([(piece, name) for piece in self.processor.split_text(text, PIECE)])

    def with_reference_audio(self, sound: ReferenceAudio) -> PocketAdapter:
        wave = sound.mono(self.codec.sampling_rate)
        heard = read_voice(HEARD, wave, voice_width(self.model), self.processor)
        return PocketAdapter(self.model, self.processor, {HEARD: heard, **self.known}, self.draft_model)

    def task(self, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams]) -> PocketJob:
        if samplings[0].top_k or samplings[0].top_p != 1:
            raise ArgumentError("top_k and top_p are not possible here: this model's tokens are vectors")
        # The template says where a voice belongs, not what it sounds like.
        voices = [self.known[name] for _, name in parts if name is not None]
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
        spoken = {"audio_prompt_latents": voices} if voices else {}
        inputs = self.processor(text=prompts, return_tensors="pt", padding=True, padding_side="left", **spoken)
        return PocketJob(self, {key: value.to(self.model.device) for key, value in inputs.items()})

    def codes(self, tokens: Tensor) -> Tensor:
        ends = (tokens[:, -1] == 0).nonzero()
        kept = tokens[: int(ends[0]) + 1] if len(ends) else tokens
        return self.model.denormalize_latents(kept[:, :-1]).T


@dataclass(frozen=True)
class PocketJob:
    """A batch of prompts, as the processor gives them."""

    speaker: PocketAdapter
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
        speaker, config = self.speaker, self.speaker.model.generation_config
        given = {
            name: value
            for name in ("num_flow_steps", "eos_threshold", "min_frames_before_eos")
            if (value := getattr(config, name, None)) is not None
        }
        found = draw_frames(
            speaker.model, self.inputs, recipe, seeds, speaker.draft_model, speaker.frames,
            samplings[0].temperature, on_step=on_step, **given,
        )  # fmt: skip
        return Decoded(found.tokens, found.stats)


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> PocketAdapter:
    """The speaker around a model.

    Raises:
        ArgumentError: For options it does not have, voices that are none, a processor without its codec.
    """
    options, name = dict(config), type(model).__name__
    given = options.pop("voices", {})
    if options:
        wrong = sorted(options)[0]
        raise ArgumentError(f"config has {wrong!r}, which {name} does not have; it may have 'draft_model' and 'voices'")
    if getattr(processor, "audio_tokenizer", None) is None or processor.audio_tokenizer.decoder is None:
        raise ArgumentError(
            f"processor of {name} has no audio tokenizer that decodes; load it with the whole processor"
        )
    if codec is not None:
        raise ArgumentError(f"codec is not possible here: the latents of {name} are those of its processor's")
    if draft_model is not None:
        check_sibling(model, draft_model)
    processor.audio_tokenizer.to(model.device)
    width = voice_width(model)
    beside = {path.stem: path for path in sorted(Path(model.name_or_path or "-").glob("voices/*.safetensors"))}
    known = {str(name): read_voice(str(name), voice, width, processor) for name, voice in given.items()}
    for name, path in beside.items():
        tensors = load_file(path)
        if name not in known and [part.shape[-1] for part in tensors.values()] == [width]:
            known[name] = next(iter(tensors.values())).reshape(-1, width)
    return PocketAdapter(model, processor, known, draft_model)


def voice_width(model: Any) -> int:
    """Numbers per frame of a voice."""
    return int(getattr(model.config, "audio_prompt_dim", model.config.latent_dim))


def read_voice(name: str, voice: Any, width: int, processor: Any) -> Tensor:
    """The latents float [frames, width] of a voice: as they are, from a .safetensors file, or of sound [samples].

    Raises:
        ArgumentError: For anything else.
    """
    what = f"a .safetensors file of latents [frames, {width}], these latents, or sound [samples] at the codec's rate"
    if isinstance(voice, (str, Path)):
        try:
            (voice,) = load_file(voice).values()
        except (OSError, ValueError, SafetensorError) as error:
            raise ArgumentError(
                f"voices[{name!r}]={str(voice)!r} cannot be read ({error}); it must be {what}"
            ) from None
    found = torch.as_tensor(voice, dtype=torch.float32)
    if found.ndim == 1 and width == processor.audio_tokenizer.config.latent_dim:
        heard, tokenizer = processor.feature_extractor(found.numpy()), processor.audio_tokenizer
        if tokenizer.encoder is None:
            raise ArgumentError(f"voices[{name!r}] is sound, and this codec has no encoder; give {what}")
        with torch.no_grad():
            values = heard["input_values"].to(tokenizer.device, tokenizer.dtype)
            encoded = tokenizer.encode(values, heard["padding_mask"].to(tokenizer.device))
        found = encoded.latents[0][encoded.latents_mask[0].bool()].float().cpu()
    if found.ndim != 2 or found.shape[1] != width:
        raise ArgumentError(f"voices[{name!r}] has the shape {list(found.shape)}; it must be {what}")
    return found
