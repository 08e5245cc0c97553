"""Qwen3-TTS frame by frame: the talker generates the first code of a frame, the code predictor the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.models.qwen3_tts.model import Qwen3TTS
from mmspec.decoding.attention_masks import additive_mask
from mmspec.decoding.target import cache_bytes
from mmspec.errors import ModelError
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.rows import put_host_rows, put_rows

MIN_FRAMES = 2  # the original's `min_new_tokens`


class Qwen3TTSFrames:
    """A model with its prompts given.

    It is a `mmspec.audio.depth.depth_decoding.FrameModel` and a `mmspec.audio.depth.frame_windows.FrameWindowModel`.
    First tokens are codes, or the end, whose id follows the codes; the original's processor excludes all other ids of
    the talker's vocabulary. Their logits include its other processors: the repetition penalty, which counts the first
    tokens generated so far, and no end before frame 2.

    Args:
        model: The model.
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
        config = model.config
        self.vocab_size = config.codes + 1
        self.codes = config.codebooks - 1
        self.device = model.device
        self._model = model
        self._penalty = RepetitionPenalty(repetition_penalty)
        self._length = np.zeros(len(prompts), dtype=np.int64)
        embeds, mask = _padded([each for each, _ in prompts])
        # One more frame than can be read: the decoding loop may look at the end of the last window.
        self._firsts = torch.full((len(prompts), length + slack + 1), -1, dtype=torch.int64, device=self.device)
        longest = max(len(text) for _, text in prompts)
        self._text = torch.cat([_extended(text[None], longest) for _, text in prompts])
        self._end = torch.arange(self.vocab_size, device=self.device) == config.codes
        # The target is given embeddings, which depend on the position.
        parts = Backbone(model.talker.model, lambda embeds: embeds, model.first_logits, self.vocab_size, self.device)
        self._target = CausalTarget(parts, Prompt(embeds, mask, position_ids_of(mask)), None, length, slack)

    def start(self) -> Logits:
        before = np.full((len(self._firsts), 1), -1)
        return self._processed(self._target.prefill(), before)

    def step(self, frame: Tensor) -> Logits:
        logits = self.read(frame[:, None], self._length)
        self._length = self._length + 1
        return logits

    def depth(self, first: Tensor, start: int, window: int) -> Qwen3TTSDepth:
        return Qwen3TTSDepth(self._model, self._target.features()[:, -1], first, start, window)

    def read(self, frames: Tensor, at: NDArray[np.int64]) -> Logits:
        numbers = at[:, None] + np.arange(frames.shape[1])
        index = torch.from_numpy(numbers).to(self.device)
        self._firsts.scatter_(1, index, frames[..., 0])
        embeds = self._model.embed_frames(frames) + self._text_of(index)
        return self._processed(self._target.forward(embeds, at), numbers)

    def hidden(self) -> Tensor:
        return self._target.features()

    def rest(self, hidden: Tensor, frames: Tensor) -> Tensor:
        logits = Qwen3TTSDepth(self._model, hidden, frames[:, :1], 0, 0).whole(frames)
        return F.pad(logits.float(), (0, self.vocab_size - logits.shape[-1]), value=-torch.inf)

    def select_rows(self, row_ids: list[int]) -> None:
        self._target.select_rows(row_ids)
        self._length = self._length[row_ids]
        self._firsts, self._text = self._firsts[row_ids], self._text[row_ids]

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)

    def can_join(self, other: object) -> bool:
        """Whether the rows of `other` can join: it is of the same model."""
        return (
            isinstance(other, Qwen3TTSFrames)
            and other._model is self._model
            and other._penalty == self._penalty
            and self._target.can_join(other._target)
        )

    def join(self, other: Qwen3TTSFrames, row_ids: list[int]) -> None:
        """Takes in the rows of `other`; see `mmspec.decoding.target.JoinableTarget.join`."""
        self._target.join(other._target, row_ids)
        self._length = put_host_rows(self._length, other._length, row_ids)
        self._firsts = put_rows(self._firsts, other._firsts, row_ids, fill=-1)
        longest = max(self._text.shape[1], other._text.shape[1])
        self._text = put_rows(_extended(self._text, longest), _extended(other._text, longest), row_ids)

    def _processed(self, logits: Logits, last: NDArray[np.int64]) -> Logits:
        """Logits [B, n, V] after frames number `last`, host int64 [B, n], with the processors applied."""
        z, numbers = logits.cond.float(), torch.from_numpy(last).to(self.device)
        z = self._penalty(self._prefixes(numbers).flatten(0, 1), z.flatten(0, 1)).view_as(z)
        early = (numbers + 1 < MIN_FRAMES)[..., None] & self._end
        return Logits(z.masked_fill(early, -torch.inf), None)

    def _text_of(self, numbers: Tensor) -> Tensor:
        """The embeddings [B, n, D] of the text that is added to frames number int64 [B, n]."""
        index = numbers.clamp(max=self._text.shape[1] - 1)[..., None]
        return self._text.gather(1, index.expand(-1, -1, self._text.shape[2]))

    def _prefixes(self, numbers: Tensor) -> Tensor:
        """The first tokens int64 [B, n, L] of the frames up to numbers int64 [B, n]; -1 after them."""
        known = torch.arange(self._firsts.shape[1], device=self.device) <= numbers[..., None]
        return self._firsts[:, None].masked_fill(~known, -1)


class Qwen3TTSDepth:
    """The code predictor as a target of the codes of one frame after the first.

    Slot 0 of its KV cache holds the talker's hidden state, slot 1 the first code, slot 2 the code of position `start`.

    Args:
        model: The model.
        hidden: [B, D], the hidden state of the talker.
        first: int64 [B, 1], the first code.
        start: The position of the second code.
        window: How far a window may reach past the end.
    """

    def __init__(self, model: Qwen3TTS, hidden: Tensor, first: Tensor, start: int, window: int) -> None:
        self.vocab_size = int(model.config.predictor.vocab_size)
        self.device = hidden.device
        self._model = model
        self._codebooks = model.config.codebooks
        self._hidden = hidden
        self._first = model.first_ids(first)
        self._start = start
        self._cache = SlotCache(self._codebooks + 1 + window)

    def prefill(self) -> Logits:
        embeds = torch.stack([self._hidden, self._model.embed_first(self._first[:, 0])], dim=1)
        return self._read(embeds, np.tile([0, 1], (len(embeds), 1)), last=1)

    def whole(self, frame: Tensor) -> Tensor:
        """The logits [B, K - 1, V] of all codes of a frame int64 [B, K] but the first, in one call."""
        slots = np.tile(np.arange(self._codebooks), (len(frame), 1))
        embeds = torch.cat([self._hidden[:, None], self._embed(frame[:, :-1], slots[:, 1:])], dim=1)
        return self._read(embeds, slots, last=self._codebooks - 1).cond

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        slots = at[:, None] - self._start + 2 + np.arange(tokens.shape[1])
        # A draft window may begin before `start`, with tokens of the previous frame; slot 1 keeps the first code.
        given = torch.from_numpy(slots <= 1).to(self.device)
        return self._read(self._embed(torch.where(given, self._first, tokens), slots), slots)

    def select_rows(self, row_ids: list[int]) -> None:
        self._hidden, self._first = self._hidden[row_ids], self._first[row_ids]
        self._cache.select_rows(torch.tensor(row_ids, device=self.device))

    def _embed(self, tokens: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """Embeddings [B, W, D] of tokens in slots, host int64 [B, W]; every codebook has its own."""
        books = (slots - 1).clip(0, self._codebooks - 1)
        embeds = self._hidden.new_empty(*tokens.shape, self._hidden.shape[-1])
        for book in np.unique(books):
            index = torch.from_numpy(books == book).to(self.device)
            own = tokens[index]
            embeds[index] = self._model.embed_code(int(book), own) if book else self._model.embed_first(own)
        return embeds

    def _read(self, embeds: Tensor, slots: NDArray[np.int64], last: int = 0) -> Logits:
        """The logits [B, last, V] after the last tokens of a window.

        Args:
            embeds: [B, W, D].
            slots: Host int64 [B, W], the slots of the tokens, which are their positions too.
            last: How many tokens, from the end; 0 is all.
        """
        predictor, positions = self._model.talker.code_predictor, torch.from_numpy(slots).to(self.device)
        end = int(slots.max()) + 1
        self._cache.at_slots(positions, end)
        embeds = predictor.small_to_mtp_projection(embeds)
        mask = additive_mask(torch.arange(end, device=self.device) <= positions[..., None], embeds.dtype)
        out = predictor.model(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        return Logits(self._head(out.last_hidden_state[:, -last:], slots[:, -last:]), None)

    def _head(self, hidden: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """The logits [B, W, V] of hidden states at the given slots; every codebook has its own head."""
        heads = (slots - 1).clip(0, self._codebooks - 2)
        logits = hidden.new_empty(*hidden.shape[:2], self.vocab_size)
        for head in np.unique(heads):
            index = torch.from_numpy(heads == head).to(self.device)
            logits[index] = self._model.talker.code_predictor.lm_head[int(head)](hidden[index])
        return logits


def frame_ends(model: Qwen3TTS) -> Any:
    """A function of frames int64 [..., K] to bool [...]: True for frames that end their row."""
    return lambda frames: frames[..., 0] == model.config.codes


def check_draft(draft_model: Qwen3TTS, model: Qwen3TTS) -> Qwen3TTS:
    """The draft model, after a check that it generates the same frames as the model.

    Raises:
        ModelError: If its kind, codebooks or vocabularies differ.
    """
    for name in ("kind", "codebooks", "codes", "eos", "text_vocab_size"):
        ours, theirs = getattr(model.config, name), getattr(draft_model.config, name)
        if ours != theirs:
            raise ModelError(f"draft_model has {name}={theirs}, the model {ours}")
    return draft_model


def _padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows [T, D] as [B, T, D], padded on the left with zeros, and a mask bool [B, T] that is False on padding."""
    longest = max(map(len, rows))
    embeds = torch.stack([F.pad(row, (0, 0, longest - len(row), 0)) for row in rows])
    lengths = torch.tensor([[len(row)] for row in rows], device=embeds.device)
    return embeds, torch.arange(longest, device=embeds.device) >= longest - lengths


def _extended(text: Tensor, length: int) -> Tensor:
    """Embeddings [B, n, D] with their last ones repeated, [B, length, D]."""
    return torch.cat([text, text[:, -1:].expand(-1, length - text.shape[1], -1)], dim=1)
