"""Qwen3-TTS frame by frame: the talker generates the first code of a frame, the code predictor the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.depth.depth_frames import DepthFrames, left_padded, same_length
from mmspec.audio.depth.depth_target import by_index
from mmspec.audio.models.qwen3_tts.model import Qwen3TTS
from mmspec.hf.cache_name import run_decoder
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits_processors import RepetitionPenalty

MIN_FRAMES = 2  # the original's `min_new_tokens`


class Qwen3TTSFrames(DepthFrames):
    """A model with its prompts given.

    First tokens are codes, or the end, whose id follows the codes; the original's processor excludes all other ids of
    the talker's vocabulary. Their logits include its other processors: the repetition penalty, which counts the first
    tokens generated so far, and no end before frame 2.

    Args:
        prompts: The embeddings [T, D] of each row's prompt, and those [n, D] of the text that is added to its first n
            frames; the last of them is added to all later ones.
        length: Frames to generate.
        slack: How many frames a window may reach past the end.
        repetition_penalty: 1 is off.
    """

    def __init__(
        self,
        model: Qwen3TTS,
        prompts: Sequence[tuple[Tensor, Tensor]],
        length: int,
        slack: int = 0,
        repetition_penalty: float = 1.0,
    ) -> None:
        end = model.config.codes
        embeds, mask = left_padded([each for each, _ in prompts])
        parts = Backbone(model.talker.model, model.embed_frames, model.first_logits, end + 1, model.device)
        processors = (RepetitionPenalty(repetition_penalty), MinLength(MIN_FRAMES, end))
        prompt = Prompt(embeds, mask, position_ids_of(mask), added=same_length([text for _, text in prompts]))
        super().__init__(parts, Qwen3TTSDepth(model), prompt, length, slack, processors)


class Qwen3TTSDepth:
    """The code predictor; see `mmspec.audio.depth.depth_target.DepthDecoder`."""

    def __init__(self, model: Qwen3TTS) -> None:
        self.vocab_size = int(model.config.predictor.vocab_size)
        self.codebooks = model.config.codebooks
        self.module, self.reader = model.talker, model.talker.code_predictor
        self._model = model

    def embed(self, tokens: Tensor, books: Tensor | int) -> Tensor:
        model = self._model

        def embed(book: int, own: Tensor) -> Tensor:
            return model.embed_code(book, own) if book else model.embed_first(model.first_ids(own))

        return by_index(tokens, books, self.codebooks, int(model.config.talker.hidden_size), model.dtype, embed)

    def run(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        predictor = self._model.talker.code_predictor
        return run_decoder(predictor.model, predictor.small_to_mtp_projection(embeds), mask, positions, cache)

    def head(self, hidden: Tensor, heads: Tensor | int) -> Tensor:
        lm_head = self._model.talker.code_predictor.lm_head
        return by_index(
            hidden, heads, self.codebooks - 1, self.vocab_size, hidden.dtype, lambda head, own: lm_head[head](own)
        )


@dataclass(frozen=True)
class MinLength:
    """A logits processor that excludes the end before frame `frames`.

    Attributes:
        frames: Frames that precede the end, at least.
        end: The id of the end.
    """

    frames: int
    end: int

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        early = (prefix != -1).sum(-1, keepdim=True) < self.frames
        return logits.masked_fill(
            early & (torch.arange(logits.shape[-1], device=logits.device) == self.end), -torch.inf
        )


def frame_ends(model: Qwen3TTS) -> Any:
    """A function of frames int64 [..., K] to bool [...]: True for frames that end their row."""
    return lambda frames: frames[..., 0] == model.config.codes
