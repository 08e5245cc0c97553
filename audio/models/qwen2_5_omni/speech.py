"""The speech adapter of Qwen2.5-Omni: questions in text, answers spoken by its talker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec
from mmspec.audio.codecs.token2wav import Token2Wav
from mmspec.audio.depth.depth_frames import left_padded, same_length
from mmspec.audio.family_options import check_integers, check_texts, options_of
from mmspec.audio.models.qwen2_5_omni.decoding import vocab_size
from mmspec.audio.talker_call import Question, call_talker
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.processed_target import LogitsProcessor, ProcessedTarget
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import read_weights
from mmspec.hf.arguments import read_processors
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

# What the model was trained to speak with.
SYSTEM = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        speaker: The voice; None is the first that the model has.
        frames: Codes of an answer, at most; 50 per second.
        answer_tokens: Tokens of the answer's text, at most.
        system: The system prompt.
    """

    speaker: str | None = None
    frames: int = 4095
    answer_tokens: int = 1024
    system: str | None = SYSTEM


@dataclass(frozen=True)
class TalkerPrompt:
    """What the talker speaks an answer from.

    Attributes:
        ids: The ids of its prompt, int64 [T], which its repetition penalty counts.
        embeds: Their embeddings [T, D].
        text: Those [n, D] of the text that is added to its first n codes, the last of them to all later ones.
        processors: Its logits processors.
    """

    ids: Tensor
    embeds: Tensor
    text: Tensor
    processors: tuple[LogitsProcessor, ...]


class Qwen2_5OmniAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Qwen2.5-Omni; see that of Qwen3-Omni.

    Args:
        model: A `Qwen2_5OmniForConditionalGeneration`.
        processor: Its processor, or its tokenizer with the chat template.
        codec: The codec of its codes; None is the model's own.

    Raises:
        ArgumentError: For a speaker that the model does not have.
    """

    recipe = "scd:window=8"
    takes_min_p = True
    guided = False
    draws_voice = False
    answers = True
    voices: Sequence[str] = ()
    sampling = SamplingParams(0.9, 40, 0.8)

    def __init__(self, model: Any, processor: Any, codec: Codec | None, options: Options) -> None:
        self.model, self.processor, self.options = model.eval(), processor, options
        known, config = list(model.speaker_map), model.config.talker_config
        self._speaker = options.speaker or next(iter(known), "")
        if self._speaker not in known:
            raise ArgumentError(f"speaker={shown(options.speaker)} is not allowed; it must be one of {known}")
        self._ends = (int(config.tts_codec_pad_token_id), int(config.tts_codec_end_token_id))
        own = codec or Token2Wav(model.token2wav, model.speaker_map[self._speaker], min(self._ends))
        self.codec: Codec = own

    def read(self, text: str, voice: str | None) -> PreparedText:
        question = Question(text, self.options.system, self._speaker, self.options.answer_tokens)
        call = call_talker(self.model, self.processor, question, talker_eos_token_id=list(self._ends))
        talker = self.model.talker
        _, processors = read_processors(call.processors)
        with torch.inference_mode():
            embeds = talker.thinker_to_talker_proj(call.inputs["inputs_embeds"])[0]
            # The projection of a sum is the sum of the projections, of which one has the bias.
            added = F.linear(call.inputs["thinker_reply_part"], talker.thinker_to_talker_proj.weight)[0]
        prompt = TalkerPrompt(call.input_ids[0], embeds, added, tuple(processors))
        return PreparedText([prompt], notes=[f"answer: {call.answer}"], texts=[call.answer])

    def prepare_rows(
        self, parts: Sequence[TalkerPrompt], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        talker, length = self.model.talker, self.options.frames + 1  # with the code that ends a row
        if recipe.needs_draft_model:
            raise ArgumentError(f"recipe {recipe.name!r} is not possible for Qwen2.5-Omni, which has no draft model")
        embeds, mask = left_padded([part.embeds for part in parts])
        prompt = Prompt(embeds, mask, position_ids_of(mask), added=same_length([part.text for part in parts]))
        longest = embeds.shape[1]
        history = torch.stack([F.pad(part.ids, (longest - len(part.ids), 0), value=-1) for part in parts])

        def embed(codes: Tensor) -> Tensor:
            projected: Tensor = talker.thinker_to_talker_proj(talker.get_input_embeddings()(codes))
            return projected

        backbone = Backbone(talker.model, embed, talker.codec_head, vocab_size(talker), embeds.device)
        slack = recipe.window
        target = CausalTarget(backbone, prompt, None, length, slack)
        processed = ProcessedTarget(target, parts[0].processors, history, length + slack)
        layout = Layout(length, eos=frozenset(self._ends), pad=self._ends[0])
        resources = DraftResources(adaptive_windows=adaptive_windows_of(talker))
        return PreparedRows(processed, layout, samplings, resources)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = torch.isin(tokens, torch.tensor(self._ends, device=tokens.device)).nonzero()
        # Without the code of its end, a row that is cut has room for a code more.
        return tokens[: int(ends[0]) if len(ends) else self.options.frames][None]


def read_speakers(file: Path, model: Any) -> dict[str, dict[str, Any]]:
    """The speakers in a published file, as `speaker_map` has them.

    Raises:
        ModelError: If the file cannot be read, or has no speakers of this model.
    """
    named, content = f"speakers {str(file)!r}", read_weights(file, "speakers")
    if not isinstance(content, dict):
        raise ModelError(f"{named} contains a {type(content).__name__} instead of speakers by name")
    config, ids = model.config.token2wav_config.dit_config, model.thinker.get_input_embeddings().num_embeddings
    for name, speaker in content.items():
        found = speaker if isinstance(speaker, Mapping) else {}
        begin, cond, mel = (found.get(key) for key in ("bos_token", "cond", "ref_mel"))
        if not (
            isinstance(name, str)
            and type(begin) is int
            and 0 <= begin < ids
            and is_vectors(cond, 2, config.enc_emb_dim)
            and is_vectors(mel, 3, config.mel_dim)
        ):
            raise ModelError(
                f"{named} has {shown(name)}, which is not a speaker of this model; it needs bos_token, below {ids}, "
                f"cond [1, {config.enc_emb_dim}] and ref_mel [1, T, {config.mel_dim}]"
            )
    return content


def is_vectors(value: Any, dims: int, width: int) -> bool:
    """Whether a value is a floating-point tensor [1, ..., width], not empty, of so many dimensions."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim != dims or not value.numel():
        return False
    return value.shape[0] == 1 and value.shape[-1] == width


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft: Any) -> Qwen2_5OmniAdapter:
    """The `Qwen2_5OmniAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
        ModelError: If the model has no talker, or no speakers.
    """
    if draft is not None:
        raise ArgumentError("draft_model is not possible for Qwen2.5-Omni, whose talker reads its own thinker's states")
    if not model.has_talker:
        raise ModelError("the model has no talker, and so no voice; load one with enable_audio_output")
    options = options_of(Options, config, "Qwen2.5-Omni")
    check_integers(options, (("frames", 1, 2**20), ("answer_tokens", 2, 2**20)))
    check_texts(options, ("speaker", "system"), optional=True)
    speakers = Path(model.name_or_path) / "spk_dict.pt"
    if not model.speaker_map and speakers.is_file():
        model.speaker_map.update(read_speakers(speakers, model))
    if not model.speaker_map:
        raise ModelError("the model has no speakers; there must be a file spk_dict.pt beside its weights")
    return Qwen2_5OmniAdapter(model, processor, codec, options)
