"""A call for columns of codes: what MusicGen, Dia and Higgs Audio have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from mmspec.engine import Aids, Decoded, run
from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.call import Call
from mmspec.law import Sampling
from mmspec.loop import OnStep
from mmspec.neighbours import Codebook
from mmspec.pace import paces_of
from mmspec.recipes import Recipe
from mmspec.seeds import row_seeds
from mmspec.stats import Stats
from mmspec.target import Layout, Target


@dataclass
class ColumnOutput(GenerateDecoderOnlyOutput):
    """What `return_dict_in_generate=True` gives.

    - `sequences`: as the model's own generate has them. `columns`: int64 [B, N, K], the new ones as they were decoded.
    - `stats`: what they cost.
    """

    columns: Tensor | None = None
    stats: Stats | None = None


def ids_of(
    prompt: Tensor, decoded: Decoded, ending: Callable[[Tensor], Tensor], as_dict: bool
) -> Tensor | ColumnOutput:
    """A prompt's columns [B, P, K] and the new ones behind them, as far as the longest row goes.

    **Arguments:**

    - `ending`: tells which of the columns [B, N, K] end their row, bool [B, N].
    - `as_dict`: whether `return_dict_in_generate` was asked for.
    """
    ends = ending(decoded.tokens)
    longest = int(torch.where(ends.any(1), ends.int().argmax(1) + 1, decoded.tokens.shape[1]).max())
    sequences = torch.cat([prompt, decoded.tokens[:, :longest]], dim=1)
    if as_dict:
        return ColumnOutput(sequences=sequences, columns=decoded.tokens, stats=decoded.stats)
    return sequences


@dataclass(frozen=True)
class ColumnPlan:
    """How a call is decoded.

    - `target`: makes the model with its prompts given, for windows that may reach so many columns past the end, with
      guidance or without.
    - `layout`: of the columns to be made; `vocab_size`: V.
    - `sampling`: how each row's columns are drawn.
    - `guided`: whether the target is to have an unconditional side.
    """

    target: Callable[[int, bool], Target]
    layout: Layout
    vocab_size: int
    sampling: Sampling
    guided: bool

    def decode(
        self,
        model: Any,
        recipe: Recipe,
        seeds: Sequence[int],
        draft: ColumnPlan | None,
        on_step: OnStep | None,
        measure_entropy: bool = False,
        tables: Callable[[], Sequence[Tensor]] | None = None,
    ) -> Decoded:
        """Runs a recipe.

        **Arguments:**

        - `model`: what windows have cost of it is remembered under it.
        - `draft`: of the same call with a smaller model, for the recipe `draft`. It is not guided, which is half the
          work: a draft is tested against the law it was drawn from, whatever that is.
        - `tables`: gives what the codes stand for, float [codes, D] of each codebook, for rules that ask which of them
          are alike.

        **Raises:** `ModelError` when the draft model makes other columns.
        """
        aids = Aids(paces=paces_of(model), codebooks=None if tables is None else lambda: self._codebooks(tables()))
        if draft is not None:
            for what, theirs, ours in (
                ("codebooks", draft.layout.cell, self.layout.cell),
                ("codes", draft.vocab_size, self.vocab_size),
                ("columns", draft.layout.length, self.layout.length),
            ):
                if theirs != ours:
                    raise ModelError(f"draft_model makes {theirs} {what}, the model {ours}; they are of two families")
            s, small = draft.sampling, draft
            aids = replace(
                aids,
                draft_model=lambda: small.target(recipe.window, False),
                draft_sampling=[Sampling(s.temperature, s.top_k, s.top_p)] * len(seeds),
            )
        with torch.no_grad():
            target = self.target(recipe.window, self.guided)
            samplings = [self.sampling] * len(seeds)
            return run(target, recipe, self.layout, samplings, seeds, aids, on_step, measure_entropy)

    def _codebooks(self, tables: Sequence[Tensor]) -> list[Codebook]:
        """What codes stand for; the marks behind them are like nothing."""
        size = self.vocab_size
        parts = [table[:size] for table in tables[: self.layout.cell[0]]]
        return [Codebook(part, torch.arange(len(part)), size) for part in parts]


def decode_columns(
    call: Call,
    rows: int,
    plan: Callable[[Any], ColumnPlan],
    tables: Callable[[], Sequence[Tensor]] | None = None,
) -> Decoded:
    """Answers a call for so many rows. `plan` says how a model does; `tables` as in `ColumnPlan.decode`.

    **Raises:** `ModelError` for a draft model of another class or family.
    """
    model, seeds = call.model, row_seeds(call.seed, rows)
    draft = None if call.draft_model is None else plan(same_class(model, call.draft_model))
    return plan(model).decode(model, call.recipe, seeds, draft, call.on_step, tables=tables)


@dataclass(frozen=True)
class ColumnWork:
    """A batch of a pipeline's; see `mmspec.audio.pipeline.Work`.

    - `model`, `plan`: what decodes, and how; `draft`: how a draft model does, or None.
    - `tables`: gives what the codes stand for.
    """

    model: Any
    plan: ColumnPlan
    draft: ColumnPlan | None
    tables: Callable[[], Sequence[Tensor]]

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[Sampling],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        """Columns int64 [B, N, K]; the plan has the samplings in it."""
        return self.plan.decode(self.model, recipe, seeds, self.draft, on_step, measure_entropy, self.tables)


def same_class(model: Any, draft_model: Any) -> Any:
    """The draft model. **Raises:** `ModelError` for one of another class."""
    if type(draft_model).__name__ != type(model).__name__:
        raise ModelError(f"draft_model is a {type(draft_model).__name__}, which is another class than the model")
    return draft_model


def refuse_rules(model: Any, rules: Sequence[object]) -> None:
    """**Raises:** `ArgumentError` for processors that look back at ids, which columns do not have."""
    if rules:
        raise ArgumentError(
            f"logits_processor looks back at ids, and {type(model).__name__} makes columns of them; leave "
            "repetition_penalty and its like out"
        )
