"""The 5 Hz language model of ACE-Step 1.5: from a caption, lyrics and metadata to codes of music, five per second.

Of its two phases this is the second, in which a Qwen3 writes nothing but codes, as many as the duration has; the
metadata, which it may write in the first, are given. Source: the repository ACE-Step-1.5 at f30aee4 (MIT license).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import yaml
from torch import Tensor

from mmspec.arguments import shown
from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.models.flat.left_padding import flat_prompt
from mmspec.codebook import Codebook
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.processed_target import ProcessedTarget, guidance
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import Target
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.hf.causal_target import Backbone, CausalTarget, slice_head, with_cuda_graphs
from mmspec.recipes import Recipe
from mmspec.sampling.logits_processors import FORBIDDEN
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.truncation import keep_top_p

CODES, RATE = 64000, 5  # codes of the codebook, and per second
SECONDS, LEAST, MOST = 60.0, 10.0, 600.0
INSTRUCTION = "Generate audio semantic tokens based on the given conditions:"
METADATA = ("bpm", "keyscale", "timesignature")  # what must be given
FIELDS = (*METADATA, "caption", "language")
OPTIONS = ("lyrics", "metadata", "negative_prompt")


@dataclass(frozen=True)
class Song:
    """What a song is made from, besides its caption.

    Attributes:
        metadata: Values of `FIELDS`; those of `METADATA` are needed.
        negative_prompt: A caption that guidance leads away from; None is the song's own, without its metadata.
        seconds: Duration.
    """

    lyrics: str
    metadata: Mapping[str, Any]
    negative_prompt: str | None = None
    seconds: float = SECONDS


@dataclass(frozen=True)
class TruncationFirst:
    """Top-k and top-p of the distribution at temperature 1; the temperature follows.

    Args:
        top_k: Keeps the k most likely tokens; 0 is all.
        top_p: Keeps the most likely tokens of this total probability; 1 is all.
    """

    top_k: int
    top_p: float

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        p = logits.softmax(-1)
        if 0 < self.top_k < logits.shape[-1]:
            p = p.masked_fill(logits < logits.topk(self.top_k).values[:, -1:], 0.0)
            p = p / p.sum(-1, keepdim=True)
        return torch.where(keep_top_p(p, torch.full_like(p[:, :1], self.top_p)) > 0, logits, logits - FORBIDDEN)


class AceStepAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of the 5 Hz language model; texts are captions.

    It implements `mmspec.audio.adapter.SupportsDuration`.

    Args:
        model: A `Qwen3ForCausalLM`.
        codec: Makes audio of the codes, with one codebook.
        song: What songs are made from.
        draft_model: A smaller model of the family, or None.

    Raises:
        ModelError: If the tokenizer does not have the codes, or the codec or the draft model does not match.
    """

    recipe = "recycle:window=4"
    guided = True
    voices: Sequence[str] = ()
    sampling = SamplingParams(0.85, 0, 0.9, guidance_scale=2.0)

    def __init__(self, model: Any, tokenizer: Any, codec: Codec, song: Song, draft_model: Any = None) -> None:
        self.model, self.tokenizer, self.song = model.eval(), tokenizer, song
        self.draft_model = None if draft_model is None else draft_model.eval()
        self._first, self.count = code_ids(tokenizer)
        self.codec = check_codec(codec, 1, self.count)
        for one, name in ((model, "model"), (draft_model, "draft_model")):
            if one is not None and one.lm_head.weight.shape[0] < self._first + self.count:
                raise ModelError(f"{name} has {one.lm_head.weight.shape[0]} ids; its codes need more")

    def with_duration(self, seconds: float) -> AceStepAdapter:
        if not LEAST <= seconds <= MOST:
            raise ArgumentError(f"seconds={seconds:g} is not allowed; this model makes {LEAST:g} to {MOST:g} seconds")
        song = replace(self.song, seconds=seconds)
        return AceStepAdapter(self.model, self.tokenizer, self.codec, song, self.draft_model)

    def read(self, text: str, voice: str | None) -> PreparedText:
        negative = text if self.song.negative_prompt is None else self.song.negative_prompt
        sides = [self._ids(text, self._metadata()), self._ids(negative, {})]
        positions = self.model.config.max_position_embeddings
        if (length := max(map(len, sides))) + self._length > positions:
            raise PromptError(
                f"text of {length} ids with its lyrics is too long; of the model's {positions} positions, "
                f"{self._length} are for codes"
            )
        return PreparedText([tuple(sides)], texts=[text])

    def prepare_rows(
        self, parts: Sequence[tuple[list[int], list[int]]], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        own, draft, length = samplings[0], self.draft_model, self._length
        params = [SamplingParams(own.temperature)] * len(parts)
        resources = DraftResources(
            codebook=self.codebook,
            draft_model=None if draft is None else lambda: self._target(draft, parts, own, recipe.window),
            draft_sampling=params,
            adaptive_windows=adaptive_windows_of(self.model),
        )
        return PreparedRows(self._target(self.model, parts, own, recipe.window), Layout(length), params, resources)

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens[None]

    def codebook(self) -> Codebook:
        """The vectors that tokens stand for."""
        return Codebook(self.codec.tables()[0][: self.count], torch.arange(self.count), self.count)

    @property
    def _length(self) -> int:
        return int(self.song.seconds * RATE)

    def _metadata(self) -> dict[str, Any]:
        """The metadata of a song as YAML has them: digits are numbers, and a time signature is its beats."""
        found = {**self.song.metadata, "duration": int(self.song.seconds)}
        if (beats := found["timesignature"]) is not None:
            found["timesignature"] = str(beats).removesuffix("/4")
        return {
            name: int(value) if isinstance(value, str) and value.isdecimal() else value
            for name, value in found.items()
            if value is not None
        }

    def _ids(self, caption: str, metadata: Mapping[str, Any]) -> list[int]:
        """The ids of a prompt: instruction, caption and lyrics, and the beginning of an answer with the metadata."""
        thought = yaml.safe_dump(dict(metadata), allow_unicode=True, sort_keys=True) if metadata else ""
        turns = [
            {"role": "system", "content": f"# Instruction\n{INSTRUCTION}\n\n"},
            {"role": "user", "content": f"# Caption\n{caption}\n\n# Lyric\n{self.song.lyrics}\n"},
            {"role": "assistant", "content": f"<think>\n{thought}</think>"},
        ]
        made = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
        return list(self.tokenizer(made if made.endswith("\n") else f"{made}\n")["input_ids"])

    def _target(
        self, model: Any, parts: Sequence[tuple[list[int], list[int]]], sampling: SamplingParams, window: int
    ) -> Target:
        embed, scale, low, high = model.get_input_embeddings(), sampling.guidance_scale, self._first, self.count
        backbone = Backbone(
            model.base_model,
            lambda tokens: embed(tokens + low),
            slice_head(model.lm_head, low, low + high),
            high,
            model.device,
        )

        guided = scale != 1
        uncond = flat_prompt(model, [part[1] for part in parts]) if guided else None
        cond = flat_prompt(model, [part[0] for part in parts])
        target = with_cuda_graphs(CausalTarget(backbone, cond, uncond, self._length, window))
        truncated = sampling.temperature and (sampling.top_k or sampling.top_p < 1)
        if not guided and not truncated:
            return target
        processors = (TruncationFirst(sampling.top_k, sampling.top_p),) if truncated else ()
        history = torch.empty(len(parts), 0, dtype=torch.int64, device=model.device)
        return ProcessedTarget(target, processors, history, self._length + window, guidance(scale))


def code_ids(tokenizer: Any) -> tuple[int, int]:
    """The id of the first code, and how many codes follow one another, at most `CODES`.

    Raises:
        ModelError: If the tokenizer has none.
    """
    first = tokenizer.convert_tokens_to_ids("<|audio_code_0|>")
    if first is None or first == tokenizer.unk_token_id:
        raise ModelError("the tokenizer has no '<|audio_code_0|>'; it is not that of ACE-Step's 5 Hz language model")
    low, high = 1, CODES
    while low < high:  # the largest count whose last code is where it should be
        middle = (low + high + 1) // 2
        found = tokenizer.convert_tokens_to_ids(f"<|audio_code_{middle - 1}|>") == first + middle - 1
        low, high = (middle, high) if found else (low, middle - 1)
    return int(first), low


def make(
    model: Any, tokenizer: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any
) -> AceStepAdapter:
    """The `AceStepAdapter` of a loaded model.

    Args:
        codec: Makes audio of the codes.
        config: The options: `lyrics`, "[Instrumental]" without them, `metadata` and `negative_prompt`.
        draft_model: A smaller model, or None.

    Raises:
        ArgumentError: For unknown and missing options.
    """
    check_config(config, "ACE-Step", OPTIONS)
    metadata = config.get("metadata")
    if not isinstance(metadata, Mapping) or not set(METADATA) <= set(metadata) <= set(FIELDS):
        raise ArgumentError(
            f"metadata={shown(metadata)} is not allowed; it needs {', '.join(METADATA)}, and may have caption and "
            "language"
        )
    for name, value in metadata.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
            raise ArgumentError(f"metadata {name}={shown(value)} is not allowed; it must be a text, a number or None")
    lyrics, negative = config.get("lyrics", "[Instrumental]"), config.get("negative_prompt")
    if not isinstance(lyrics, str):
        raise ArgumentError(f"lyrics={shown(lyrics)} is not allowed; it must be a text")
    if not isinstance(negative, (str, type(None))):
        raise ArgumentError(f"negative_prompt={shown(negative)} is not allowed; it must be a text, or None")
    if codec is None:
        raise ArgumentError("ACE-Step's codes become music by its diffusion model; pass config={'codec': ...}")
    return AceStepAdapter(model, tokenizer, codec, Song(lyrics, metadata, negative), draft_model)
