"""The speech adapter of ZONOS2: texts as bytes, a voice as its embedding, the ids that condition a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.arguments import check_number, shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.draft_model import check_draft
from mmspec.audio.family_options import check_integers, options_of
from mmspec.audio.models.zonos2.config import FIRST_BYTE, Zonos2Config
from mmspec.audio.models.zonos2.decoding import Repetition, Zonos2Request, audio_end, plan
from mmspec.audio.models.zonos2.model import Zonos2, read_model
from mmspec.audio.multi_codebook.delay_pattern import delay, linear_delays, undelay
from mmspec.audio.positions import check_positions
from mmspec.audio.published_folder import PublishedFolder
from mmspec.audio.text import split_text
from mmspec.decoding.assembly import PreparedRows
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import describe
from mmspec.files.inputs import check_regular
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

DRAFT_SETTINGS = (
    *("codebooks", "codes", "end", "pad", "text", "voice"),
    *("rates", "qualities", "marks_background", "marks_accuracy"),
)
"""What a draft model's configuration must have in common with the model's, whose prompts it reads."""

MAX_LETTERS = 120  # of a part, about 8 seconds
BEGIN, END = 2, 3  # of a text
DEFAULT_QUALITY = {"trailing_silence_s": 3}  # where the model has it
# 0.2 seconds of silence in the codes of DAC, with which a prompt ends: two frames, 14 times a third, and the last.
SILENCE = (
    (568, 778, 338, 524, 967, 360, 728, 550, 90),
    (568, 778, 10, 674, 364, 981, 741, 378, 731),
    *((568, 804, 10, 674, 364, 981, 568, 378, 731),) * 14,
    (568, 778, 721, 842, 264, 974, 989, 507, 308),
)


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        voice: The embedding of a voice, float [width], or a .npy file of it. None draws one for each part.
        clean_speaker_background: Whether the voice's recording has no noise.
        accurate_mode: Whether to stay close to the voice; the original calls the opposite expressive.
        speaking_rate_bucket: Which of the model's rates of speech; None leaves it to the model.
        quality_buckets: Which value of each of the model's features of quality; None is the original's default.
        repetition_penalty: See `mmspec.audio.models.zonos2.decoding.Repetition`.
        repetition_window: The same.
        repetition_codebooks: The same.
        frames: Frames of a part, at most; 86 per second.
    """

    voice: Any = None
    clean_speaker_background: bool = False
    accurate_mode: bool = True
    speaking_rate_bucket: int | None = None
    quality_buckets: Mapping[str, int] | None = None
    repetition_penalty: float = Repetition.penalty
    repetition_window: int = Repetition.window
    repetition_codebooks: int = Repetition.codebooks
    frames: int = 1016


class Zonos2Adapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of ZONOS2.

    Texts are read as they are written. The original's server first writes out numbers and dates, by grammars of
    NVIDIA's NeMo.

    Args:
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.

    Raises:
        ArgumentError: For options that the model does not have.
        ModelError: For a codec that does not fit.
    """

    recipe = "scd:window=4"
    takes_min_p = True
    guided = False
    voices: Sequence[str] = ()
    sampling = SamplingParams(1.15, 106, min_p=0.18)

    def __init__(self, model: Zonos2, codec: Codec, options: Options, draft_model: Zonos2 | None = None) -> None:
        config = model.config
        self.model, self.codec, self.options = model, check_codec(codec, config.codebooks, config.codes), options
        self.draft_model = draft_model
        if config.codebooks > len(SILENCE[0]) or config.codes <= max(map(max, SILENCE)):
            raise ModelError(
                f"the model has {config.codebooks} codebooks of {config.codes}, which are not those of DAC"
            )
        self._voice = None if options.voice is None else read_voice(options.voice, config)
        self._before = [*self._voice_ids(), *self._rate_ids(), *self._quality_ids()]

    def read(self, text: str, voice: str | None) -> PreparedText:
        pieces = split_text(text, MAX_LETTERS)
        for piece in pieces:
            check_positions(len(self.prompt(piece)), self._columns, self.model.config.positions)
        return PreparedText(pieces, texts=pieces)

    def prompt(self, text: str) -> Tensor:
        """The columns int64 [T, K + 1] of a prompt, codes and an id of text; a voice stands in the first."""
        config = self.model.config
        ids = [*self._before, BEGIN, *(FIRST_BYTE + byte for byte in text.encode()), END]
        silence = torch.tensor(SILENCE)[None, :, : config.codebooks]
        sound = delay(silence, linear_delays(config.codebooks), config.pad, config.pad)[0, : len(SILENCE)]
        columns = torch.full((len(ids) + len(SILENCE), config.codebooks + 1), config.pad)
        columns[:, -1] = torch.tensor([*ids, *[config.text] * len(SILENCE)])
        columns[len(ids) :, :-1] = sound
        return columns

    def prepare_rows(self, parts: Sequence[str], recipe: Recipe, samplings: Sequence[SamplingParams]) -> PreparedRows:
        model, options = self.model, self.options
        prompts = [self.prompt(part) for part in parts]
        longest = max(map(len, prompts))
        columns = torch.zeros(len(prompts), longest, model.config.codebooks + 1, dtype=torch.int64)
        mask = torch.zeros(columns.shape[:2], dtype=torch.bool)
        for row, own in enumerate(prompts):
            columns[row, longest - len(own) :], mask[row, longest - len(own) :] = own, True
        window = min(options.repetition_window, self._columns)
        repetition = Repetition(options.repetition_penalty, window, options.repetition_codebooks)
        request = Zonos2Request(
            columns.to(model.device), mask.to(model.device), self._voice, self._columns, samplings[0], repetition
        )
        draft = None if self.draft_model is None else plan(self.draft_model, request)
        return plan(model, request).prepare(model, recipe, len(parts), draft, self.codec.tables)

    def codes(self, tokens: Tensor) -> Tensor:
        config = self.model.config
        frames = undelay(tokens[None], linear_delays(config.codebooks))[0][: audio_end(tokens, config)]
        return frames.clamp(max=config.codes - 1).T  # other ids count as the last code, as in the original

    @property
    def _columns(self) -> int:
        """Columns of a part, at most."""
        return self.options.frames + self.model.config.codebooks - 1

    def _voice_ids(self) -> list[int]:
        """The ids of text of the column of the voice, and of those that tell of it."""
        config, options = self.model.config, self.options
        for name, has, usual in (
            ("clean_speaker_background", config.marks_background, False),
            ("accurate_mode", config.marks_accuracy, True),
        ):
            if getattr(options, name) != usual and (self._voice is None or not has):
                needed = "a voice" if self._voice is None else "a model with such a mark, which this one is not"
                raise ArgumentError(f"{name}={not usual} is not possible; it needs {needed}")
        if self._voice is None:
            return []
        background = [config.clean + (not options.clean_speaker_background)] if config.marks_background else []
        accurate = [config.clean + 2] if config.marks_accuracy and options.accurate_mode else []
        return [config.text, *background, *accurate]

    def _rate_ids(self) -> list[int]:
        rate, config = self.options.speaking_rate_bucket, self.model.config
        if rate is None:
            return []
        if rate >= config.rates:
            raise ArgumentError(f"speaking_rate_bucket={rate} is not allowed; the model has {config.rates} rates")
        return [config.first_rate + rate]

    def _quality_ids(self) -> list[int]:
        config, asked = self.model.config, self.options.quality_buckets
        counts = dict(config.qualities)
        if asked is None:
            asked = {name: value for name, value in DEFAULT_QUALITY.items() if value < counts.get(name, 0)}
        for name, value in asked.items():
            if name not in counts:
                known = ", ".join(counts) or "none"
                raise ArgumentError(f"quality_buckets has {shown(name)}, which the model does not have; it has {known}")
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < counts[name]:
                raise ArgumentError(
                    f"quality_buckets has {name}={shown(value)}; it must be an integer, 0 to {counts[name] - 1}"
                )
        ids, first = list[int](), config.first_quality
        for name, count in config.qualities:
            ids += [first + asked[name]] if name in asked else []
            first += count
        return ids


def read_voice(voice: Any, config: Zonos2Config) -> Tensor:
    """The embedding of a voice, float32 [width].

    Raises:
        ArgumentError: If it is none, or the model has no voices.
    """
    found = voice
    if isinstance(voice, (str, Path)):
        try:
            check_regular(Path(voice))
            found = np.load(voice, allow_pickle=False)
        except Exception as error:  # NumPy raises several
            raise ArgumentError(f"voice={shown(str(voice))} cannot be read: {describe(error)}") from None
    if config.voice is None:
        raise ArgumentError("voice is not possible: this model has no voices")
    if isinstance(found, np.ndarray) and found.dtype.kind == "f":
        found = torch.from_numpy(found.astype(np.float64))
    wanted = f"an embedding of {config.voice} floats, or a .npy file of it"
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.squeeze().shape != (config.voice,):
        raise ArgumentError(f"voice={shown(voice)} is not allowed; it must be {wanted}")
    found = found.detach().squeeze().float()
    if not bool(found.isfinite().all()):
        raise ArgumentError("voice has a value that is not finite")
    return found


def from_folder(source: PublishedFolder) -> Zonos2Adapter:
    """The adapter of a published folder; see `PublishedFolder`."""
    options = read_options(source.options)
    if source.processor is not None:
        raise ArgumentError(f"processor={shown(source.processor)} is not possible; ZONOS2 reads bytes: leave it out")
    if source.codec is None:
        raise ArgumentError("ZONOS2 comes without a codec; pass a DAC's folder or Hub id as tokenizer=")
    model, draft = source.model(read_model), source.draft_model(read_model)
    draft = None if draft is None else check_draft(draft, model, DRAFT_SETTINGS)
    return Zonos2Adapter(model, source.codec, options, draft)


def read_options(config: Mapping[str, Any]) -> Options:
    """The options of a pipeline.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    options = options_of(Options, config, "ZONOS2", ("codec", "draft_model"))
    limits = ("repetition_window", 0, 2**20), ("repetition_codebooks", 0, 2**20)
    check_integers(options, (("frames", 1, 2**20), *limits))
    check_integers(options, (("speaking_rate_bucket", 0, 2**20),), optional=("speaking_rate_bucket",))
    check_number("repetition_penalty", options.repetition_penalty, 1, 100)
    for name in ("clean_speaker_background", "accurate_mode"):
        if not isinstance(getattr(options, name), bool):
            raise ArgumentError(f"{name}={shown(getattr(options, name))} is not allowed; it must be True or False")
    if not isinstance(options.quality_buckets, (Mapping, type(None))):
        raise ArgumentError(
            f"quality_buckets={shown(options.quality_buckets)} is not allowed; it must be a mapping, or None"
        )
    return options
