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
from mmspec.audio.depth.depth_frames import left_padded
from mmspec.audio.models.kyutai_tts.depth import KyutaiDepth
from mmspec.audio.models.kyutai_tts.machine import LAST, NEW_WORD_ID, PAD, WORD, Machine, State
from mmspec.audio.models.kyutai_tts.model import Attention, KyutaiTTS, MainLayer, attend, rotated
from mmspec.audio.models.kyutai_tts.prefix import Prefixes, read_codes, without_voice
from mmspec.decoding.target import cache_bytes
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.plan import position_ids_of
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
        voices: [B, S, D], see `KyutaiTTS.voice_states`; None for models that attend to none.

    Attributes:
        model: The model.
        voices: The voices.
    """

    def __init__(self, model: KyutaiTTS, voices: Tensor | None) -> None:
        self.model, self.voices = model, voices
        self._keys: list[tuple[Tensor, Tensor]] = []
        for layer in model.transformer.layers:
            if voices is None:
                break
            assert isinstance(layer, MainLayer) and layer.cross_attention is not None
            weight = in_proj(layer.cross_attention)[model.config.main.dim :]
            both = F.linear(voices, weight).unflatten(-1, (2, model.config.main.heads, -1))
            key, value = both.permute(2, 0, 3, 1, 4)
            self._keys.append((key, value))

    def __call__(
        self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: SlotCache, **_: Any
    ) -> Any:
        """See `mmspec.hf.causal_target.Backbone`."""
        config, x = self.model.config, inputs_embeds
        # Slots of a row may begin with padding, so that keys are counted.
        far = (attention_mask == 0).flip(-1).cumsum(-1).flip(-1) > config.context
        mask = attention_mask.masked_fill(far, torch.finfo(x.dtype).min)

        def rotate(each: Tensor) -> Tensor:
            return rotated(each, position_ids, config.max_period)

        for number, layer in enumerate(self.model.transformer.layers):
            assert isinstance(layer, MainLayer)
            own, cross = layer.self_attn, layer.cross_attention
            qkv = F.linear(layer.norm1(x), in_proj(own))
            x = x + own.out_projs[0](attend(qkv, config.main.heads, mask, past_key_values, number, rotate))
            if cross is not None and layer.norm_cross is not None:
                query = F.linear(layer.norm_cross(x), in_proj(cross)[: config.main.dim])
                query = query.unflatten(-1, (config.main.heads, -1)).transpose(1, 2)
                seen = F.scaled_dot_product_attention(query, *self._keys[number])
                x = x + cross.out_projs[0](seen.transpose(1, 2).flatten(2))
            x = x + layer.gating(layer.norm2(x))
        return SimpleNamespace(last_hidden_state=self.model.out_norm(x))

    def select_rows(self, row_ids: list[int]) -> None:
        """Keeps these rows only."""
        self.voices = None if self.voices is None else self.voices[row_ids]
        self._keys = [(key[row_ids], value[row_ids]) for key, value in self._keys]

    def join(self, other: VoicedDecoder, row_ids: list[int]) -> None:
        """Takes in the rows of `other`, whose voices have the same length."""
        if self.voices is not None and other.voices is not None:
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
    is an absent one. Frames begin after the prefix of a row. Guidance applies to codes alone; its unconditional rows
    read neither text nor prefix.

    Args:
        model: The model.
        machines: The words of each row.
        voices: What the rows attend to, [B, S, D], see `KyutaiTTS.voice_states`; or the prefix of each row, int64
            [K, P].
        words: The words of the conditions.
        length: Frames to generate.
        sampling: Sampling parameters; the temperature applies to decisions too.
        codebooks: Codebooks to generate; the others are absent.
    """

    def __init__(
        self,
        model: KyutaiTTS,
        machines: Sequence[Machine],
        voices: Tensor | Sequence[Tensor],
        words: Mapping[str, str],
        length: int,
        sampling: SamplingParams,
        codebooks: int,
    ) -> None:
        rows = len(machines)
        self.codes, self.device = codebooks, model.device
        self._model, self._machines, self._sampling = model, list(machines), sampling
        self._states: list[State] = [machine.start() for machine in machines]
        self._length = np.zeros(rows, dtype=np.int64)  # frames since the prefix
        attended = voices if isinstance(voices, Tensor) else None
        nothing = [torch.empty(codebooks, 0, dtype=torch.int64)] * rows
        self._prefixes = Prefixes(model.config, nothing if isinstance(voices, Tensor) else voices, codebooks)
        self._decoder = VoicedDecoder(model, attended)
        self._guided = attended is None and sampling.guidance_scale != 1

        def head(hidden: Tensor) -> Tensor:
            logits: Tensor = model.text_linear(hidden)
            return decision(logits, sampling)

        def embed(columns: Tensor) -> Tensor:
            if self._guided:
                cond, uncond = columns.chunk(2)
                columns = torch.cat([cond.chunk(2, dim=-1)[0], uncond.chunk(2, dim=-1)[1]])
            return model.embed_columns(columns)

        parts = Backbone(self._decoder, embed, head, LAST + 1, self.device)
        columns, uncond = [own.to(self.device) for own in self._prefixes.prompts()], None
        if self._guided:
            silent = [
                without_voice(own[None], *self._places(np.arange(len(own))[None], [row]), model.config)[0]
                for row, own in enumerate(columns)
            ]
            uncond = self._prompt(silent, dict.fromkeys(words))
        self._target = CausalTarget(parts, self._prompt(columns, words), uncond, length, 0)

    def start(self) -> Logits:
        return self._decided(self._target.prefill())

    def step(self, frame: Tensor) -> Logits:
        rows, config = len(frame), self._model.config
        texts = np.empty(rows, dtype=np.int64)
        for row, choice in enumerate(frame[:, 0].tolist()):
            self._states[row], texts[row] = self._machines[row].step(self._states[row], choice)
        self._length = self._length + 1
        positions, lengths = self._places((self._prefixes.lengths + self._length)[:, None], range(rows))
        text = torch.from_numpy(texts).to(self.device)[:, None, None]
        columns = torch.cat([text, read_codes(frame[:, None, 1:], positions, config)], dim=-1)
        if self._guided:  # both sides; see `embed` above
            columns = torch.cat([columns, without_voice(columns, positions, lengths, config)], dim=-1)
        return self._decided(self._target.forward(columns, self._length - 1))

    def depth(self, first: Tensor, start: int, window: int) -> KyutaiDepth:
        texts = [
            machine.step(state, choice)[1]
            for machine, state, choice in zip(self._machines, self._states, first[:, 0].tolist(), strict=True)
        ]
        given = self._prefixes.given((self._prefixes.lengths + self._length)[:, None])[:, 0]
        text = torch.tensor(texts, device=self.device)
        return KyutaiDepth(self._model, self._target.features()[:, -1], text, given, start, window)

    def _prompt(self, columns: Sequence[Tensor], words: Mapping[str, str | None]) -> Prompt:
        with torch.inference_mode():
            added = self._model.condition_sum(words)
            embeds, mask = left_padded([self._model.embed_columns(own) + added for own in columns])
        return Prompt(embeds, mask, position_ids_of(mask), added=added.expand(len(columns), 1, -1))

    def _places(self, positions: NDArray[np.int64], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Positions, host int64 [B, W], and the lengths of the prefixes of rows, on the device."""
        lengths = torch.from_numpy(self._prefixes.lengths[list(rows)])
        return torch.from_numpy(positions).to(self.device), lengths.to(self.device)

    def select_rows(self, row_ids: list[int]) -> None:
        self._target.select_rows(row_ids)
        self._decoder.select_rows(row_ids)
        self._prefixes.select_rows(row_ids)
        self._length = self._length[row_ids]
        self._machines, self._states = [self._machines[n] for n in row_ids], [self._states[n] for n in row_ids]

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)

    def can_join(self, other: object) -> bool:
        """Whether the rows of `other` can join: they are sampled alike, and voices attended to have one length."""
        return (
            isinstance(other, KyutaiFrames)
            and (other._model, other._sampling, other.codes) == (self._model, self._sampling, self.codes)
            and voice_length(other._decoder.voices) == voice_length(self._decoder.voices)
            and self._target.can_join(other._target)
        )

    def join(self, other: KyutaiFrames, row_ids: list[int]) -> None:
        """Takes in the rows of `other`; see `mmspec.decoding.target.JoinableTarget.join`."""
        self._target.join(other._target, row_ids)
        self._decoder.join(other._decoder, row_ids)
        self._prefixes.join(other._prefixes, row_ids)
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
        return Logits(torch.where(given < 0, logits.cond, only), None)  # decisions are not guided


def voice_length(voices: Tensor | None) -> int | None:
    """How many vectors of a voice the rows of a batch attend to; None if to none."""
    return None if voices is None else voices.shape[1]


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
