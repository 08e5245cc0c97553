"""Speech grafted onto a text model: a Llama or Qwen decoder with an embedding and a head of its own for codes.

CosyVoice 2 and 3 and Chatterbox are built so. Their text side makes the prompt, as vectors; from there on one code
follows the other, and what is drawn depends on what was drawn lately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.decoding.layout import Layout
from mmspec.decoding.processed_target import LogitsProcessor, ProcessedTarget, guidance
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt, with_cuda_graphs
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.logits_processors import MinP, RepetitionAware, RepetitionPenalty
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class CodecLMSettings:
    """How a family draws its codes.

    Attributes:
        rules: Of the prefix.
        sampling: What follows them.
        guidance: `uncond + g * (cond - uncond)`, 1 is off.
    """

    rules: tuple[LogitsProcessor, ...]
    sampling: SamplingParams
    guidance: float = 1.0


def cosyvoice(top_p: float = 0.8, top_k: int = 25, window: int = 10, limit: float = 1) -> CodecLMSettings:
    """That of CosyVoice 2: repetition-aware sampling, in which temperature and nucleus are contained."""
    return CodecLMSettings((RepetitionAware(top_p, top_k, window, limit),), SamplingParams())


def chatterbox(
    temperature: float = 0.8, min_p: float = 0.05, top_p: float = 1.0, penalty: float = 1.2, cfg_weight: float = 0.5
) -> CodecLMSettings:
    """That of Chatterbox, whose `cfg_weight` counts from the conditional side: guidance is 1 more."""
    rules = (RepetitionPenalty(penalty), MinP(min_p, temperature))
    return CodecLMSettings(rules, SamplingParams(temperature, top_p=top_p), 1 + cfg_weight)


class LearnedPositions:
    """A decoder whose codes have learned places of their own, besides the positions of the decoder.

    Args:
        decoder: Of transformers.
        table: Vectors by place, [places, D]; what has no place, as the prompt, has the number `places`.
    """

    def __init__(self, decoder: Any, table: Tensor) -> None:
        self._decoder = decoder
        self._table = torch.cat([table, torch.zeros_like(table[:1])])

    def __call__(self, inputs_embeds: Tensor, position_ids: Tensor, **inputs: Any) -> Any:
        """`position_ids` is int64 [2, R, W]: positions, and places."""
        positions, places = position_ids
        return self._decoder(inputs_embeds=inputs_embeds + self._table[places], position_ids=positions, **inputs)


@dataclass(frozen=True)
class CodecLM:
    """The parts that make codes.

    Attributes:
        decoder: A `LlamaModel`, a `Qwen2Model` or the like.
        embed: V vectors of codes.
        head: To V logits.
        places: Learned places of codes [places, D], or None. Place 0 is the start mark's, which ends a prompt.
    """

    decoder: Any
    embed: nn.Embedding
    head: nn.Linear
    places: Tensor | None = None

    def target(
        self,
        cond: Sequence[Tensor],
        uncond: Sequence[Tensor] | None,
        length: int,
        window: int,
        settings: CodecLMSettings,
        before: Tensor | None = None,
    ) -> ProcessedTarget:
        """The model with its prompts given.

        Args:
            cond: Vectors [T_row, D] of each row's prompt.
            uncond: Of its unconditional side, where `settings` guides.
            length: Codes to be made.
            window: How far a window may reach past the end.
            before: int64 [B, n], codes that rules count as made already, as Chatterbox counts its start mark.
        """
        backbone = Backbone(
            self.decoder if self.places is None else LearnedPositions(self.decoder, self.places),
            self.embed,
            self.head,
            self.head.out_features,
            self.embed.weight.device,
        )
        sides = [self._prompt(cond, length), None if uncond is None else self._prompt(uncond, length)]
        target = with_cuda_graphs(CausalTarget(backbone, sides[0], sides[1], length, window))  # type: ignore[arg-type]
        history = torch.empty(len(cond), 0, dtype=torch.int64) if before is None else before
        return ProcessedTarget(target, settings.rules, history, length + window, guidance(settings.guidance))

    def _prompt(self, rows: Sequence[Tensor], length: int) -> Prompt:
        longest = max(len(row) for row in rows)
        embeds = torch.stack([nn.functional.pad(row, (0, 0, longest - len(row), 0)) for row in rows])
        lengths = torch.tensor([len(row) for row in rows], device=embeds.device)
        mask = torch.arange(longest, device=embeds.device) >= longest - lengths[:, None]
        counted = (mask.long().cumsum(-1) - 1).clamp(min=0)[None]
        if self.places is None:
            return Prompt(embeds, mask, counted)
        steps = torch.arange(1, length + 1, device=embeds.device)
        following = torch.stack(
            [lengths[:, None] - 1 + steps, steps.clamp(max=len(self.places) - 1).expand(len(rows), -1)]
        )
        return Prompt(embeds, mask, torch.cat([counted, torch.full_like(counted, len(self.places))]), following)


def ending(length: int, end: Sequence[int], least: int, vocab_size: int) -> Layout:
    """A stream of at most `length` codes that may end with any of `end`, but not among its first `least` codes."""
    allowed = torch.ones(2, vocab_size, dtype=torch.bool)
    allowed[0, list(end)] = False
    return Layout(length, constraint=Constraint((torch.arange(length) >= least).long(), allowed), eos=frozenset(end))
