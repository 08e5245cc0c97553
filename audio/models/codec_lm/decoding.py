"""Codec language models: a Llama or Qwen decoder with a separate embedding and head for codes.

CosyVoice 2 and 3 and Chatterbox are of this kind. Their text frontend makes the prompt, as embeddings; then the model
generates one code after the other, with logits processors that depend on the latest codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.decoding.processed_target import LogitsProcessor, ProcessedTarget, guidance
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt, with_cuda_graphs
from mmspec.sampling.logits_processors import MinP, RepetitionPenalty
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class CodecLMSettings:
    """How codes are sampled.

    Attributes:
        processors: Logits processors, in order.
        sampling: Sampling parameters, applied after the processors.
        guidance: g in `uncond + g * (cond - uncond)`; 1 is off.
    """

    processors: tuple[LogitsProcessor, ...]
    sampling: SamplingParams
    guidance: float = 1.0


def chatterbox(
    temperature: float = 0.8, min_p: float = 0.05, top_p: float = 1.0, penalty: float = 1.2, cfg_weight: float = 0.5
) -> CodecLMSettings:
    """The settings of Chatterbox, whose guidance is `cond + cfg_weight * (cond - uncond)`: g is `1 + cfg_weight`."""
    processors: list[LogitsProcessor] = [RepetitionPenalty(penalty)]
    if min_p:
        processors.append(MinP(min_p, temperature))
    return CodecLMSettings(tuple(processors), SamplingParams(temperature, top_p=top_p), 1 + cfg_weight)


class LearnedPositions:
    """A decoder that adds learned positions to the embeddings of codes, besides its own rotary positions.

    Args:
        decoder: A decoder of transformers.
        table: Vectors [P, D]; inputs without a learned position, such as the prompt, have index P.
    """

    def __init__(self, decoder: Any, table: Tensor) -> None:
        self._decoder = decoder
        self._table = torch.cat([table, torch.zeros_like(table[:1])])

    def __call__(self, inputs_embeds: Tensor, position_ids: Tensor, **inputs: Any) -> Any:
        """Runs the decoder; `position_ids` int64 [2, R, W] holds rotary positions and learned positions."""
        rotary_ids, learned_ids = position_ids
        return self._decoder(inputs_embeds=inputs_embeds + self._table[learned_ids], position_ids=rotary_ids, **inputs)


@dataclass(frozen=True)
class CodecLM:
    """The part of a model that generates codes.

    Attributes:
        decoder: A `LlamaModel`, a `Qwen2Model` or similar.
        embed: Embedding of the V codes and special tokens.
        head: Maps hidden states to V logits.
        learned_positions: Learned positions of codes [P, D], or None. Position 0 is that of the start token, the
            last token of a prompt.
    """

    decoder: Any
    embed: nn.Embedding
    head: nn.Linear
    learned_positions: Tensor | None = None

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
            cond: Embeddings [T_row, D] of each row's prompt.
            uncond: Embeddings of the unconditional prompts, if `settings` has guidance.
            length: Codes to generate.
            window: How far a window may reach past the end.
            settings: How codes are sampled.
            before: int64 [B, n], codes that the logits processors see before the first one, such as the start token of
                Chatterbox.
        """
        backbone = Backbone(
            self.decoder if self.learned_positions is None else LearnedPositions(self.decoder, self.learned_positions),
            self.embed,
            self.head,
            self.head.out_features,
            self.embed.weight.device,
        )
        prompt, uncond_prompt = self._prompt(cond, length), None if uncond is None else self._prompt(uncond, length)
        target = with_cuda_graphs(CausalTarget(backbone, prompt, uncond_prompt, length, window))
        history = torch.empty(len(cond), 0, dtype=torch.int64) if before is None else before
        return ProcessedTarget(target, settings.processors, history, length + window, guidance(settings.guidance))

    def _prompt(self, rows: Sequence[Tensor], length: int) -> Prompt:
        longest = max(len(row) for row in rows)
        embeds = torch.stack([nn.functional.pad(row, (0, 0, longest - len(row), 0)) for row in rows])
        lengths = torch.tensor([len(row) for row in rows], device=embeds.device)
        mask = torch.arange(longest, device=embeds.device) >= longest - lengths[:, None]
        counted = (mask.long().cumsum(-1) - 1).clamp(min=0)[None]
        if self.learned_positions is None:
            return Prompt(embeds, mask, counted)
        steps = torch.arange(1, length + 1, device=embeds.device)
        following = torch.stack(
            [lengths[:, None] - 1 + steps, steps.clamp(max=len(self.learned_positions) - 1).expand(len(rows), -1)]
        )
        return Prompt(
            embeds, mask, torch.cat([counted, torch.full_like(counted, len(self.learned_positions))]), following
        )
