"""The music adapter of MAGNeT: texts by T5, a fixed duration, EnCodec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import isdir
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_integer, check_number, shown
from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.codecs import CODECS, codec_of
from mmspec.audio.codecs.audiocraft import read_encodec
from mmspec.audio.models.magnet.checkpoint import CODEC_FILE, read_magnet, read_package
from mmspec.audio.models.magnet.model import MagnetTransformer
from mmspec.audio.models.magnet.process import LAST_GUIDANCE, MagnetProcess, SpanSchedule
from mmspec.batching.closed import PreparedClosed
from mmspec.decoding.step import Watch
from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.folder import folder_of, load_model, read_tokenizer
from mmspec.masked.loop import MaskedBatch
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

OPTIONS = ("text_encoder", "steps", "ahead", "last_guidance_scale")
MAX_SPANS = 10_000  # the published models have 166 and 500
_OWNERS = {"t5": "google-t5", "encodec": "facebook"}  # of names without an owner


@dataclass(frozen=True)
class TextEncoder:
    """T5 and its tokenizer.

    Attributes:
        model: A `T5EncoderModel`.
    """

    model: Any
    tokenizer: Any

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """States [B, S, C] and bool mask [B, S] of texts."""
        words = self.tokenizer(list(texts), padding=True, return_tensors="pt").to(self.model.device)
        states = self.model(input_ids=words["input_ids"], attention_mask=words["attention_mask"]).last_hidden_state
        return states, words["attention_mask"].bool()


class MagnetAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of MAGNeT. It implements `mmspec.audio.adapter.SupportsDuration`.

    Args:
        codec: The codec of its codes.
        steps: Steps of each codebook; None is as published, 20 for the first and 10 for each other.
        ahead: States of each row in a call, see `mmspec.masked.loop.MaskedBatch`.
        last_guidance_scale: The guidance scale where nothing is masked.

    Raises:
        ArgumentError: For a setting that is out of range.
        ModelError: If the codec or the text encoder does not fit.
    """

    recipe = "plain"
    guided = True
    voices: Sequence[str] = ()
    sampling = SamplingParams(3.0, 0, 0.9, 10.0)

    def __init__(
        self,
        model: MagnetTransformer,
        text_encoder: TextEncoder,
        codec: Codec,
        steps: Sequence[int] | None = None,
        ahead: int = 1,
        last_guidance_scale: float = LAST_GUIDANCE,
    ) -> None:
        config = model.config
        check_codec(codec, config.codebooks, config.codes)
        if (width := text_encoder.model.config.d_model) != config.text_dim:
            raise ModelError(f"text_encoder has {width} features, the model reads {config.text_dim}")
        self.spans = int(config.seconds * codec.sampling_rate / codec.hop) // config.span
        if not 1 <= self.spans <= MAX_SPANS:
            raise ModelError(
                f"{config.seconds:g} s of this model are {self.spans} spans of {config.span} frames of its codec; "
                f"they must be 1 to {MAX_SPANS}"
            )
        steps = (20, *[10] * (config.codebooks - 1)) if steps is None else steps
        if not isinstance(steps, (list, tuple)) or len(steps) != config.codebooks:
            raise ArgumentError(f"steps={shown(steps)} is not allowed; give a number for each of {config.codebooks}")
        for count in steps:
            check_integer("steps", count, 1, self.spans)
        check_integer("ahead", ahead, 1, sum(steps))
        check_number("last_guidance_scale", last_guidance_scale, 0, 1e4)
        self.model, self.text_encoder, self.codec = model, text_encoder, codec
        self.steps, self.ahead, self.last_guidance = tuple(steps), ahead, float(last_guidance_scale)

    def with_duration(self, seconds: float) -> MagnetAdapter:
        own = self.model.config.seconds
        if seconds != own:
            raise ArgumentError(
                f"seconds={seconds:g} is not allowed; this model was trained for {own:g} and makes no other duration"
            )
        return self

    def read(self, text: str, voice: str | None) -> PreparedText:
        return PreparedText([text])

    def prepare_rows(self, parts: Sequence[str], recipe: Recipe, samplings: Sequence[SamplingParams]) -> PreparedClosed:
        if recipe.name != "plain":
            raise ArgumentError(
                f"recipe={str(recipe)!r} is not possible here: a masked model fills places in any order; use 'plain', "
                "and config={'ahead': 4} for fewer calls or 'steps' for fewer steps"
            )
        text, mask = self.text_encoder(parts)
        sampling, books = samplings[0], self.model.config.codebooks
        schedule = SpanSchedule(self.steps, self.spans, sampling.guidance_scale, self.last_guidance)
        text, mask = (
            self.model.read_text(text.to(self.model.device), mask.to(self.model.device)),
            mask.to(self.model.device),
        )

        def batch(seeds: Sequence[int], watch: Watch) -> MaskedBatch:
            if watch.measure_entropy:
                raise ArgumentError("measure_entropy is not possible for MAGNeT, whose steps fill many places at once")
            return MaskedBatch(
                MagnetProcess(self.model, text, mask, schedule, sampling, seeds), self.ahead, seeds, watch
            )

        return PreparedClosed(batch, tokens=lambda codes: codes.view(books, len(codes) // books).T)

    def codes(self, tokens: Tensor) -> Tensor:
        frames = tokens.T
        return frames[:, : int((frames >= 0).all(0).long().cumprod(0).sum())]


def from_folder(
    folder: Path, codec: Codec | None, config: Mapping[str, Any], device: str, dtype: torch.dtype | str
) -> MagnetAdapter:
    """The adapter of a published folder.

    Args:
        codec: The codec; None is the one in the folder, or that it names.
        config: `text_encoder`, a folder or Hub id of T5 with its tokenizer, by default the one that the file names;
            `steps`, `ahead` and `last_guidance_scale`, see `MagnetAdapter`.
        device: Where to load the model.
        dtype: Its dtype; "auto" is float32.

    Raises:
        ArgumentError: For unknown options, and parts that are not found.
        ModelError: For missing, broken or unsupported files.
    """
    check_config(config, "MAGNeT", OPTIONS)
    model, named = read_magnet(folder, device, dtype if isinstance(dtype, torch.dtype) else torch.float32)
    options = dict(config)
    encoder = read_text_encoder(options.pop("text_encoder", named), device)
    return MagnetAdapter(model, encoder, codec or read_own_codec(folder, device), **options)


def read_text_encoder(where: str | Path, device: str) -> TextEncoder:
    """T5 in a folder or Hub repository.

    Raises:
        ArgumentError: If it is neither.
        ModelError: If it cannot be loaded.
    """
    folder = part_folder("text_encoder", where)
    model = load_model(folder, device, torch.float32, "T5EncoderModel", unused=("decoder.", "lm_head."))
    return TextEncoder(model, read_tokenizer(folder))


def read_own_codec(folder: Path, device: str) -> Codec:
    """The codec beside a model: its weights, or those that it names.

    Raises:
        ArgumentError: If it names one that is not found.
        ModelError: If it is missing or broken.
    """
    file = folder / CODEC_FILE
    if not file.is_file():
        raise ModelError(f"model {str(folder)!r} has no {CODEC_FILE}; name an EnCodec with tokenizer=")
    settings, tensors = read_package(file, "codec")
    if tensors is None:
        return codec_of(load_model(part_folder("codec", settings["pretrained"]), device, torch.float32, CODECS))
    return codec_of(read_encodec(f"codec {str(file)!r}", settings, tensors, device))


def part_folder(name: str, where: str | Path) -> Path:
    """The folder of a part of a model, downloaded if it is a Hub id.

    Raises:
        ArgumentError: If it is neither a folder nor a Hub id.
    """
    text = str(where)
    if "/" not in text and not isdir(text):
        text = next((f"{owner}/{text}" for start, owner in _OWNERS.items() if text.startswith(start)), text)
    return folder_of(name, text)
