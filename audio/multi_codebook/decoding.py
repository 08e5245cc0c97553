"""A call for columns of codes: what MusicGen, Dia and Higgs Audio have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from mmspec.codebook import Codebook
from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.decoding.target import Target
from mmspec.engine import Decoded, run
from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.request import GenerateRequest
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds


@dataclass
class ColumnOutput(GenerateDecoderOnlyOutput):
    """What `return_dict_in_generate=True` gives.

    Attributes:
        sequences: As the model's own generate has them.
        columns: int64 [B, N, K], the new ones as they were decoded.
        stats: What they cost.
    """

    columns: Tensor | None = None
    stats: Stats | None = None


def ids_of(
    prompt: Tensor, decoded: Decoded, ending: Callable[[Tensor], Tensor], as_dict: bool
) -> Tensor | ColumnOutput:
    """A prompt's columns [B, P, K] and the new ones after them, as far as the longest row goes.

    Args:
        ending: Tells which of the columns [B, N, K] end their row, bool [B, N].
        as_dict: Whether `return_dict_in_generate` was asked for.
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

    Attributes:
        target: Makes the model with its prompts given, for windows that may reach so many columns past the end, with
            guidance or without.
        layout: Of the columns to be made.
        vocab_size: V.
        sampling: How each row's columns are drawn.
        guided: Whether the target is to have an unconditional side.
    """

    target: Callable[[int, bool], Target]
    layout: Layout
    vocab_size: int
    sampling: SamplingParams
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

        Args:
            model: What windows have cost of it is remembered under it.
            draft: Of the same call with a smaller model, for the recipe `draft`. It is not guided, which is half the
                work: a draft is tested against the distribution it was drawn from, whatever that is.
            tables: Gives what the codes stand for, float [codes, D] of each codebook, for rules that ask which of them
                are alike.

        Raises:
            ModelError: When the draft model makes other columns.
        """
        resources = DraftResources(
            adaptive_windows=adaptive_windows_of(model),
            codebooks=None if tables is None else lambda: self._codebooks(tables()),
        )
        if draft is not None:
            for what, theirs, ours in (
                ("codebooks", draft.layout.cell, self.layout.cell),
                ("codes", draft.vocab_size, self.vocab_size),
                ("columns", draft.layout.length, self.layout.length),
            ):
                if theirs != ours:
                    raise ModelError(f"draft_model makes {theirs} {what}, the model {ours}; they are of two families")
            s, small = draft.sampling, draft
            resources = replace(
                resources,
                draft_model=lambda: small.target(recipe.window, False),
                draft_sampling=[SamplingParams(s.temperature, s.top_k, s.top_p)] * len(seeds),
            )
        with torch.no_grad():
            target = self.target(recipe.window, self.guided)
            samplings = [self.sampling] * len(seeds)
            return run(target, recipe, self.layout, samplings, seeds, resources, on_step, measure_entropy)

    def _codebooks(self, tables: Sequence[Tensor]) -> list[Codebook]:
        """What codes stand for; the marks after them are like nothing."""
        size = self.vocab_size
        parts = [table[:size] for table in tables[: self.layout.cell[0]]]
        return [Codebook(part, torch.arange(len(part)), size) for part in parts]


def decode_columns(
    call: GenerateRequest,
    batch_size: int,
    plan: Callable[[Any], ColumnPlan],
    tables: Callable[[], Sequence[Tensor]] | None = None,
) -> Decoded:
    """Answers a call for so many rows. `plan` says how a model does; `tables` as in `ColumnPlan.decode`.

    Raises:
        ModelError: For a draft model of another class or family.
    """
    model, seeds = call.model, row_seeds(call.seed, batch_size)
    draft = None if call.draft_model is None else plan(same_class(model, call.draft_model))
    return plan(model).decode(model, call.recipe, seeds, draft, call.on_step, tables=tables)


@dataclass(frozen=True)
class ColumnJob:
    """A batch of a pipeline's; see `mmspec.audio.pipeline.DecodingJob`.

    Attributes:
        model: What decodes.
        plan: How it does.
        draft: How a draft model does, or None.
        tables: Gives what the codes stand for.
    """

    model: Any
    plan: ColumnPlan
    draft: ColumnPlan | None
    tables: Callable[[], Sequence[Tensor]]

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[SamplingParams],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        """Columns int64 [B, N, K]; the plan has the samplings in it."""
        return self.plan.decode(self.model, recipe, seeds, self.draft, on_step, measure_entropy, self.tables)


def same_class(model: Any, draft_model: Any) -> Any:
    """The draft model.

    Raises:
        ModelError: For one of another class.
    """
    if type(draft_model).__name__ != type(model).__name__:
        raise ModelError(f"draft_model is a {type(draft_model).__name__}, which is another class than the model")
    return draft_model


def refuse_rules(model: Any, rules: Sequence[object]) -> None:
    """Checks that no processor looks back at ids.

    Raises:
        ArgumentError: For processors that look back at ids, which columns do not have.
    """
    if rules:
        raise ArgumentError(
            f"logits_processor looks back at ids, and {type(model).__name__} makes columns of them; leave "
            "repetition_penalty and its like out"
        )
