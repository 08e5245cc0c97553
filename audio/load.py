"""Speech pipelines from what transformers saves, and from models that are loaded already."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec import hub
from mmspec.audio.codec import Codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.codecs.snac import is_snac, read_snac
from mmspec.audio.models.codec_lm import chatterbox, cosyvoice
from mmspec.audio.models.codec_lm import speech as grafted
from mmspec.audio.models.codec_lm.speech import TextSide
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.errors import ArgumentError
from mmspec.hf.folder import architecture, load_model, read_processor

# Class of transformers -> what makes a speaker of a model, its processor, a codec or None, options and a draft model.
SPEECH_ADAPTERS = {
    "LlamaForCausalLM": "mmspec.audio.models.flat.speech:make",
    "MistralForCausalLM": "mmspec.audio.models.flat.speech:make",
    "Qwen2ForCausalLM": "mmspec.audio.models.flat.speech:make",
    "Qwen3ForCausalLM": "mmspec.audio.models.flat.speech:make",
    "BarkModel": "mmspec.audio.models.bark.speech:make",
    "MusicgenForConditionalGeneration": "mmspec.audio.models.musicgen.music:make",
    "MusicgenMelodyForConditionalGeneration": "mmspec.audio.models.musicgen.music:make",
    "DiaForConditionalGeneration": "mmspec.audio.models.dia.speech:make",
    "HiggsAudioV2ForConditionalGeneration": "mmspec.audio.models.higgs.speech:make",
    "CsmForConditionalGeneration": "mmspec.audio.models.csm.speech:make",
    "PocketTTSForConditionalGeneration": "mmspec.audio.models.pocket.speech:make",
    "GradiumPhononTTSForConditionalGeneration": "mmspec.audio.models.pocket.speech:make",
    "VibeVoiceForConditionalGeneration": "mmspec.audio.models.vibevoice.speech:make",
}
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
# Hub ids of a family: who drafts for whom.
PAIRS = {
    "HKUSTAudio/Llasa-3B": "HKUSTAudio/Llasa-1B",
    "HKUSTAudio/Llasa-8B": "HKUSTAudio/Llasa-1B",
    "suno/bark": "suno/bark-small",
    "facebook/musicgen-medium": "facebook/musicgen-small",
    "facebook/musicgen-large": "facebook/musicgen-small",
    "facebook/musicgen-melody-large": "facebook/musicgen-melody",
    "facebook/musicgen-stereo-medium": "facebook/musicgen-stereo-small",
    "facebook/musicgen-stereo-large": "facebook/musicgen-stereo-small",
    "facebook/musicgen-stereo-melody-large": "facebook/musicgen-stereo-melody",
}


def is_speech_model(name: str | None) -> bool:
    """Whether a class of transformers, by name, is loaded as a speech pipeline."""
    return name in SPEECH_ADAPTERS


def is_speech_folder(folder: Path) -> bool:
    """Whether a folder is loaded as a speech pipeline."""
    return is_speech_model(architecture(folder)) or published(folder) is not None


def published(folder: Path) -> Callable[..., TextSide] | None:
    """What reads a folder of a family that is no class of transformers, or None."""
    if (folder / chatterbox.FILE).is_file():
        return chatterbox.read
    return cosyvoice.read if cosyvoice.is_cosyvoice(folder) else None


def from_folder(
    folder: Path,
    processor: Any = None,
    codec: Path | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> SpeechPipeline:
    """A pipeline from a folder with a model of transformers, its processor or tokenizer beside it; see `mmspec.load`.

    Args:
        config: For a flat model its `style`; for all, `draft_model`: a folder or Hub id of a smaller model of the
            family, or "pair" for the one that goes with this model by name.

    Raises:
        ArgumentError: For options that are missing or unknown.
        ModelError: For files that are not what they claim to be.
    """
    options = dict(config or {})
    if (read := published(folder)) is not None:
        return from_published(read, folder, processor, codec, options, device, dtype)
    model = load_model(folder, device, dtype)
    if processor is None and any((folder / file).exists() for file in PROCESSORS):
        processor = folder
    if isinstance(processor, (str, Path)):
        processor = read_processor(processor, type(model).__name__)
    draft = options.pop("draft_model", None)
    if draft == "pair":
        draft = smaller(folder)
    if isinstance(draft, (str, Path)):
        draft = load_model(found(draft), device, dtype)
    return from_model(model, processor, codec, {**options, "draft_model": draft})


def from_model(
    model: Any, processor: Any = None, codec: Path | None = None, config: Mapping[str, Any] | None = None
) -> SpeechPipeline:
    """A pipeline around a model where it is; see `from_folder`.

    Raises:
        ArgumentError: As `from_folder`.
        ModelError: As `from_folder`.
    """
    options = dict(config or {})
    draft_model = options.pop("draft_model", None)
    given = options.pop("codec", None)
    if codec is not None:
        given = read_codec(codec, str(model.device))
    module, _, name = SPEECH_ADAPTERS[type(model).__name__].partition(":")
    make: Callable[..., Any] = getattr(importlib.import_module(module), name)
    if processor is None:
        raise ArgumentError(f"{type(model).__name__} needs its processor or tokenizer to read texts; pass processor=")
    voice: Codec | None = given
    return SpeechPipeline(make(model, processor, voice, options, draft_model))


def from_published(
    read: Callable[..., TextSide],
    folder: Path,
    tokenizer: Any,
    codec: Path | None,
    options: dict[str, Any],
    device: str,
    dtype: torch.dtype,
) -> SpeechPipeline:
    """A pipeline of a family whose sound the caller's codec makes.

    Raises:
        ArgumentError: As `from_folder`.
        ModelError: As `from_folder`.
    """
    draft, voice, given = (options.pop(name, None) for name in ("draft_model", "voice", "codec"))
    side = read(folder, tokenizer, voice, device, dtype)
    smaller = None
    if draft is not None:
        other = found(draft)
        smaller = (published(other) or read)(other, tokenizer, voice, device, dtype)
    return SpeechPipeline(grafted.make(side, given if codec is None else read_codec(codec, device), smaller, options))


def read_codec(folder: Path, device: str) -> Codec:
    """A codec of transformers, or a SNAC as it is published.

    Raises:
        ModelError: When it cannot be loaded.
    """
    return read_snac(folder, device) if is_snac(folder) else codec_of(load_model(folder, device, torch.float32))


def smaller(folder: Path) -> str:
    """The Hub id of the model that drafts for the one in a folder of the Hub's cache.

    Raises:
        ArgumentError: When none is known.
    """
    names = [part.removeprefix("models--").replace("--", "/") for part in folder.resolve().parts]
    for name in names:
        if name in PAIRS:
            return PAIRS[name]
    known = ", ".join(f"{big} ({small})" for big, small in PAIRS.items())
    raise ArgumentError(f"draft_model='pair' is not possible for {str(folder)!r}; known are {known}: name a folder")


def found(draft: str | Path) -> Path:
    """A folder, fetched from the Hub where it is none.

    Raises:
        ArgumentError: When it is neither.
    """
    path: Path | None = Path(draft) if Path(draft).is_dir() else hub.fetch(str(draft))
    if path is None:
        raise ArgumentError(f"draft_model={str(draft)!r} is no folder and no Hub id")
    return path
