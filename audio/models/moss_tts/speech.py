"""The speech adapter of MOSS-TTS with delays: texts in its message format, voices as codes, up to its codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.family_options import options_of
from mmspec.audio.models.moss_tts.decoding import END, MossRequest, MossTTS, plan, read_config
from mmspec.audio.multi_codebook.decoding import ColumnDecodingJob
from mmspec.audio.multi_codebook.delay_pattern import delay, linear_delays, undelay
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.audio.text import split_text
from mmspec.checkpoint import building, check_depths, check_tensors, describe, read_model_tensors
from mmspec.errors import ArgumentError
from mmspec.hf.folder import BUFFERS, LOAD_ERRORS, read_json
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_LETTERS = 300  # of a part
TEXT_TEMPERATURE = 1.5  # of the tokens that tell where audio ends
USER = """<user_inst>
- Reference(s):
{reference}
- Instruction:
{instruction}
- Tokens:
{tokens}
- Quality:
{quality}
- Sound Event:
None
- Ambient Sound:
None
- Language:
{language}
- Text:
{text}
</user_inst>"""


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        language: A language in words, such as "French"; None leaves it to the model.
        instruction: How to speak; or None.
        quality: The quality of the recording, in words; or None.
        tokens: How many frames the text should take, which sets its duration; or None.
        frames: Frames of a part, at most.
        voice: The voice that is cloned, its codes int64 [F, K]; its transcript is not used. None draws one.
    """

    language: str | None = None
    instruction: str | None = None
    quality: str | None = None
    tokens: int | None = None
    frames: int = 750
    voice: ReferenceCodes | None = None


@dataclass(frozen=True)
class MossPart:
    """A part of a text.

    Attributes:
        text: The text.
        voice: The codes of the voice, int64 [F, K], or None.
    """

    text: str
    voice: Tensor | None


class MossAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of MOSS-TTS with delays.

    Without a voice, the later parts of a text are spoken with the voice of the first.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        codec: The codec of its codes.
        options: The options.
        draft_model: A smaller model of the family, or None.
    """

    recipe = "scd:window=4"
    guided = False
    own_truncation = True
    voices: Sequence[str] = ()
    sampling = SamplingParams(1.7, 25, 0.8)

    def __init__(
        self, model: MossTTS, tokenizer: Any, codec: Codec, options: Options, draft_model: MossTTS | None = None
    ) -> None:
        check_codec(codec, model.config.codebooks, model.config.codes)
        self.model, self.tokenizer, self.codec, self.options = model, tokenizer, codec, options
        self.draft_model = draft_model
        self._voice = None if options.voice is None else self._checked(options.voice.codes)

    def read(self, text: str, voice: str | None) -> PreparedText:
        pieces = split_text(text, MAX_LETTERS)
        return PreparedText([MossPart(piece, self._voice) for piece in pieces], texts=pieces)

    @property
    def draws_voice(self) -> bool:
        return self._voice is None

    def continue_voice(self, part: MossPart, first: MossPart, tokens: Tensor) -> MossPart:
        codes = self.codes(tokens).T
        return replace(part, voice=codes) if len(codes) else part

    def prompt(self, part: MossPart) -> tuple[Tensor, Tensor]:
        """Text ids int64 [T] and codes int64 [T, K] of a prompt, which ends with the token that begins audio."""
        config, options = self.model.config, self.options
        content = USER.format(
            reference="None" if part.voice is None else "[S1]:\n<|audio|>",
            instruction=options.instruction,
            tokens=options.tokens,
            quality=options.quality,
            language=options.language,
            text=part.text,
        )
        before, placeholder, after = content, "", ""
        if part.voice is not None:
            before, placeholder, after = content.partition("<|audio|>")
            audio = [config.user_slot] * (len(part.voice) + config.codebooks - 1)
            names = self.tokenizer.convert_ids_to_tokens([config.start, *audio, config.slots[END]])
            placeholder = "".join(names)
        chat = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": before + placeholder + after}], add_generation_prompt=True, tokenize=False
        )
        text = torch.tensor([*self.tokenizer.encode(chat), config.start])
        codes = torch.full((len(text), config.codebooks), config.codes)
        if part.voice is not None:
            delayed = delay(part.voice[None], linear_delays(config.codebooks), config.codes, config.codes)[0]
            first = int((text == config.start).nonzero()[0]) + 1
            codes[first : first + len(delayed)] = delayed
        return text, codes

    def job(self, parts: Sequence[MossPart], recipe: Recipe, samplings: Sequence[SamplingParams]) -> ColumnDecodingJob:
        model, config = self.model, self.model.config
        prompts = [self.prompt(part) for part in parts]
        longest = max(len(text) for text, _ in prompts)
        text = torch.full((len(parts), longest), config.pad)
        codes = torch.full((len(parts), longest, config.codebooks), config.codes)
        mask = torch.zeros(text.shape, dtype=torch.bool)
        for row, (ids, columns) in enumerate(prompts):
            first = longest - len(ids)
            text[row, first:], codes[row, first:], mask[row, first:] = ids, columns, True
        request = MossRequest(
            text.to(model.device),
            codes.to(model.device),
            mask.to(model.device),
            self.options.frames + config.codebooks,
            samplings[0],
            TEXT_TEMPERATURE,
        )
        draft = None if self.draft_model is None else plan(self.draft_model, request)
        return ColumnDecodingJob(model, plan(model, request), draft, self.tables)

    def tables(self) -> list[Tensor]:
        """The vectors of the cells of a column; the tokens of text, in the first, have none, and padding has none."""
        tables = [table[: self.model.config.codes] for table in self.codec.tables()]
        return [tables[0][:0], *tables]

    def codes(self, tokens: Tensor) -> Tensor:
        ends = (tokens[:, 0] == END).nonzero()
        tokens = tokens[: int(ends[0])] if len(ends) else tokens
        config = self.model.config
        frames = undelay(tokens[None, :, 1:], linear_delays(config.codebooks))[0]
        pads = (frames == config.codes).any(1).nonzero()  # of a row that ended before its last codebook
        # Without the column of its end, a row that is cut has room for a frame more.
        return frames[: int(pads[0]) if len(pads) else self.options.frames].T

    def _checked(self, codes: Tensor) -> Tensor:
        config, shape = self.model.config, list(codes.shape)
        integers = not codes.is_floating_point() and codes.ndim == 2 and shape[1] == config.codebooks and shape[0] > 0
        if not integers or bool(((codes < 0) | (codes >= config.codes)).any()):
            raise ArgumentError(
                f"voice has codes of shape {shape} and type {codes.dtype}; they must be integers [frames, "
                f"{config.codebooks}], 0 to {config.codes - 1}"
            )
        return codes.cpu().long()


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> MossTTS:
    """The model in a published folder, in evaluation mode.

    Args:
        folder: Contains `config.json` and the weights, as `.safetensors`.
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the files.

    Raises:
        ModelError: If files are missing, damaged or of another model.
    """
    what, found = f"model {str(folder)!r}", read_json(folder / "config.json")
    state = read_model_tensors(folder)
    check_depths(what, found, len(state))
    with building(what, "a MOSS-TTS with delays"):
        model = MossTTS(read_config(found, what))
    used = {name: value for name, value in state.items() if not BUFFERS.search(name)}
    check_tensors(what, used, model)
    own = None if isinstance(dtype, str) else dtype
    model.load_state_dict({name: value.to(device, own) for name, value in used.items()}, assign=True)
    model.language_model.rotary_emb = Qwen3RotaryEmbedding(model.config.language).to(device)  # not in the files
    return model.requires_grad_(False).eval()


def from_folder(
    folder: Path,
    processor: Any,
    codec: Codec | None,
    config: Mapping[str, Any],
    draft: Path | None,
    device: str,
    dtype: torch.dtype | str,
) -> MossAdapter:
    """The adapter of a published folder; see `mmspec.audio.load.PUBLISHED`.

    Args:
        folder: The folder.
        processor: A tokenizer, or where it is; None is the one in the folder.
        codec: The codec.
        config: The fields of `Options`.
        draft: The folder of a draft model, or None.
        device: Where to load the models.
        dtype: Their dtype, or "auto" for that of the files.

    Raises:
        ArgumentError: For unknown options, values that are not allowed, and if there is no codec.
        ModelError: For missing, broken or unsupported files.
    """
    options = read_options(config)
    if codec is None:
        raise ArgumentError(
            "MOSS-TTS comes without a codec; pass one around MOSS-Audio-Tokenizer as config={'codec': ...} "
            "(mmspec.audio.codec.Codec)"
        )
    tokenizer = processor
    if processor is None or isinstance(processor, (str, Path)):
        try:
            tokenizer = AutoTokenizer.from_pretrained(processor or folder, trust_remote_code=False)
        except (*LOAD_ERRORS, ImportError) as error:
            where = str(processor or folder)
            raise ArgumentError(f"processor={where!r} cannot be loaded: {describe(error)}") from None
    model = read_model(folder, device, dtype)
    return MossAdapter(model, tokenizer, codec, options, None if draft is None else read_model(draft, device, dtype))


def read_options(config: Mapping[str, Any]) -> Options:
    """The options of a pipeline.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    options = options_of(Options, config, "MOSS-TTS", ("codec", "draft_model"))
    for name in ("frames", "tokens"):
        value = getattr(options, name)
        if (isinstance(value, bool) or not isinstance(value, int) or value < 1) and (name, value) != ("tokens", None):
            raise ArgumentError(f"{name}={str(value)[:80]!r} is not allowed; it must be an integer, 1 or more")
    for name in ("language", "instruction", "quality"):
        if not isinstance(getattr(options, name), (str, type(None))):
            raise ArgumentError(
                f"{name}={str(getattr(options, name))[:80]!r} is not allowed; it must be a text, or None"
            )
    if not isinstance(options.voice, (ReferenceCodes, type(None))):
        raise ArgumentError(
            f"voice={str(options.voice)[:80]!r} is not allowed; pass a mmspec.audio.reference_audio.ReferenceCodes"
        )
    return options
