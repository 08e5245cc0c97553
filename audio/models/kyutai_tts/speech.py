"""The speech adapter of Kyutai TTS: texts as words, voices from published files, up to the codes of Mimi."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.codecs.after_reference import AfterReference
from mmspec.audio.codecs.mimi import Mimi
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.depth.frame_windows import MAX_AHEAD
from mmspec.audio.family_options import check_integers, options_of
from mmspec.audio.models.kyutai_tts.decoding import KyutaiFrames, frame_spec
from mmspec.audio.models.kyutai_tts.machine import LAST, Machine
from mmspec.audio.models.kyutai_tts.model import KyutaiTTS, read_model
from mmspec.audio.models.kyutai_tts.script import entries
from mmspec.audio.multi_codebook.delay_pattern import undelay
from mmspec.audio.published_folder import PublishedFolder
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes, refuse_unread
from mmspec.audio.sentencepiece_file import read_sentencepiece
from mmspec.audio.text import split_text
from mmspec.batching.request import PreparedBatch
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.files.checkpoint import read_tensors
from mmspec.heads.head import Head
from mmspec.hf.folder import read_json
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_LETTERS = 600  # of a part
AFTER_AUDIO = 4  # steps, of the original's `final_padding`
CUT = 2  # frames that the original cuts off the end of a recording


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        voice: The file of a voice, as published in kyutai/tts-voices for this model; its name ends in .safetensors.
            Models whose voice is the beginning of the audio take its codes [F, codebooks].
        cfg: How strongly the voice and the text are followed, for models that imitate guidance.
        codebooks: Codebooks to generate; fewer are faster, and sound worse. None is all.
        frames: Frames of a part, at most; 12.5 per second.
        padding_between: Steps between words, at least.
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.
    """

    voice: str | Path | ReferenceCodes | None = None
    cfg: float = 2.0
    codebooks: int | None = None
    frames: int = 750
    padding_between: int = 1
    ahead: int = 0


class KyutaiAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Kyutai TTS.

    Where the voice is the beginning of the audio, guidance is that of codes alone; the original's default is 2.

    Args:
        encode: Makes text ids of a word.
        codec: The codec of its codes.

    Raises:
        ArgumentError: For options that the model does not have.
        ModelError: For a codec or a voice that does not fit.
    """

    recipe = "scd:window=8"
    takes_min_p = True
    voices: Sequence[str] = ()
    draws_voice = False

    def __init__(
        self, model: KyutaiTTS, encode: Callable[[str], Sequence[int]], codec: Codec, options: Options
    ) -> None:
        config = model.config
        self.model, self._encode, self.options, self.ahead = model, encode, options, options.ahead
        self.heads: dict[str, Head] = {}
        self._books = config.codebooks if options.codebooks is None else options.codebooks
        if self._books > config.codebooks:
            raise ArgumentError(f"codebooks={self._books} is not allowed; the model has {config.codebooks}")
        self._codec = check_codec(codec, self._books, config.card)
        self.guided = config.voice is None and "cfg" not in config.tables
        self.sampling = SamplingParams(0.6, 250, guidance_scale=2.0 if self.guided else 1.0)
        if "cfg" not in config.tables and options.cfg != Options.cfg:
            instead = "; pass guidance_scale to a call" if self.guided else ""
            raise ArgumentError(f"cfg={options.cfg:g} is not possible: this model does not imitate guidance{instead}")
        exact = round(options.cfg, 1) == options.cfg
        self._words = {"control": "ok", "cfg": f"{options.cfg:.1f}" if exact else f"{options.cfg:g}"}
        self._words = {name: word for name, word in self._words.items() if name in config.tables}
        if missing := set(config.tables) - set(self._words):
            raise ModelError(f"the model has a condition {min(missing)!r}, which is not supported")
        for name, word in self._words.items():
            known = config.tables[name].words
            if known is not None and word not in known:
                raise ArgumentError(f"{name}={word} is not allowed; it must be one of {', '.join(known)}")
        self._voice: Tensor | None = None  # vectors [S, width], or codes [codebooks, P]
        if config.voice is not None and isinstance(options.voice, (str, Path)):
            self._voice = self._read_voice(Path(options.voice))
        elif config.voice is None and isinstance(options.voice, ReferenceCodes):
            self._voice = options.voice.checked(config.codebooks, config.card, "Kyutai TTS").codes.T[: self._books]
        elif options.voice is not None:
            allowed = "its codes as ReferenceCodes, or call pipe.with_reference_audio"
            allowed = allowed if config.voice is None else "a .safetensors file of kyutai/tts-voices"
            raise ArgumentError(f"voice={shown(options.voice)} is not possible for this model; pass {allowed}")

    @property
    def codec(self) -> Codec:
        """The codec; a voice that is the beginning of the audio is decoded along, and left out."""
        if self._voice is None or self.model.config.voice is not None:
            return self._codec
        return AfterReference(self._codec, self._voice)

    def with_reference_audio(self, reference: ReferenceAudio) -> KyutaiAdapter:
        config = self.model.config
        if config.voice is not None:
            raise ArgumentError(
                "reference audio is not possible for this model; its voices are files of kyutai/tts-voices: pass "
                "config={'voice': FILE}, or --config voice=FILE on the command line"
            )
        refuse_unread(reference, "Kyutai TTS")
        if not isinstance(self._codec, Mimi) or self._codec.codebooks < config.codebooks:
            raise ArgumentError("this codec cannot encode reference audio; pass its codes as config={'voice': ...}")
        codes = self._codec.encode(reference.mono(self._codec.sampling_rate))[:-CUT, : config.codebooks]
        if not len(codes):
            raise ArgumentError(f"the reference audio is too short; it must have more than {CUT} frames of 80 ms")
        options = replace(self.options, voice=ReferenceCodes("", codes))
        other = KyutaiAdapter(self.model, self._encode, self._codec, options)
        other.heads = self.heads
        return other

    def read(self, text: str, voice: str | None) -> PreparedText:
        if self._voice is None:
            raise ArgumentError(
                "a voice is missing; call pipe.with_reference_audio, or pass --voice-file on the command line"
                if self.model.config.voice is None
                else "a voice is missing; pass config={'voice': FILE}, a .safetensors file of kyutai/tts-voices, or "
                "--config voice=FILE on the command line"
            )
        pieces = split_text(text, MAX_LETTERS)
        between, speakers = self.options.padding_between, self.model.config.voice is not None
        parts = [entries(piece, self._encode, between, speakers) for piece in pieces]
        if not any(entry.ids for part in parts for entry in part):
            raise PromptError("the text has no words")
        return PreparedText(parts, texts=pieces)

    def prepare_rows(self, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams]) -> PreparedBatch:
        if recipe.needs_draft_model:
            raise ArgumentError(f"recipe {recipe.name!r} is not possible for Kyutai TTS, which has no draft model")
        config, voice, sampling = self.model.config, self._voice, samplings[0]
        assert voice is not None
        after = config.delay_steps + AFTER_AUDIO
        machines = [Machine(part, config.text_card + 1, config.look_ahead, after) for part in parts]
        length = self.options.frames + config.delay_steps + max(config.delays[: self._books])

        def prompted(model: KyutaiTTS, ahead: int) -> KyutaiFrames:
            voices: Tensor | list[Tensor] = [voice] * len(parts)
            if config.voice is not None:
                with torch.inference_mode():
                    voices = model.voice_states([voice]).expand(len(parts), -1, -1)
            return KyutaiFrames(model, machines, voices, self._words, length, sampling, self._books, ahead)

        spec, size = frame_spec(self.model, length, sampling), 1 + self._books
        return prepare_frame_rows(recipe, self.model, len(parts), prompted, spec, size, self.ahead, heads=self.heads)

    def codes(self, tokens: Tensor) -> Tensor:
        config, ends = self.model.config, (tokens[:, 0] == LAST).nonzero()
        steps = tokens[: int(ends[0]) + 1] if len(ends) else tokens
        return undelay(steps[None, :, 1:], config.delays[: self._books])[0, config.delay_steps :].T

    def _read_voice(self, file: Path) -> Tensor:
        """The vectors of a voice, float [S, width]."""
        found = read_tensors(file, "voice").get("speaker_wavs")
        width = self.model.config.voice
        if found is None or found.ndim != 3 or found.shape[:2] != (1, width) or not found.shape[2]:
            shape = None if found is None else list(found.shape)
            raise ModelError(f"voice {str(file)!r} has speaker_wavs of shape {shape}; it must be [1, {width}, frames]")
        return found[0].T.float()


def is_kyutai_tts(config: Mapping[str, Any]) -> bool:
    """Whether the content of a `config.json` is that of a Kyutai TTS; it names no class."""
    return "tts_config" in config and "depformer_dim" in config


def from_folder(source: PublishedFolder) -> KyutaiAdapter:
    """The adapter of a published folder; see `PublishedFolder`.

    The processor is an object whose method `encode` makes text ids of a word, or the file of a sentencepiece model.
    """
    options = read_options(source.options)
    if source.draft is not None:
        raise ArgumentError("draft_model is not possible for Kyutai TTS: no smaller model was published")
    if source.codec is None:
        raise ArgumentError("Kyutai TTS needs Mimi in the layout of transformers; pass tokenizer='kyutai/mimi'")
    processor = source.processor
    # Texts have a method of that name, too.
    encode = None if isinstance(processor, (str, Path)) else getattr(processor, "encode", None)
    if encode is None:
        if not isinstance(processor, (str, Path, type(None))):
            raise ArgumentError(f"processor={shown(processor)} is not allowed; it needs a method encode, or is a file")
        name = str(read_json(source.folder / "config.json").get("tokenizer_name", "tokenizer_spm_32k_3.model"))
        file = source.folder / Path(name).name if processor is None else Path(processor)
        encode = read_sentencepiece(file, "Kyutai TTS").encode
    return KyutaiAdapter(source.model(read_model), encode, source.codec, options)


def read_options(config: Mapping[str, Any]) -> Options:
    """The options of a pipeline.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    options = options_of(Options, config, "Kyutai TTS", ("codec",))
    ranges = ("frames", 1, 2**20), ("codebooks", 1, 256), ("padding_between", 0, 100), ("ahead", 0, MAX_AHEAD)
    check_integers(options, ranges, optional=("codebooks",))
    if isinstance(options.cfg, bool) or not isinstance(options.cfg, (int, float)) or not 0 <= options.cfg <= 100:
        raise ArgumentError(f"cfg={shown(options.cfg)} is not allowed; it must be a number, 0 to 100")
    if not isinstance(options.voice, (str, Path, ReferenceCodes, type(None))):
        raise ArgumentError(f"voice={shown(options.voice)} is not allowed; it must be a file, ReferenceCodes, or None")
    return options
