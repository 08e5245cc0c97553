"""MOSS-TTS with delays (OpenMOSS): columns of a token of text and K codes, codebook k a column after codebook k - 1.

The token of text tells where an audio segment ends: while there are frames to come it is the generation slot; with the
first delay slot, in column s, the last frame begins. Column s + K is the end. A code is sampled where its codebook has
a frame, and is padding elsewhere. All of it is a function of the columns so far.

Here a prompt ends with the token that begins audio, and the token of text is one of three: cell 0 of a column is `GEN`,
`DELAY` or `END`. The cells after it are the codes, of which the last is padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model, TopKLogitsWarper, TopPLogitsWarper

from mmspec.audio.config_file import integer_in
from mmspec.audio.multi_codebook.column_target import ColumnTarget
from mmspec.audio.multi_codebook.decoding import ColumnDecodingPlan
from mmspec.audio.multi_codebook.history import ColumnHistory, EndRule
from mmspec.audio.multi_codebook.history_target import HistoryTarget
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.errors import ModelError
from mmspec.hf.causal_target import CausalTarget, Prompt, with_cuda_graphs
from mmspec.hf.plan import position_ids_of
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams

if TYPE_CHECKING:
    from mmspec.kernels.fused_sampler import Settings

GEN, DELAY, END = 0, 1, 2


@dataclass(frozen=True)
class MossConfig:
    """The part of `config.json` that decoding needs.

    Attributes:
        language: The config of the Qwen3.
        codebooks: K.
        codes: Codes of a codebook; the next id is padding.
        slots: The text ids of `GEN`, `DELAY` and `END`.
        start: The text id that begins audio.
        user_slot: The text id in place of audio in a user's message.
        pad: The text id of padding.
    """

    language: Qwen3Config
    codebooks: int
    codes: int
    slots: tuple[int, int, int]
    start: int
    user_slot: int
    pad: int


def read_config(found: Mapping[str, Any], what: str) -> MossConfig:
    """Reads a `config.json`; missing values are those of the original's class.

    Raises:
        ModelError: If a value is missing or not allowed.
    """

    value = partial(integer_in, found, what)
    language = found.get("language_config")
    if not isinstance(language, Mapping):
        raise ModelError(f"{what} has no language_config in its config.json")
    config = MossConfig(
        Qwen3Config(**language),
        value("n_vq", 32),
        value("audio_vocab_size", 1024),
        (
            value("audio_assistant_gen_slot_token_id", 151656),
            value("audio_assistant_delay_slot_token_id", 151662),
            value("audio_end_token_id", 151653),
        ),
        value("audio_start_token_id", 151652),
        value("audio_user_slot_token_id", 151654),
        value("pad_token_id", 151643),
    )
    largest = max(*config.slots, config.start, config.user_slot, config.pad)
    if largest >= config.language.vocab_size or config.codebooks < 1 or config.codes < 3:
        raise ModelError(
            f"{what} has a config.json that contradicts itself: n_vq={config.codebooks}, audio_vocab_size="
            f"{config.codes}, and {largest} of {config.language.vocab_size} text ids"
        )
    if found.get("audio_pad_code", config.codes) != config.codes:
        raise ModelError(
            f"{what} has audio_pad_code={str(found['audio_pad_code'])[:80]!r}; {config.codes} is supported"
        )
    return config


class MossTTS(nn.Module):
    """A MOSS-TTS with delays, with the parameter names of the published files.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: MossConfig) -> None:
        super().__init__()
        self.config = config
        width, ids = config.language.hidden_size, config.codes + 1
        self.language_model = Qwen3Model(config.language)
        self.emb_ext = nn.ModuleList(nn.Embedding(ids, width) for _ in range(config.codebooks))
        sizes = [config.language.vocab_size] + [ids] * config.codebooks
        self.lm_heads = nn.ModuleList(nn.Linear(width, size, bias=False) for size in sizes)

    @property
    def device(self) -> torch.device:
        return self.language_model.embed_tokens.weight.device

    def embed(self, text: Tensor, codes: Tensor) -> Tensor:
        """Embeddings [..., D] of text ids int64 [...] and codes int64 [..., K]."""
        embeds: Tensor = self.language_model.embed_tokens(text)
        for table, column in zip(self.emb_ext, codes.unbind(-1), strict=True):
            embeds = embeds + table(column)
        return embeds

    def embed_columns(self, columns: Tensor) -> Tensor:
        """Embeddings [..., D] of columns int64 [..., 1 + K]."""
        (gen, delay, end), first = self.config.slots, columns[..., 0]
        return self.embed(torch.where(first <= GEN, gen, torch.where(first == DELAY, delay, end)), columns[..., 1:])

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to logits [..., 1 + K, codes + 1]; cell 0 has those of `GEN` and `DELAY`."""
        first = self.lm_heads[0]
        assert isinstance(first, nn.Linear)
        text = F.linear(hidden, torch.stack([first.weight[slot] for slot in self.config.slots[:END]]))
        text = F.pad(text, (0, self.config.codes + 1 - END), value=-torch.inf)
        return torch.stack([text, *(head(hidden) for head in self.lm_heads[1:])], dim=-2)


@dataclass(frozen=True)
class MossRequest:
    """A batch of prompts, padded on the left.

    Attributes:
        text: int64 [B, T].
        codes: int64 [B, T, K].
        mask: bool [B, T], False on padding.
        length: Columns to generate.
        sampling: Sampling parameters of codes; a temperature of 0 takes the most likely token of text too.
        text_temperature: The temperature of tokens of text.
    """

    text: Tensor
    codes: Tensor
    mask: Tensor
    length: int
    sampling: SamplingParams
    text_temperature: float


def plan(model: MossTTS, request: MossRequest) -> ColumnDecodingPlan:
    """The plan of a request with a model, which is the target's or the draft model."""
    cells, size = model.config.codebooks + 1, model.config.codes + 1

    def target(window: int, guided: bool) -> MossTarget:
        inner = ColumnTarget(
            model.language_model,
            model.embed_columns,
            model.logits,
            cells,
            size,
            Prompt(model.embed(request.text, request.codes), request.mask, position_ids_of(request.mask)),
            False,
            request.length,
            window,
        )
        history = ColumnHistory(
            torch.empty(len(request.text), 0, cells, dtype=torch.int64, device=model.device), request.length + window
        )
        return MossTarget(with_cuda_graphs(inner), history, request.sampling, request.text_temperature)

    layout = Layout(request.length, cell=(cells,), pad=END, ends=lambda columns: columns[..., 0] == END)
    # The target's logits are those of the final distribution.
    sampling = SamplingParams(0.0 if request.sampling.temperature == 0 else 1.0)
    return ColumnDecodingPlan(target, layout, size, sampling, False)


class MossTarget(HistoryTarget):
    """A MOSS-TTS whose logits include what a column may contain, and the sampling parameters of its cells.

    Args:
        inner: The model.
        history: The columns that it reads.
        sampling: Sampling parameters of codes.
        text_temperature: The temperature of tokens of text.
    """

    SAME = ("_sampling", "_text_temperature")

    def __init__(
        self,
        inner: CausalTarget | CUDAGraphTarget,
        history: ColumnHistory,
        sampling: SamplingParams,
        text_temperature: float,
    ) -> None:
        super().__init__(inner, history)
        self._sampling, self._text_temperature = sampling, text_temperature
        self._cells = history.cells
        self._by_columns: dict[tuple[int, bool], tuple[Settings, Tensor]] = {}

    def _rule(self) -> EndRule:
        # Cell 0 waits for the last codebook; codebook k is padding after the k-th column, and before its first frame.
        cells = self._cells
        book, since = torch.arange(cells - 1)[:, None], torch.arange(cells + 1)
        text = torch.where(since >= cells - 1, END, DELAY).masked_fill_(since == 0, -1)
        codes = torch.where(since > book, self.vocab_size - 1, -1)
        opening = torch.where(torch.arange(cells - 1)[:, None] < book[:, 0], self.vocab_size - 1, -1)
        opening = F.pad(opening, (1, 0), value=-1)
        both = torch.cat([text[None], codes])
        return EndRule(DELAY, 1, both.to(self.device), opening=opening.to(self.device))

    def _forced(self, logits: Logits, must: Tensor, at: Numbers) -> Logits:
        # Imported here: Triton may be missing.
        from mmspec.kernels.column_rules import forced_logits
        from mmspec.kernels.fused_sampler import fused_sample

        shape, begins = logits.cond.shape, bool(at.host.max() < 0)
        settings, u = self._settings(shape[0] * shape[1], begins)
        stats = fused_sample(logits.cond.reshape(-1, 1, shape[-1]), None, settings, u).stats
        return Logits(forced_logits(stats, must.view(-1, 1)).view(shape), None)

    def _settings(self, columns: int, begins: bool) -> tuple[Settings, Tensor]:
        """The sampling parameters of the cells of some columns, and random numbers of samples that are not used."""
        if (known := self._by_columns.get((columns, begins))) is not None:
            return known
        from mmspec.kernels.fused_sampler import Settings

        s, codes, one = self._sampling, self._cells - 1, torch.ones(columns * self._cells, 1, device=self.device)
        # The kinds of cells: codes, text, and the first text.
        allowed = torch.ones(3, self.vocab_size, dtype=torch.bool)
        allowed[0, -1] = allowed[2, DELAY] = False

        def of_cells(text: float, code: float, dtype: torch.dtype) -> Tensor:
            return torch.tensor([text, *[code] * codes], dtype=dtype).repeat(columns).to(self.device)

        greedy = s.temperature == 0
        temperature = (1.0, 1.0) if greedy else (self._text_temperature, s.temperature)
        settings = Settings(
            one,
            of_cells(*temperature, torch.float32),
            of_cells(0, s.top_k, torch.int32) if s.top_k and not greedy else None,
            of_cells(1.0, s.top_p, torch.float32) if s.top_p < 1 and not greedy else None,
            of_cells(2 if begins else 1, 0, torch.int32)[:, None].contiguous(),
            allowed.to(self.device),
        )
        known = self._by_columns[columns, begins] = settings, torch.zeros_like(one)
        return known

    def _processed(self, logits: Logits, positions: Numbers) -> Logits:
        """The logits [B, W, 1 + K, V] of the given positions, [B, W]."""
        z, pad = logits.cond.float(), self.vocab_size - 1
        place = positions.on(z.device)
        since = place - self._history.first(DELAY, 1, positions)  # columns since the first delay slot; negative before
        book = torch.arange(z.shape[2] - 1, device=z.device)
        sampled = (place[..., None] >= book) & ((since <= 0)[..., None] | (book >= since[..., None]))  # [B, W, K]
        text, codes = (
            z[:, :, :1].clone(),
            self._truncated(F.pad(z[:, :, 1:, :pad], (0, 1), value=-torch.inf)),
        )
        text[..., 0, DELAY] = text[..., 0, DELAY].masked_fill(place == 0, -torch.inf)
        if self._sampling.temperature > 0:
            text = text / self._text_temperature
        forced = torch.where(since >= len(book), END, DELAY)
        text = torch.where((since > 0)[..., None, None], one_hot(forced[..., None], self.vocab_size), text)
        codes = torch.where(sampled[..., None], codes, one_hot(torch.full_like(book, pad), self.vocab_size))
        return Logits(torch.cat([text, codes], dim=2), None)

    def _truncated(self, z: Tensor) -> Tensor:
        """Logits of codes [B, W, K, V] after temperature, top-k and top-p."""
        s = self._sampling
        if s.temperature == 0:
            return z
        flat = z.flatten(0, -2) / s.temperature
        ids = torch.empty(len(flat), 0, dtype=torch.int64, device=z.device)
        flat = TopKLogitsWarper(min(s.top_k, z.shape[-1]))(ids, flat) if s.top_k else flat
        flat = TopPLogitsWarper(s.top_p)(ids, flat) if s.top_p < 1 else flat
        return flat.view_as(z)


def one_hot(token: Tensor, vocab_size: int) -> Tensor:
    """Logits [..., V] that allow only `token`, int64 [...]."""
    return torch.where(torch.arange(vocab_size, device=token.device) == token[..., None], 0.0, -torch.inf)
