"""Kyutai TTS frame by frame: whether the next word begins, and the codes along the depth, each with its delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.models.kyutai_tts.depth import KyutaiDepth
from mmspec.audio.models.kyutai_tts.machine import LAST, NEW_WORD_ID, PAD, WORD, Machine, State
from mmspec.audio.models.kyutai_tts.model import Attention, KyutaiTTS, MainLayer, attend, rotated
from mmspec.decoding.attention_masks import additive_mask
from mmspec.decoding.target import cache_bytes
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rows import put_host_rows, put_rows
from mmspec.sampling.sampler import TokenSampler

TEXT_TOP_K = 25  # of the original's decision, among text ids


class VoicedDecoder:
    """The transformer over the frames, with the voices that its rows attend to.

    Args:
        model: The model.
        voices: [B, S, D], see `KyutaiTTS.voice_states`.

    Attributes:
        model: The model.
        voices: The voices.
    """

    def __init__(self, model: KyutaiTTS, voices: Tensor) -> None:
        self.model, self.voices = model, voices
        self._keys: list[tuple[Tensor, Tensor]] = []
        for layer in model.transformer.layers:
            assert isinstance(layer, MainLayer)
            weight = in_proj(layer.cross_attention)[model.config.main.dim :]
            both = F.linear(voices, weight).unflatten(-1, (2, model.config.main.heads, -1))
            key, value = both.permute(2, 0, 3, 1, 4)
            self._keys.append((key, value))

    def __call__(
        self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: SlotCache, **_: Any
    ) -> Any:
        """See `mmspec.hf.causal_target.Backbone`."""
        config, x = self.model.config, inputs_embeds
        keys = torch.arange(attention_mask.shape[-1], device=x.device)
        near = position_ids[:, None, :, None] - keys < config.context
        mask = attention_mask + additive_mask(near[:, 0], x.dtype)

        def rotate(each: Tensor) -> Tensor:
            return rotated(each, position_ids, config.max_period)

        for number, layer in enumerate(self.model.transformer.layers):
            assert isinstance(layer, MainLayer)
            own, cross = layer.self_attn, layer.cross_attention
            qkv = F.linear(layer.norm1(x), in_proj(own))
            x = x + own.out_projs[0](attend(qkv, config.main.heads, mask, past_key_values, number, rotate))
            query = F.linear(layer.norm_cross(x), in_proj(cross)[: config.main.dim])
            query = query.unflatten(-1, (config.main.heads, -1)).transpose(1, 2)
            seen = F.scaled_dot_product_attention(query, *self._keys[number])
            x = x + cross.out_projs[0](seen.transpose(1, 2).flatten(2))
            x = x + layer.gating(layer.norm2(x))
        return SimpleNamespace(last_hidden_state=self.model.out_norm(x))

    def select_rows(self, row_ids: list[int]) -> None:
        """Keeps these rows only."""
        self.voices = self.voices[row_ids]
        self._keys = [(key[row_ids], value[row_ids]) for key, value in self._keys]

    def join(self, other: VoicedDecoder, row_ids: list[int]) -> None:
        """Takes in the rows of `other`, whose voices have the same length."""
        self.voices = put_rows(self.voices, other.voices, row_ids)
        pairs = zip(self._keys, other._keys, strict=True)
        self._keys = [(put_rows(k, k2, row_ids), put_rows(v, v2, row_ids)) for (k, v), (k2, v2) in pairs]


def in_proj(attention: Attention) -> Tensor:
    """The weight [3 * D, D] of an attention's queries, keys and values."""
    weight = attention.in_projs[0].weight
    assert isinstance(weight, Tensor)
    return weight


class KyutaiFrames:
    """A model with its texts and voices given: a `mmspec.audio.depth.depth_decoding.FrameModel`.

    The first token of a frame is a decision of `mmspec.audio.models.kyutai_tts.machine`; its logits include the
    sampling parameters. The codes after it are those of one step, each codebook with its delay; the id after the codes
    is an absent one.

    Args:
        model: The model.
        machines: The words of each row.
        voices: [B, S, D], see `KyutaiTTS.voice_states`.
        words: The words of the conditions.
        length: Frames to generate.
        sampling: Sampling parameters; the temperature applies to decisions too.
        codebooks: Codebooks to generate; the others are absent.
    """

    def __init__(
        self,
        model: KyutaiTTS,
        machines: Sequence[Machine],
        voices: Tensor,
        words: Mapping[str, str],
        length: int,
        sampling: SamplingParams,
        codebooks: int,
    ) -> None:
        config, rows = model.config, len(machines)
        self.codes, self.device = codebooks, model.device
        self._model, self._machines, self._sampling = model, list(machines), sampling
        self._states: list[State] = [machine.start() for machine in machines]
        self._length = np.zeros(rows, dtype=np.int64)
        self._decoder = VoicedDecoder(model, voices)

        def head(hidden: Tensor) -> Tensor:
            logits: Tensor = model.text_linear(hidden)
            return decision(logits, sampling)

        parts = Backbone(self._decoder, model.embed_columns, head, LAST + 1, self.device)
        first = torch.full((rows, 1, 1 + config.codebooks), config.card, device=self.device)
        first[..., 0] = config.text_card
        with torch.inference_mode():
            added = model.condition_sum(words).expand(rows, 1, -1)
            embeds = model.embed_columns(first) + added
        place = torch.zeros(1, rows, 1, dtype=torch.int64, device=self.device)
        prompt = Prompt(embeds, torch.ones(rows, 1, dtype=torch.bool, device=self.device), place, added=added)
        self._target = CausalTarget(parts, prompt, None, length, 0)

    def start(self) -> Logits:
        return self._decided(self._target.prefill())

    def step(self, frame: Tensor) -> Logits:
        config, rows = self._model.config, len(frame)
        texts = np.empty(rows, dtype=np.int64)
        for row, choice in enumerate(frame[:, 0].tolist()):
            self._states[row], texts[row] = self._machines[row].step(self._states[row], choice)
        self._length = self._length + 1
        codes = F.pad(frame[:, 1:], (0, config.codebooks - self.codes), value=config.card)
        # Until its delay is over, a codebook has the token that it begins with; an absent code is zero.
        begun = torch.from_numpy(self._length[:, None] > np.array(config.delays)).to(self.device)
        codes = torch.where(begun, torch.where(codes == config.card, -1, codes), config.card)
        columns = torch.cat([torch.from_numpy(texts).to(self.device)[:, None], codes], dim=1)
        return self._decided(self._target.forward(columns[:, None], self._length - 1))

    def depth(self, first: Tensor, start: int, window: int) -> KyutaiDepth:
        texts = [
            machine.step(state, choice)[1]
            for machine, state, choice in zip(self._machines, self._states, first[:, 0].tolist(), strict=True)
        ]
        config = self._model.config
        audible = np.array(config.delays[: self.codes]) + config.delay_steps
        absent: NDArray[np.bool_] = self._length[:, None] < audible
        text = torch.tensor(texts, device=self.device)
        return KyutaiDepth(self._model, self._target.features()[:, -1], text, absent, start, window)

    def select_rows(self, row_ids: list[int]) -> None:
        self._target.select_rows(row_ids)
        self._decoder.select_rows(row_ids)
        self._length = self._length[row_ids]
        self._machines, self._states = [self._machines[n] for n in row_ids], [self._states[n] for n in row_ids]

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)

    def can_join(self, other: object) -> bool:
        """Whether the rows of `other` can join: they are sampled in the same way, and voices have one length."""
        return (
            isinstance(other, KyutaiFrames)
            and (other._model, other._sampling, other.codes) == (self._model, self._sampling, self.codes)
            and other._decoder.voices.shape[1] == self._decoder.voices.shape[1]
            and self._target.can_join(other._target)
        )

    def join(self, other: KyutaiFrames, row_ids: list[int]) -> None:
        """Takes in the rows of `other`; see `mmspec.decoding.target.JoinableTarget.join`."""
        self._target.join(other._target, row_ids)
        self._decoder.join(other._decoder, row_ids)
        self._length = put_host_rows(self._length, other._length, row_ids)
        machines, states = dict(enumerate(self._machines)), dict(enumerate(self._states))
        machines |= dict(zip(row_ids, other._machines, strict=True))
        states |= dict(zip(row_ids, other._states, strict=True))
        self._machines = [machines[row] for row in range(len(machines))]
        self._states = [states[row] for row in range(len(states))]

    def _decided(self, logits: Logits) -> Logits:
        """Logits [B, 1, V] of decisions, where the machine leaves one."""
        forced = [machine.forced(state) for machine, state in zip(self._machines, self._states, strict=True)]
        given = torch.tensor([-1 if choice is None else choice for choice in forced], device=self.device)[:, None, None]
        only = torch.where(torch.arange(LAST + 1, device=self.device) == given, 0.0, -torch.inf)
        return Logits(torch.where(given < 0, logits.cond, only), None)


def decision(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Log-probabilities [..., 3] of decisions: the model wants a word if it samples the text id of one.

    Args:
        logits: Of text ids, [..., V].
        sampling: Its temperature applies, and `TEXT_TOP_K`.
    """
    flat = logits.flatten(0, -2)[None].float()
    sampler = TokenSampler([SamplingParams(sampling.temperature, TEXT_TOP_K)], None, logits.device)
    p = sampler(Logits(flat, None), np.zeros(flat.shape[:2], dtype=np.int64))[0, :, NEW_WORD_ID].clamp(max=1)
    out = torch.stack([1 - p, p, torch.zeros_like(p)], dim=-1)
    assert (PAD, WORD, LAST) == (0, 1, 2)
    return out.log().view(*logits.shape[:-1], LAST + 1)


def frame_spec(model: KyutaiTTS, length: int, sampling: SamplingParams) -> FrameSpec:
    """The frames to generate; the logits of decisions have the sampling parameters, see `KyutaiFrames`."""
    first = SamplingParams(0.0) if sampling.temperature == 0 else SamplingParams()
    return FrameSpec(length, lambda frames: frames[..., 0] == LAST, model.config.card, first, sampling)
