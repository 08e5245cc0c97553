"""Kyutai TTS frame by frame: whether the next word begins, and the codes along the depth, each with its delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.audio.depth.captured_depth import CapturedDepth, DepthGraphs
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_frames import by_row, left_padded
from mmspec.audio.models.kyutai_tts.depth import KyutaiDepth, reader_of
from mmspec.audio.models.kyutai_tts.machine import LAST, NEW_WORD_ID, PAD, WORD, Machine, State
from mmspec.audio.models.kyutai_tts.model import Attention, KyutaiTTS, MainLayer, attend, rotated
from mmspec.audio.models.kyutai_tts.prefix import Prefixes, read_codes, without_voice
from mmspec.decoding.target import cache_bytes, read_window
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt, with_cuda_graphs
from mmspec.hf.plan import position_ids_of
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import TokenSampler

TEXT_TOP_K = 25  # of the original's decision, among text ids


class VoicedDecoder:
    """The transformer over the frames, with the voices that its rows attend to.

    Args:
        voices: [B, S, D], see `KyutaiTTS.voice_states`; None for models that attend to none.
    """

    ROWS = ("voices", "_keys")

    def __init__(self, model: KyutaiTTS, voices: Tensor | None) -> None:
        self.model, self.voices = model, voices
        self._keys: tuple[tuple[Tensor, Tensor], ...] = ()
        for layer in model.transformer.layers:
            if voices is None:
                break
            assert isinstance(layer, MainLayer) and layer.cross_attention is not None
            weight = in_proj(layer.cross_attention)[model.config.main.dim :]
            both = F.linear(voices, weight).unflatten(-1, (2, model.config.main.heads, -1))
            key, value = both.permute(2, 0, 3, 1, 4)
            self._keys = (*self._keys, (key, value))

    def __call__(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        cache: SlotCache,
        use_cache: bool = True,
    ) -> Any:
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
            x = x + own.out_projs[0](attend(qkv, config.main.heads, mask, cache, number, rotate))
            if cross is not None and layer.norm_cross is not None:
                query = F.linear(layer.norm_cross(x), in_proj(cross)[: config.main.dim])
                query = query.unflatten(-1, (config.main.heads, -1)).transpose(1, 2)
                seen = F.scaled_dot_product_attention(query, *self._keys[number])
                x = x + cross.out_projs[0](seen.transpose(1, 2).flatten(2))
            x = x + layer.gating(layer.norm2(x))
        return SimpleNamespace(last_hidden_state=self.model.out_norm(x))

    def tensors(self) -> list[Tensor]:
        """The keys and values of the voices, by layer."""
        return [tensor for pair in self._keys for tensor in pair]

    def take_over(self, tensors: list[Tensor]) -> None:
        """Moves to the tensors of an earlier decoder, whose voices have the same length and rows."""
        with torch.inference_mode():  # later decoders may have been made in it
            moved = [there.copy_(own) for there, own in zip(tensors, self.tensors(), strict=True)]
        self._keys = tuple(zip(moved[::2], moved[1::2], strict=True))


class VoicedTarget(CausalTarget):
    """The transformer over the frames as a target, with the voices.

    Args:
        decoder: The transformer.
    """

    ROWS = (*CausalTarget.ROWS, "_voiced")
    SAME = (*CausalTarget.SAME, "_voice_length")

    def __init__(self, decoder: VoicedDecoder, cond: Prompt, uncond: Prompt | None, length: int, slack: int) -> None:
        model, cell = decoder.model, 1 + len(decoder.model.emb)
        embed = model.embed_columns if uncond is None else partial(embed_guided, model)
        cell *= 1 + (uncond is not None)
        parts = Backbone(decoder, embed, model.text_linear, model.config.text_card_out, model.device, (cell,))
        super().__init__(parts, cond, uncond, length, slack)
        self._voiced = decoder

    @property
    def _voice_length(self) -> int | None:
        return voice_length(self._voiced.voices)

    @property
    def module(self) -> nn.Module:
        return self._voiced.model.transformer

    def shapes(self) -> tuple[Any, ...]:
        return *super().shapes(), self._voice_length

    def tensors(self) -> list[Tensor]:
        return [*self._voiced.tensors(), *super().tensors()]

    def take_over(self, tensors: list[Tensor]) -> None:
        of_voices = len(self._voiced.tensors())
        self._voiced.take_over(tensors[:of_voices])
        super().take_over(tensors[of_voices:])


def embed_guided(model: KyutaiTTS, columns: Tensor) -> Tensor:
    """Embeddings of columns [2 * B, W, 2 * C] of guidance, of which each side reads its half."""
    cond, uncond = columns.chunk(2)
    return model.embed_columns(torch.cat([cond.chunk(2, dim=-1)[0], uncond.chunk(2, dim=-1)[1]]))


def in_proj(attention: Attention) -> Tensor:
    """The weight [3 * D, D] of an attention's queries, keys and values."""
    weight = attention.in_projs[0].weight
    assert isinstance(weight, Tensor)
    return weight


class KyutaiFrames:
    """A model with its texts and voices given.

    It is a `mmspec.audio.depth.depth_decoding.FrameModel` and a `mmspec.audio.depth.frame_windows.FrameWindowModel`.

    The first token of a frame is a decision of `mmspec.audio.models.kyutai_tts.machine`; its logits include the
    sampling parameters. The codes after it are those of one step, each codebook with its delay; the id after the codes
    is an absent one. Frames begin after the prefix of a row. Guidance applies to codes alone; its unconditional rows
    read neither text nor prefix.

    Args:
        machines: The words of each row.
        voices: What the rows attend to, [B, S, D], see `KyutaiTTS.voice_states`; or the prefix of each row, int64
            [K, P].
        words: The words of the conditions.
        length: Frames to generate.
        sampling: Sampling parameters; the temperature applies to decisions too.
        codebooks: Codebooks to generate; the others are absent.
        slack: How many frames a window may reach past the end.

    Attributes:
        codes: D, tokens of a frame after the first.
        vocab_size: V, of decisions and codes alike.
        device: Where its tensors are.
    """

    ROWS = ("_target", "_prefixes", "_length", "_machines", "_states")
    SAME = ("_model", "_sampling", "codes")

    def __init__(
        self,
        model: KyutaiTTS,
        machines: Sequence[Machine],
        voices: Tensor | Sequence[Tensor],
        words: Mapping[str, str],
        length: int,
        sampling: SamplingParams,
        codebooks: int,
        slack: int = 0,
    ) -> None:
        rows = len(machines)
        self.codes, self.vocab_size, self.device = codebooks, model.config.card + 1, model.device
        self._model, self._machines, self._sampling = model, list(machines), sampling
        self.reader = reader_of(model)
        # By row, the states before each of its frames, and after the last one that was read.
        self._states: list[list[State]] = [[machine.start()] for machine in machines]
        self._length = np.zeros(rows, dtype=np.int64)  # frames since the prefix
        attended = voices if isinstance(voices, Tensor) else None
        nothing = [torch.empty(codebooks, 0, dtype=torch.int64)] * rows
        self._prefixes = Prefixes(model.config, nothing if isinstance(voices, Tensor) else voices, codebooks)
        self._guided = attended is None and sampling.guidance_scale != 1

        columns, uncond = [own.to(self.device) for own in self._prefixes.prompts()], None
        if self._guided:
            silent = [
                without_voice(own[None], *self._places(np.arange(len(own))[None], [row]), model.config)[0]
                for row, own in enumerate(columns)
            ]
            uncond = self._prompt(silent, dict.fromkeys(words))
        target = VoicedTarget(VoicedDecoder(model, attended), self._prompt(columns, words), uncond, length, slack)
        self._target, self._factor = with_cuda_graphs(target), target.cfg_factor
        self._graphs = DepthGraphs(model, rows)

    def start(self) -> Logits:
        return self._decided(self._target.prefill(), np.zeros((len(self._machines), 1), dtype=np.int64))

    def step(self, frame: Tensor) -> Logits:
        logits = self.read(frame[:, None], Numbers(self._length))
        self._length = self._length + 1
        return logits

    def depth(self, first: Tensor, start: int, window: int) -> KyutaiDepth | CapturedDepth:
        texts = self._advance(first, self._length)[:, 0]
        given = self.given_codes(self._length[:, None])[:, 0]
        frame = KyutaiDepth(self._model, self._target.features()[:, -1], texts, given, start, window)
        # A window has places that only the device knows, and would read the weights of all steps.
        return self._graphs.of(frame) if window == 1 and (given < 0).all() else frame

    def read(self, frames: Tensor, at: Numbers) -> Logits:
        config, after = self._model.config, at.host[:, None] + np.arange(1, frames.shape[1] + 1)
        texts = self._advance(frames[..., 0], at.host)
        positions, lengths = self._places(self._prefixes.lengths[:, None] + after, range(len(frames)))
        columns = torch.cat([texts[..., None], read_codes(frames[..., 1:], positions, config)], dim=-1)
        if self._guided:  # both sides; see `embed_guided`
            columns = torch.cat([columns, without_voice(columns, positions, lengths, config)], dim=-1)
        return self._decided(read_window(self._target, columns, at), after)

    def hidden(self) -> Tensor:
        return torch.cat(self._target.features().chunk(self._factor), dim=-1)

    def rest(self, hidden: Tensor, frames: Tensor, at: NDArray[np.int64]) -> Logits:
        given = self.given_codes(at[:, None] + np.arange(frames.shape[1])).reshape(-1, self.codes)
        by_frame = torch.cat(hidden.flatten(0, 1).chunk(self._factor, dim=-1))
        texts = self._advance(frames[..., 0], at).flatten()
        depth = KyutaiDepth(self._model, by_frame, texts, given, 0, 0)
        return by_row(depth.whole(frames[..., 1:].flatten(0, 1)), frames.shape[1])

    def given_codes(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._prefixes.given(self._prefixes.lengths[:, None] + frames)

    def forced_firsts(self, firsts: Tensor, counts: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
        forced = list[int]()
        for row, decisions in enumerate(firsts.tolist()):
            machine, state = self._machines[row], self._states[row][int(at[row])]
            for decision in decisions[: int(counts[row])]:
                state, _ = machine.step(state, decision)
            only = machine.forced(state)
            forced.append(-1 if only is None else only)
        return np.array(forced)

    def _prompt(self, columns: Sequence[Tensor], words: Mapping[str, str | None]) -> Prompt:
        with torch.inference_mode():
            added = self._model.condition_sum(words)
            embeds, mask = left_padded([self._model.embed_columns(own) + added for own in columns])
        return Prompt(embeds, mask, position_ids_of(mask), added=added.expand(len(columns), 1, -1))

    def _places(self, positions: NDArray[np.int64], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Positions, host int64 [B, W], and the lengths of the prefixes of rows, on the device."""
        lengths = torch.from_numpy(self._prefixes.lengths[list(rows)])
        return torch.from_numpy(positions).to(self.device), lengths.to(self.device)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)

    def _advance(self, decisions: Tensor, at: NDArray[np.int64]) -> Tensor:
        """The text ids int64 [B, n] of frames with these decisions, int64 [B, n], from host number `at` [B] on."""
        # A draft may have other ids, which are read as `PAD`; the states after `at` are replaced.
        texts = list[list[int]]()
        for row, (begin, choices) in enumerate(zip(at.tolist(), decisions.tolist(), strict=True)):
            states, own = self._states[row][: begin + 1], list[int]()
            for choice in choices:
                state, text = self._machines[row].step(states[-1], choice)
                states.append(state)
                own.append(text)
            self._states[row] = states
            texts.append(own)
        return torch.tensor(texts, device=self.device)

    def _decided(self, logits: Logits, numbers: NDArray[np.int64]) -> Logits:
        """Logits [B, n, V] of the decisions of frames, host int64 [B, n], where the machine leaves one."""
        made = F.pad(decision(logits.cond, self._sampling), (0, self.vocab_size - LAST - 1), value=-torch.inf)
        forced = [
            [machine.forced(states[number]) for number in own]
            for machine, states, own in zip(self._machines, self._states, numbers.tolist(), strict=True)
        ]
        given = torch.tensor([[-1 if choice is None else choice for choice in own] for own in forced])
        given = given.to(self.device)[..., None]
        only = torch.where(torch.arange(self.vocab_size, device=self.device) == given, 0.0, -torch.inf)
        return Logits(torch.where(given < 0, made, only), None)  # decisions are not guided


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
    p = dense(sampler(Logits(flat, None), Numbers(np.zeros(flat.shape[:2], dtype=np.int64))))[0, :, NEW_WORD_ID].clamp(
        max=1
    )
    out = torch.stack([1 - p, p, torch.zeros_like(p)], dim=-1)
    assert (PAD, WORD, LAST) == (0, 1, 2)
    return out.log().view(*logits.shape[:-1], LAST + 1)


def frame_spec(model: KyutaiTTS, length: int, sampling: SamplingParams) -> FrameSpec:
    """The frames to generate; the logits of decisions have the sampling parameters, see `KyutaiFrames`."""
    first = SamplingParams(0.0) if sampling.temperature == 0 else SamplingParams()
    return FrameSpec(length, lambda frames: frames[..., 0] == LAST, model.config.card, first, sampling)
