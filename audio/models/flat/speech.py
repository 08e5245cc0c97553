"""The speech adapter of flat speech models: prompts, limits, codec."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec import hub
from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText, with_voice_of
from mmspec.audio.codec import Codec
from mmspec.audio.codecs.snac import read_snac
from mmspec.audio.codecs.soprano import Soprano
from mmspec.audio.codecs.xcodec2 import XCodec2
from mmspec.audio.models.flat.ace_step import AceStepAdapter
from mmspec.audio.models.flat.ace_step import make as make_ace_step
from mmspec.audio.models.flat.decoding import STREAM_FORMATS, StreamFormat, decoder_of, refuse_backbone
from mmspec.audio.models.flat.kani import kani_style
from mmspec.audio.models.flat.left_padding import left_padded
from mmspec.audio.models.flat.neutts import neutts_style
from mmspec.audio.models.flat.outetts import outetts_style, read_speaker
from mmspec.audio.models.flat.soprano import soprano_style
from mmspec.audio.models.flat.spark import ATTRIBUTES, MadeUpVoice, WithSpeaker, made_up_style
from mmspec.audio.models.flat.style import Style
from mmspec.audio.models.flat.yue import YuEAdapter
from mmspec.audio.models.flat.yue import make as make_yue
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes, joined, refuse_unread
from mmspec.audio.text import split_text
from mmspec.codebook import Codebook
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.processed_target import ProcessedTarget
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import Target
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError, ModelError, PromptError, unknown_name
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt, slice_head, with_cuda_graphs
from mmspec.hf.plan import position_ids_of
from mmspec.recipes import Recipe
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams


def llasa_prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
    """The prompt of Llasa: a chat turn that asks for a text to be spoken, and the beginning of an answer in codes."""
    return _llasa_turns(tokenizer, text, "")


def llasa_voice_prompt(tokenizer: Any, text: str, voice: ReferenceCodes) -> list[int]:
    """The prompt of Llasa that continues a voice: both texts, and an answer that begins with the codes of the voice."""
    codes = "".join(f"<|s_{code}|>" for code in voice.codes.flatten().tolist())
    return _llasa_turns(tokenizer, f"{voice.transcript} {text}", codes)


def _llasa_turns(tokenizer: Any, text: str, codes: str) -> list[int]:
    ask = f"Convert the text to speech:<|TEXT_UNDERSTANDING_START|>{text}<|TEXT_UNDERSTANDING_END|>"
    turns = [{"role": "user", "content": ask}, {"role": "assistant", "content": f"<|SPEECH_GENERATION_START|>{codes}"}]
    found = tokenizer.apply_chat_template(turns, tokenize=True, continue_final_message=True, return_dict=True)
    return list(found["input_ids"])


def orpheus_prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
    """The prompt of Orpheus: a human turn with voice and text, then the tokens that begin an answer and speech."""
    return [128259, *tokenizer(f"{voice}: {text}")["input_ids"], 128009, 128260, 128261, 128257]


def maya1_prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
    """The prompt of Maya1: a human turn with a description of the voice and the text, and the beginning of speech."""
    described = tokenizer(f'<description="{voice}"> {text}', add_special_tokens=False)["input_ids"]
    return [128259, 128000, *described, 128009, 128260, 128261, 128257]


def spark_prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
    """Refuses: the stream of Spark has no speaker, who must be in the prompt.

    Raises:
        PromptError: Always.
    """
    raise PromptError(
        "Spark speaks with the voice of a speaker's codes; pass config={'voice': ReferenceCodes(transcript, codes, "
        "speaker)} (mmspec.audio.reference_audio), or gender, pitch and speed for a voice that it makes up"
    )


def spark_voice_prompt(tokenizer: Any, text: str, voice: ReferenceCodes) -> list[int]:
    """The prompt of Spark: the text after that of the voice, the codes of the speaker, and those of the voice.

    Raises:
        ArgumentError: For a voice without the codes of its speaker, and a transcript without those of its words.
    """
    if voice.speaker is None or not voice.speaker.numel():
        raise ArgumentError("voice has no codes of its speaker; pass ReferenceCodes(transcript, codes, speaker)")
    speaker = "".join(f"<|bicodec_global_{code}|>" for code in voice.speaker.flatten().tolist())
    codes = "".join(f"<|bicodec_semantic_{code}|>" for code in voice.codes.flatten().tolist())
    if voice.transcript.strip() and not codes:
        raise ArgumentError(
            f"transcript={shown(voice.transcript)} is not possible: this voice has no codes; leave it out"
        )
    return list(
        tokenizer(
            f"<|task_tts|><|start_content|>{voice.transcript}{text}<|end_content|><|start_global_token|>{speaker}"
            f"<|end_global_token|><|start_semantic_token|>{codes}"
        )["input_ids"]
    )


STYLES = {
    # The limits leave room for the first part as a voice. The model card calls transformers' generate, whose top_k is
    # 50, with a max_length of 2048.
    "llasa": Style(
        STREAM_FORMATS["llasa"],
        llasa_prompt,
        SamplingParams(0.8, 50),
        (),
        tokens=1000,
        letters=200,
        voice_prompt=llasa_voice_prompt,
        positions=2048,
    ),
    "spark": Style(
        STREAM_FORMATS["spark"],
        spark_prompt,
        SamplingParams(0.8, 50, 0.95),
        (),
        tokens=1500,
        voice_prompt=spark_voice_prompt,
        speakers=True,
    ),
    "orpheus": Style(
        STREAM_FORMATS["orpheus"],
        orpheus_prompt,
        SamplingParams(0.6, top_p=0.8),
        (RepetitionPenalty(1.1),),
        tokens=2002,  # 286 super-frames, 24 seconds
        letters=250,
        voices=("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe"),
        codec="hubertsiuzdak/snac_24khz",
    ),
    # Orpheus' stream; the voice is a description in words, and tags such as <laugh> belong to the text.
    "maya1": Style(
        STREAM_FORMATS["orpheus"],
        maya1_prompt,
        SamplingParams(0.4, top_p=0.9),
        (RepetitionPenalty(1.1),),
        tokens=2044,  # 292 super-frames, 24 seconds
        letters=250,
        voices=(
            "Realistic male voice in the 30s with american accent. Normal pitch, warm timbre, conversational pacing.",
        ),
        codec="hubertsiuzdak/snac_24khz",
        described=True,
    ),
}


# Styles that depend on the model's configuration or its tokenizer.
STYLES_OF_MODEL: dict[str, Callable[[Any, Any], Style]] = {
    "neutts": lambda config, tokenizer: neutts_style(tokenizer, config=config),
    "kani": kani_style,
    "soprano": soprano_style,
    "outetts": outetts_style,
}


# What the option `style` may name.
NAMES = (*STYLES, *STYLES_OF_MODEL, "ace-step", "yue")


@dataclass(frozen=True)
class FlatPart:
    """A part of a text, the ids of its prompt, and the codes of the speaker in it, or None."""

    text: str
    ids: list[int]
    speaker: Tensor | None = None


class FlatAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of flat speech models.

    Args:
        model: A `LlamaForCausalLM`, a `Qwen2ForCausalLM` or similar.
        codec: The codec of its codes, with as many codebooks as a super-frame has slots.
        style: A `Style`, or the name of one of `STYLES`.
        draft_model: A smaller model of the family, or None.
        voice: A voice to continue, as codes; or None.

    Raises:
        UnknownNameError: For an unknown style.
        ModelError: If the codec or the draft model does not match the model.
        ArgumentError: For a voice that the model cannot continue.
    """

    recipe = "recycle:window=4"
    takes_min_p = True
    guided = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        codec: Codec,
        style: str | Style,
        draft_model: Any = None,
        voice: ReferenceCodes | None = None,
    ) -> None:
        if isinstance(style, str):
            if style in STYLES_OF_MODEL:
                style = STYLES_OF_MODEL[style](model.config, tokenizer)
            elif style in STYLES:
                style = STYLES[style]
            else:
                raise unknown_name("style", style, NAMES)
        stream, marked = style.stream, style.marked
        books, codes = (len(stream.slots), stream.codes) if marked is None else (marked.codebooks, marked.codes)
        if codec.codebooks != books or codec.codebook_size < codes:
            raise ModelError(
                f"the codec has {codec.codebooks} codebooks of {codec.codebook_size}, the model's stream {books} slots "
                f"of {codes}"
            )
        vocab_size = model.lm_head.weight.shape[0]
        for one, name in ((model, "model"), (draft_model, "draft_model")):
            if one is not None and one.lm_head.weight.shape[0] != vocab_size:
                raise ModelError(f"{name} has {one.lm_head.weight.shape[0]} ids, the model {vocab_size}")
        self.model, self.tokenizer, self.codec, self.style = model.eval(), tokenizer, codec, style
        self.draft_model = None if draft_model is None else draft_model.eval()
        self.sampling = style.sampling
        self.voices: Sequence[str] = style.voices if voice is None else ()
        ids = [i for slot in range(len(stream.slots)) for i in stream.allowed(slot)]
        self._low, self._high = min(ids), max(ids) + 1
        if self._high > vocab_size:
            raise ModelError(f"model has {vocab_size} ids, and its stream goes up to {self._high - 1}")
        allowed = torch.zeros(len(stream.slots), self._high - self._low, dtype=torch.bool)
        for slot in range(len(stream.slots)):
            allowed[slot, [i - self._low for i in stream.allowed(slot)]] = True
        # With `least`, also what slots allow before a stream may end.
        early = allowed.clone()
        if stream.end is not None:
            early[:, stream.end - self._low] = False
        self._allowed = torch.cat([allowed, early] if style.least else [allowed]).to(model.device)
        self._voice = voice
        if voice is not None:
            if style.voice_prompt is None:
                raise ArgumentError("voice is not possible here: this style has no prompt that continues a voice")
            refuse_unread(voice, "this style", "transcript", *(["speaker"] if style.speakers else []))
            _check_codes(voice, stream)
        draws = style.voice_prompt is not None and voice is None and not style.voices
        self.draws_voice = isinstance(marked, MadeUpVoice) or draws
        self.continues_parts = draws or voice is not None

    def read(self, text: str, voice: str | None) -> PreparedText:
        voice = voice or (self.voices[0] if self.voices else None)
        pieces = self.style.split(text) if self.style.split else split_text(text, self.style.letters)
        if not pieces:
            raise PromptError(f"text={shown(text)} has nothing that this model can say")
        if self._voice is not None and self.style.voice_prompt is not None:
            parts = [self.style.voice_prompt(self.tokenizer, piece, self._voice) for piece in pieces]
        else:
            parts = [self.style.prompt(self.tokenizer, piece, voice) for piece in pieces]
        longest = self._positions
        for part in parts:
            tokens = self.style.least + 1 if self.style.positions else self.style.tokens
            if longest is not None and len(part) + tokens > longest:
                raise PromptError(
                    f"text has a sentence that is too long: {len(part)} ids and {tokens} codes do not fit "
                    f"into {longest} positions; use shorter sentences"
                )
        return PreparedText([FlatPart(piece, ids) for piece, ids in zip(pieces, parts, strict=True)], texts=pieces)

    def with_reference_audio(self, reference: ReferenceAudio) -> FlatAdapter:
        """The adapter with the voice of a recording, whose codes the codec makes.

        Raises:
            ArgumentError: For a style without a prompt that continues a voice, a codec that is not X-codec2 or
                NeuCodec, and a recording without its transcript.
        """
        if self.style.voice_prompt is None or not isinstance(self.codec, XCodec2):
            raise ArgumentError("this model does not accept reference audio")
        transcript = reference.require_transcript("this model")
        voice = ReferenceCodes(transcript, self.codec.encode(reference).cpu())
        return FlatAdapter(self.model, self.tokenizer, self.codec, self.style, self.draft_model, voice)

    def continue_voice(self, part: FlatPart, first: FlatPart, tokens: Tensor) -> FlatPart:
        if isinstance(self.style.marked, MadeUpVoice):
            before, speaker = self.style.marked.description(tokens + self._low)
            return part if speaker is None else FlatPart(part.text, [*part.ids, *before], speaker)
        return with_voice_of(self, part, first.text, tokens)

    def continue_from(self, part: FlatPart, context: Sequence[ReferenceCodes]) -> FlatPart | None:
        if self.style.voice_prompt is None:
            return None
        spoken = [*context] if self._voice is None else [self._voice, *context]
        voice = joined(spoken)
        voice = replace(voice, codes=voice.codes.squeeze(1)) if voice.codes.ndim > 1 else voice
        ids = self.style.voice_prompt(self.tokenizer, part.text, voice)
        positions = self._positions
        return None if positions is not None and len(ids) + self.style.tokens > positions else FlatPart(part.text, ids)

    def prepare_rows(
        self, parts: Sequence[FlatPart], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        stream, count = self.style.stream, self.style.tokens
        slots, prompts = len(stream.slots), [part.ids for part in parts]
        position = torch.arange(count, device=self._allowed.device)
        layout = Layout(
            count,
            slots if slots > 1 else None,
            Constraint(position % slots + slots * (position < self.style.least), self._allowed),
            frozenset() if stream.end is None else frozenset({stream.end - self._low}),
            0 if stream.end is None else stream.end - self._low,
        )
        draft = self.draft_model
        resources = DraftResources(
            codebook=self.codebook,
            draft_model=None if draft is None else lambda: self._target(draft, prompts, recipe.window),
            draft_sampling=samplings,
            adaptive_windows=adaptive_windows_of(self.model),
        )
        limits = [min(count, max((self._positions or sys.maxsize) - len(ids), 1)) for ids in prompts]
        return PreparedRows(self._target(self.model, prompts, recipe.window), layout, samplings, resources, limits)

    @property
    def _positions(self) -> int | None:
        """The positions of the model that may be used; None if it does not tell."""
        known = self.style.positions, getattr(self.model.config, "max_position_embeddings", None)
        return min((each for each in known if each is not None), default=None)

    def codes(self, tokens: Tensor) -> Tensor:
        ids = tokens + self._low
        stream, slots = self.style.stream, len(self.style.stream.slots)
        ids = stream.until_end(ids)
        if self.style.marked is not None:
            return self.style.marked.frames(ids)
        frames = ids[: len(ids) // slots * slots].view(-1, slots)
        return (frames - stream.first_ids().to(ids.device)).T

    def part_codec(self, part: FlatPart) -> Codec:
        codec = self.codec
        if isinstance(self.style.marked, MadeUpVoice):
            return WithSpeaker(codec, part.speaker)
        return codec.of_part(self.model, torch.tensor(part.ids)) if isinstance(codec, Soprano) else codec

    def codebook(self) -> Codebook | None:
        """The vectors that tokens stand for; None if there are several slots, or other tokens too."""
        stream = self.style.stream
        if len(stream.slots) > 1 or self.style.marked is not None:
            return None
        tokens = torch.arange(stream.codes) + stream.first - self._low
        return Codebook(self.codec.tables()[0][: stream.codes], tokens, self._high - self._low)

    def _target(self, model: Any, parts: Sequence[list[int]], window: int) -> Target:
        refuse_backbone(model, max(map(len, parts)) + self.style.tokens)
        ids, mask = left_padded(parts, model.device)
        embed = model.get_input_embeddings()
        backbone = Backbone(
            decoder_of(model),
            lambda tokens: embed(tokens + self._low),
            slice_head(model.lm_head, self._low, self._high),
            self._high - self._low,
            model.device,
        )
        prompt = Prompt(embed(ids), mask, position_ids_of(mask))
        target = with_cuda_graphs(CausalTarget(backbone, prompt, None, self.style.tokens, window))
        if not self.style.processors:
            return target
        history = torch.where(mask, ids - self._low, -1)
        return ProcessedTarget(target, self.style.processors, history, self.style.tokens + window)


def make(
    model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any
) -> FlatAdapter | AceStepAdapter | YuEAdapter:
    """The adapter of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options, and if the style or the codec is missing.
    """
    options = dict(config)
    style, voice = options.pop("style", None), options.pop("voice", None)
    if style is not None and not isinstance(style, (str, Style)):
        raise ArgumentError(
            f"style={shown(style)} is not allowed; name one of {', '.join(NAMES)}, or pass a "
            "mmspec.audio.models.flat.style.Style"
        )
    if style == "ace-step":
        return make_ace_step(model, processor, codec, options, draft_model)
    if style == "yue":
        return make_yue(model, processor, codec, options, draft_model)
    description, speaker = options.pop("description", None), options.pop("speaker", None)
    attributes = {name: options.pop(name) for name in ATTRIBUTES if name in options}
    if voice is not None and not isinstance(voice, ReferenceCodes):
        raise ArgumentError(f"voice={voice!r} is not allowed; pass a mmspec.audio.reference_audio.ReferenceCodes")
    if options or (style is None and codec is not None):
        wrong = f"config has {sorted(options)[0]!r}, which is not allowed here" if options else "config has no 'style'"
        raise ArgumentError(f"{wrong}; name one of {', '.join(NAMES)}, or pass a mmspec.audio.models.flat.style.Style")
    if speaker is not None:
        if style != "outetts":
            raise ArgumentError(f"speaker={shown(speaker)} is not allowed; it is for the style 'outetts'")
        style = outetts_style(model.config, processor, read_speaker(speaker))
    if attributes:
        if style != "spark" or voice is not None:
            name, value = next(iter(attributes.items()))
            raise ArgumentError(f"{name}={shown(value)} is not allowed; it is for the style 'spark' without a voice")
        style = made_up_style(model.config, processor, **attributes)
    known = STYLES.get(style) if isinstance(style, str) else style
    if description is not None:
        if known is None or not known.described or not isinstance(description, str):
            described = ", ".join(name for name, each in STYLES.items() if each.described)
            raise ArgumentError(
                f"description={str(description)[:80]!r} is not allowed; it is a text, for styles with described "
                f"voices: {described}"
            )
        style = known = replace(known, voices=(description,))
    if codec is None and known is not None and known.codec is not None:
        folder = hub.fetch(known.codec)
        assert folder is not None
        codec = read_snac(folder, str(model.device))
    if codec is None:
        raise ArgumentError(
            "a flat speech model comes without a codec; pass its folder or Hub id as tokenizer=, or your own codec as "
            "config={'codec': ...} (mmspec.audio.codec.Codec)"
            + ("; one that generates images takes config={'layout': ...}" if style is None else "")
        )
    return FlatAdapter(model, processor, codec, style, draft_model, voice)


def _check_codes(voice: ReferenceCodes, stream: StreamFormat) -> None:
    """Refuses codes of a voice that are not integers [F] or [F, 1] of the stream."""
    codes = voice.codes
    shape = list(codes.shape)
    integers = not codes.is_floating_point() and (len(shape) == 1 or shape[1:] == [1])
    if not integers or bool(((codes < 0) | (codes >= stream.codes)).any()):
        raise ArgumentError(
            f"voice has codes of shape {shape} and type {codes.dtype}; they must be integers [frames], 0 to "
            f"{stream.codes - 1}"
        )
