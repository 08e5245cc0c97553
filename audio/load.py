"""Speech and music pipelines from model folders and from loaded models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.arguments import shown
from mmspec.audio.adapter import SpeechAdapter
from mmspec.audio.codec import Codec
from mmspec.audio.codecs import CODECS, codec_of
from mmspec.audio.codecs.hificodec import config_of, read_hificodec
from mmspec.audio.codecs.qwen3_tts import is_codec as is_qwen3_tts_codec
from mmspec.audio.codecs.qwen3_tts import read_codec as read_qwen3_tts_codec
from mmspec.audio.codecs.snac import is_snac, read_snac
from mmspec.audio.codecs.soprano import is_soprano, read_soprano
from mmspec.audio.models.codec_lm import chatterbox, chatterbox_multilingual, chatterbox_turbo, cosyvoice
from mmspec.audio.models.codec_lm.speech import TextFrontend
from mmspec.audio.models.codec_lm.speech import make as make_codec_lm
from mmspec.audio.models.kyutai_tts.speech import is_kyutai_tts
from mmspec.audio.models.magnet.checkpoint import is_magnet
from mmspec.audio.models.magnet.checkpoint import read_magnet as read_magnet_model
from mmspec.audio.models.magnet.music import from_folder as read_magnet
from mmspec.audio.models.zonos2.config import FILE as ZONOS2_FILE
from mmspec.audio.models.zonos2.config import is_zonos2
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.published_folder import PublishedFolder
from mmspec.audio.sentencepiece_file import is_sentencepiece
from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError
from mmspec.hf.attention import refuse_flash_attention_inside
from mmspec.hf.folder import architecture, folder_of, load_model, read_json, read_processor

# Model class -> function that makes its `SpeechAdapter` from the model, its processor, a codec or None, the remaining
# options of `config`, and a draft model or None.
SPEECH_ADAPTERS = {
    "LlamaForCausalLM": "mmspec.audio.models.flat.speech:make",
    "MistralForCausalLM": "mmspec.audio.models.flat.speech:make",
    "Qwen2ForCausalLM": "mmspec.audio.models.flat.speech:make",
    "Qwen3ForCausalLM": "mmspec.audio.models.flat.speech:make",
    "GemmaForCausalLM": "mmspec.audio.models.flat.speech:make",
    "Gemma3ForCausalLM": "mmspec.audio.models.flat.speech:make",
    "GPT2LMHeadModel": "mmspec.audio.models.flat.speech:make",
    "PhiForCausalLM": "mmspec.audio.models.flat.speech:make",
    "Phi3ForCausalLM": "mmspec.audio.models.flat.speech:make",
    "Lfm2ForCausalLM": "mmspec.audio.models.flat.speech:make",
    "BarkModel": "mmspec.audio.models.bark.speech:make",
    "MusicgenForConditionalGeneration": "mmspec.audio.models.musicgen.music:make",
    "MusicgenMelodyForConditionalGeneration": "mmspec.audio.models.musicgen.music:make",
    "DiaForConditionalGeneration": "mmspec.audio.models.dia.speech:make",
    "HiggsAudioV2ForConditionalGeneration": "mmspec.audio.models.higgs.speech:make",
    "CsmForConditionalGeneration": "mmspec.audio.models.csm.speech:make",
    "PocketTTSForConditionalGeneration": "mmspec.audio.models.pocket.speech:make",
    "GradiumPhononTTSForConditionalGeneration": "mmspec.audio.models.pocket.speech:make",
    "VibeVoiceForConditionalGeneration": "mmspec.audio.models.vibevoice.speech:make",
    "Qwen3OmniMoeForConditionalGeneration": "mmspec.audio.models.qwen3_omni.speech:make",
    "Qwen2_5OmniForConditionalGeneration": "mmspec.audio.models.qwen2_5_omni.speech:make",
}
# Class in config.json that transformers does not have -> function that reads a `PublishedFolder` and returns the
# `SpeechAdapter`.
PUBLISHED = {
    "Qwen3TTSForConditionalGeneration": "mmspec.audio.models.qwen3_tts.speech:from_folder",
    "HeartMuLa": "mmspec.audio.models.heartmula.speech:from_folder",
    "MossTTSDelayModel": "mmspec.audio.models.moss_tts.speech:from_folder",
    "MossTTSLocalModel": "mmspec.audio.models.moss_local.speech:from_folder",
    "HiggsMultimodalQwen3ForConditionalGeneration": "mmspec.audio.models.higgs_v3.speech:from_folder",
    "FishQwen3OmniForCausalLM": "mmspec.audio.models.fish_s2.speech:from_folder",
    "StepAudio2ForCausalLM": "mmspec.audio.models.flat.step_audio2:from_folder",
    "MiniCPMO": "mmspec.audio.models.codec_lm.minicpm_o:from_folder",
    "KyutaiTTS": "mmspec.audio.models.kyutai_tts.speech:from_folder",
    "Lfm2AudioForConditionalGeneration": "mmspec.audio.models.lfm2_audio.speech:from_folder",
    "PersonaPlex": "mmspec.audio.models.personaplex.speech:from_folder",
    "Zonos2": "mmspec.audio.models.zonos2.speech:from_folder",
}
# The names under which folders whose config.json names no class are in `PUBLISHED`; `model_type` tells some of them.
KYUTAI_TTS, ZONOS2 = "KyutaiTTS", "Zonos2"
NAMED = {"fish_qwen3_omni": "FishQwen3OmniForCausalLM", "personaplex": "PersonaPlex"}
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
# Hub id of a model -> Hub id of the smaller model of its family that drafts for it.
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
    "Qwen/Qwen3-TTS-12Hz-1.7B-Base": "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice": "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
}


def is_speech_model(name: str | None) -> bool:
    """Whether a model class of transformers, by name, is loaded as a speech pipeline."""
    return name in SPEECH_ADAPTERS


def is_speech_folder(folder: Path) -> bool:
    """Whether a folder is loaded as a speech pipeline."""
    known = published(folder) is not None or codec_lm_reader(folder) is not None or is_magnet(folder)
    return is_speech_model(architecture(folder)) or known


def published(folder: Path) -> str | None:
    """The key of a folder in `PUBLISHED`, or None."""
    config = read_json(folder / "config.json")
    name = KYUTAI_TTS if is_kyutai_tts(config) else NAMED.get(str(config.get("model_type"))) or architecture(folder)
    if name in PUBLISHED:
        return name
    return ZONOS2 if is_zonos2(read_json(folder / ZONOS2_FILE)) else None


def preferred_weights(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Weights that options of `config` ask for, of a repository that holds several models: the first that it has."""
    options = config or {}
    if "language" not in options:
        return ()
    version = f"_{options.get('t3_model')}."
    return tuple(sorted(chatterbox_multilingual.FILES, key=lambda file: version not in file))


def codec_lm_reader(folder: Path, options: Mapping[str, Any] | None = None) -> Callable[..., TextFrontend] | None:
    """The function that reads a published Chatterbox or CosyVoice folder, or None for any other folder.

    Args:
        options: Those of `config`: a `language` is that of Chatterbox Multilingual, which has Chatterbox's repository.
    """
    english = (folder / chatterbox.FILE).is_file()
    if chatterbox_multilingual.is_multilingual(folder) and ("language" in (options or {}) or not english):
        return chatterbox_multilingual.read
    if english:
        return chatterbox.read
    if chatterbox_turbo.is_turbo(folder):
        return chatterbox_turbo.read
    return cosyvoice.read if cosyvoice.is_cosyvoice(folder) else None


def from_folder(
    folder: Path,
    processor: Any = None,
    codec: Path | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: torch.dtype | str = torch.float32,
) -> SpeechPipeline:
    """A pipeline from a folder with a model of transformers, or a published Chatterbox or CosyVoice folder.

    Args:
        processor: The model's processor or tokenizer, or a folder or Hub id of it; None is the one in `folder`.
        codec: A folder of the codec, for models without one; None otherwise.
        config: The options of the model's adapter, such as `style` of a flat model; for all models, `draft_model`: a
            folder or Hub id of a smaller model of the family, or "pair" for the one listed in `PAIRS`.
        device: Where to load the model.
        dtype: Its dtype, or "auto" for that of the files.

    Raises:
        ArgumentError: For missing or unknown options.
        ModelError: For missing, broken or unsupported files.
    """
    options = dict(config or {})
    if (read := codec_lm_reader(folder, options)) is not None:
        own = dtype if isinstance(dtype, torch.dtype) else torch.float32  # the published files have several dtypes
        return from_codec_lm_folder(read, folder, processor, codec, options, device, own)
    if is_magnet(folder):
        if processor is not None:
            raise ArgumentError("processor was given; name the folder of T5 with config={'text_encoder': ...} instead")
        own_codec = given_codec(options) if codec is None else read_codec(codec, device)
        return SpeechPipeline(read_magnet(folder, own_codec, options, device, dtype))
    if (name := published(folder)) is not None:
        return from_published(resolve(PUBLISHED[name]), folder, processor, codec, options, device, dtype)
    model = load_model(folder, device, dtype, SPEECH_ADAPTERS)
    if processor is None and any((folder / file).exists() for file in PROCESSOR_FILES):
        processor = folder
    if isinstance(processor, (str, Path)) and not is_sentencepiece(processor):
        processor = read_processor(processor, type(model).__name__)
    if codec is None and "codec" not in options and is_soprano(folder):
        codec, options = folder, {"style": "soprano", **options}
    draft = options.pop("draft_model", None)
    if isinstance(draft, str) and draft == "pair":
        draft = smaller_model(folder)
    if isinstance(draft, (str, Path)):
        found = folder_of("draft_model", draft)
        if is_magnet(found):
            draft, _ = read_magnet_model(found, device, model.dtype)
        else:
            draft = load_model(found, device, dtype, SPEECH_ADAPTERS)
    return from_model(model, processor, codec, {**options, "draft_model": draft})


def from_model(
    model: Any, processor: Any = None, codec: Path | None = None, config: Mapping[str, Any] | None = None
) -> SpeechPipeline:
    """A pipeline around a loaded model, which stays on its device; see `from_folder`.

    Raises:
        ArgumentError: For missing or unknown options.
        ModelError: For a codec or a draft model that does not fit.
    """
    refuse_flash_attention_inside(model)
    options = dict(config or {})
    draft_model = options.pop("draft_model", None)
    if draft_model is not None and not isinstance(draft_model, torch.nn.Module):
        raise ArgumentError(f"draft_model={shown(draft_model)} is not allowed; it must be a loaded model too")
    own_codec = given_codec(options)
    if codec is not None:
        own_codec = read_codec(codec, str(model.device))
    make: Callable[..., Any] = resolve(SPEECH_ADAPTERS[type(model).__name__])
    if processor is None:
        raise ArgumentError(f"{type(model).__name__} needs its processor or tokenizer to read texts; pass processor=")
    return SpeechPipeline(make(model, processor, own_codec, options, draft_model))


def from_published(
    read: Callable[[PublishedFolder], SpeechAdapter],
    folder: Path,
    processor: Any,
    codec: Path | None,
    options: dict[str, Any],
    device: str,
    dtype: torch.dtype | str,
) -> SpeechPipeline:
    """A pipeline from a published folder of a class in `PUBLISHED`.

    Args:
        read: The function that reads the folder.
        processor: A tokenizer, or its path; None is the one in the folder.
        codec: A folder of the codec; None takes the option `codec`, or else the one in the folder.
        options: `codec`, `draft_model`, and the model's own.
        device: Where to load the model.

    Raises:
        ArgumentError: For missing or unknown options.
        ModelError: For missing, broken or unsupported files.
    """
    draft, own_codec = options.pop("draft_model", None), given_codec(options)
    if isinstance(draft, str) and draft == "pair":
        draft = smaller_model(folder)
    draft = None if draft is None else folder_of("draft_model", draft)
    own_codec = own_codec if codec is None else read_codec(codec, device)
    return SpeechPipeline(read(PublishedFolder(folder, processor, own_codec, options, draft, device, dtype)))


def from_codec_lm_folder(
    read: Callable[..., TextFrontend],
    folder: Path,
    tokenizer: Any,
    codec: Path | None,
    options: dict[str, Any],
    device: str,
    dtype: torch.dtype,
) -> SpeechPipeline:
    """A pipeline from a published Chatterbox or CosyVoice folder; the caller provides the codec.

    Args:
        read: The function that reads the folder, see `codec_lm_reader`.
        tokenizer: A tokenizer, or its path; None is the one in the folder.
        codec: A folder of the codec; None takes the option `codec`.
        options: `codec`, `voice`, `draft_model`, and the model's own.
        device: Where to load the model.

    Raises:
        ArgumentError: For missing or unknown options.
        ModelError: For missing, broken or unsupported files.
    """
    draft, voice, own_codec = options.pop("draft_model", None), options.pop("voice", None), given_codec(options)
    own = dict(options)
    side = read(folder, tokenizer, voice, device, dtype, options)
    draft_side = None
    if draft is not None:
        other = folder_of("draft_model", draft)
        draft_side = (codec_lm_reader(other, own) or read)(other, tokenizer, voice, device, dtype, own)
    own_codec = own_codec if codec is None else read_codec(codec, device)
    return SpeechPipeline(make_codec_lm(side, own_codec, draft_side, options))


def given_codec(options: dict[str, Any]) -> Codec | None:
    """The option `codec`, which is removed from the others.

    Raises:
        ArgumentError: If it is no codec.
    """
    codec: Codec | None = options.pop("codec", None)
    if codec is not None and not all(hasattr(codec, name) for name in ("codebooks", "codebook_size")):
        raise ArgumentError(
            f"codec={shown(codec)} is not allowed; pass a mmspec.audio.codec.Codec, or the folder or Hub id of a codec "
            "as tokenizer="
        )
    return codec


def read_codec(folder: Path, device: str) -> Codec:
    """A codec of transformers, a published SNAC, HiFi-Codec or codec of Qwen3-TTS, or the decoder of a Soprano.

    Raises:
        ModelError: If it cannot be loaded.
    """
    if is_qwen3_tts_codec(folder):
        return read_qwen3_tts_codec(folder, device)
    if is_soprano(folder):
        return read_soprano(folder, device)
    if config_of(folder) is not None:
        return read_hificodec(folder, device)
    return read_snac(folder, device) if is_snac(folder) else codec_of(load_model(folder, device, torch.float32, CODECS))


def smaller_model(folder: Path) -> str:
    """The Hub id of the model that drafts for the one in a folder of the Hub's cache, by `PAIRS`.

    Raises:
        ArgumentError: For a model that is not in `PAIRS`.
    """
    names = [part.removeprefix("models--").replace("--", "/") for part in folder.resolve().parts]
    for name in names:
        if name in PAIRS:
            return PAIRS[name]
    pairs = ", ".join(f"{big} ({small})" for big, small in PAIRS.items())
    raise ArgumentError(
        f"draft_model='pair' is not possible for {str(folder)!r}; pairs are known for {pairs}: name a folder or Hub id"
    )
