"""The first MOSS-TTS-Local frame by frame: whether one comes, then its codes, with a penalty on those used before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_frames import DepthFrames, left_padded
from mmspec.audio.depth.depth_target import DepthDecoder, DepthTarget, by_index
from mmspec.audio.models.moss_local_v1.model import MossLocalV1
from mmspec.decoding.target import EarlyExit
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams

FRAME, END = 0, 1  # decisions: a frame comes, the row ends
TEXT_TEMPERATURE = 1.5  # of decisions, in the original


class LocalV1Frames(DepthFrames):
    """A model with its prompts given.

    A frame is a decision and its codes. A code that its codebook had before, in the prompt or in a frame, is penalized;
    as each codebook comes once per frame, the penalties of a frame are known before its first code.

    Args:
        prompts: The text ids int64 [T] and codes int64 [T, k] of each row's prompt; k codebooks are generated.
        length: Frames to generate, with the one that ends a row.
        sampling: Sampling parameters of codes. A temperature of 0 takes the most likely tokens without penalties, as
            the original does.
        penalty: The repetition penalty of codes (Keskar et al. 2019); 1 is none.
    """

    ROWS = (*DepthFrames.ROWS, "_seen")
    SAME = (*DepthFrames.SAME, "_penalty")

    def __init__(
        self,
        model: MossLocalV1,
        prompts: Sequence[tuple[Tensor, Tensor]],
        length: int,
        sampling: SamplingParams,
        penalty: float,
    ) -> None:
        config, books = model.config, prompts[0][1].shape[1]

        def embed(frames: Tensor) -> Tensor:
            return model.embed(model.decision_ids(frames[..., 0]), frames[..., 1:].clamp(max=model.config.codes))

        def head(hidden: Tensor) -> Tensor:
            scores = (model.decision(hidden).float() / TEXT_TEMPERATURE).log_softmax(-1)
            return F.pad(scores, (0, model.config.codes - scores.shape[-1]), value=-torch.inf)

        parts = Backbone(model.model.language_model, embed, head, config.codes, model.device)
        with torch.inference_mode():
            embeds, mask = left_padded([model.embed(*(each.to(model.device) for each in own)) for own in prompts])
        super().__init__(parts, LocalV1Depth(model, books), Prompt(embeds, mask, position_ids_of(mask)), length)
        self._penalty = penalty if sampling.temperature else 1.0
        self._seen = torch.zeros(len(prompts), books, config.codes, dtype=torch.bool, device=self.device)
        for row, (_, codes) in enumerate(prompts):
            rows, used = codes.T.to(self.device), torch.zeros(books, config.codes + 1, dtype=torch.bool)
            self._seen[row] = used.to(self.device).scatter_(1, rows, True)[:, :-1]

    def step(self, frame: Tensor) -> Logits:
        self._seen = self._seen.scatter(2, frame[:, 1:, None].clamp(max=self.vocab_size - 1), True)
        return super().step(frame)

    def _depth(self, hidden: Tensor, first: Tensor, start: int, window: int) -> DepthTarget:
        return PenalizedDepth(self._decoder, hidden, first, start, window, self._seen, self._penalty)


class PenalizedDepth(DepthTarget):
    """The codes of one frame, with a penalty on those that their codebooks had before.

    Args:
        hidden: [B, D].
        first: int64 [B, 1].
        start: The position of the second token.
        window: How far a window may reach past the end.
        seen: bool [B, K - 1, V], the codes that are penalized, by codebook.
        penalty: How much: positive logits are divided by it, the others multiplied.
    """

    def __init__(
        self,
        decoder: DepthDecoder,
        hidden: Tensor,
        first: Tensor,
        start: int,
        window: int,
        seen: Tensor,
        penalty: float,
    ) -> None:
        super().__init__(decoder, hidden, first, start, window)
        self.inputs = (*self.inputs, seen)
        self._penalty = penalty

    def read(
        self, tokens: Tensor, slots: Tensor, end: int, early_exit: EarlyExit | None = None
    ) -> tuple[Tensor, Tensor]:
        z, features = super().read(tokens, slots, end)
        seen = self.inputs[2]
        books = (slots - 1).clamp(0, seen.shape[1] - 1)
        return penalized(z.float(), seen.gather(1, books[..., None].expand_as(z)), self._penalty), features

    def code(self, number: int, before: Tensor | None) -> Tensor:
        z = super().code(number, before)
        return penalized(z.float(), self.inputs[2][:, number, None], self._penalty)

    def every_code(self, frame: Tensor) -> Tensor:
        return penalized(super().every_code(frame).float(), self.inputs[2], self._penalty)

    def with_rows(self, rows: int) -> Self:
        hidden, first, seen = self.inputs
        return type(self)(
            self._decoder,
            hidden.new_zeros(rows, hidden.shape[1]),
            first.new_zeros(rows, 1),
            self.start,
            self._window,
            seen.new_zeros(rows, *seen.shape[1:]),
            self._penalty,
        )

    def shapes(self) -> tuple[Any, ...]:
        return *super().shapes(), self._penalty


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits [..., V], of which those of `seen`, bool [..., V], are lowered by a repetition penalty."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


class LocalV1Depth:
    """The layers along the depth; see `mmspec.audio.depth.depth_target.DepthDecoder`.

    Args:
        codes: Codebooks that are generated.
    """

    def __init__(self, model: MossLocalV1, codes: int) -> None:
        self.vocab_size = model.config.codes
        self.codebooks = 1 + codes
        self.module = self._model = model
        own = slice(1, self.codebooks)
        heads = model.local_to_speech_embedding_mlps, model.layer_norm_before_lm_heads, model.lm_heads
        layers = model.speech_embedding_to_local_mlp, model.local_transformer
        self.reader = nn.ModuleList([*layers, *(each[own] for each in heads)])

    def embed(self, tokens: Tensor, books: Tensor | int) -> Tensor:
        model = self._model

        def one(book: int, own: Tensor) -> Tensor:
            return model.table(book)[own if book else model.decision_ids(own)]

        table = model.table(0)
        tokens = tokens.clamp(max=self.vocab_size - 1)
        return by_index(tokens, books, self.codebooks, table.shape[1], table.dtype, one)

    def run(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        x = self._model.speech_embedding_to_local_mlp(embeds)
        hidden: Tensor = self._model.local_transformer(x, mask, cache)
        return hidden

    def head(self, hidden: Tensor, heads: Tensor | int) -> Tensor:
        model = self._model
        return by_index(
            hidden,
            heads,
            self.codebooks - 1,
            self.vocab_size,
            hidden.dtype,
            lambda head, own: model.logits(own, head + 1),
        )


def frame_ends(frames: Tensor) -> Tensor:
    """Frames int64 [..., 1 + K] to bool [...]: True for frames that end their row."""
    return frames[..., 0] == END


def frame_spec(length: int, sampling: SamplingParams) -> FrameSpec:
    """The frames to generate; decisions are sampled with a temperature of their own."""
    first = SamplingParams(0.0) if sampling.temperature == 0 else SamplingParams()
    ends: Callable[[Tensor], Tensor] = frame_ends
    return FrameSpec(length, ends, END, first, sampling)
