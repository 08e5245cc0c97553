"""Decoding of columns of codes, shared by MusicGen, Dia and Higgs Audio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from mmspec.batching.call import decode_rows
from mmspec.codebook import Codebook
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStats, OnStep, Watch
from mmspec.decoding.target import Target
from mmspec.decoding.to_end import Decoded
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.request import GenerateRequest
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds


@dataclass
class ColumnOutput(GenerateDecoderOnlyOutput):
    """The output of `generate` with `return_dict_in_generate=True`.

    Attributes:
        sequences: As the model's own `generate` returns them.
        columns: int64 [B, N, K], the generated columns.
        stats: Statistics of the call.
    """

    columns: Tensor | None = None
    stats: Stats | None = None


def prompt_and_columns(prompt: Tensor, decoded: Decoded, ends_row: Callable[[Tensor], Tensor]) -> Tensor:
    """The columns [B, P, K] of a prompt followed by the generated columns, cut at the end of the longest row.

    Args:
        prompt: int64 [B, P, K].
        decoded: The generated columns.
        ends_row: Maps columns [B, N, K] to bool [B, N], True for a column that ends its row.
    """
    ends = ends_row(decoded.tokens)
    longest = int(torch.where(ends.any(1), ends.int().argmax(1) + 1, decoded.tokens.shape[1]).max())
    return torch.cat([prompt, decoded.tokens[:, :longest]], dim=1)


@dataclass(frozen=True)
class ColumnDecodingPlan:
    """How a batch of columns is decoded.

    Attributes:
        target: Returns the model with its prompts given. Called with the number of columns that a window may reach past
            the end, and with whether to read unconditional rows.
        layout: The columns to generate.
        vocab_size: V.
        sampling: Sampling parameters of all rows.
        guided: Whether the target has unconditional rows.
        models: Other models that draft for it; see `DraftResources.models`.
    """

    target: Callable[[int, bool], Target]
    layout: Layout
    vocab_size: int
    sampling: SamplingParams
    guided: bool
    models: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def decode(
        self,
        model: Any,
        recipe: Recipe,
        seeds: Sequence[int],
        draft: ColumnDecodingPlan | None,
        on_step: OnStep | None,
        tables: Callable[[], Sequence[Tensor]] | None = None,
        on_stats: OnStats | None = None,
    ) -> Decoded:
        """Runs a recipe.

        Args:
            model: The model, under which measured window costs are kept.
            seeds: One per row.
            draft: The same batch with a smaller model, for the recipe `draft`. It runs without guidance, which halves
                its work: a draft token is tested against the distribution it was sampled from, whichever that is.
            on_step: Called after every target call.
            tables: Returns the vectors of the codes, float [codes, D] of each codebook, for rules that use code
                similarity.
            on_stats: Called with the statistics at the end.

        Raises:
            ModelError: If the draft model generates columns of another shape.
        """
        prepared = self.prepare(model, recipe, len(seeds), draft, tables)
        rows, stats = decode_rows(prepared, recipe, seeds, Watch(on_step, on_stats=on_stats))
        columns = torch.full((len(rows), self.layout.length, *self.layout.cell), self.layout.pad)
        for row, found in zip(columns, rows, strict=True):
            row[: len(found)] = found
        return Decoded(columns.to(prepared.target.device), stats)

    @torch.no_grad()
    def prepare(
        self,
        model: Any,
        recipe: Recipe,
        rows: int,
        draft: ColumnDecodingPlan | None,
        tables: Callable[[], Sequence[Tensor]] | None = None,
    ) -> PreparedRows:
        """The batch, ready to be decoded; the arguments are those of `decode`.

        Raises:
            ModelError: If the draft model generates columns of another shape.
        """
        resources = DraftResources(
            adaptive_windows=adaptive_windows_of(model),
            codebooks=None if tables is None else lambda: self._codebooks(tables()),
            models=self.models,
        )
        if draft is not None:
            for what, theirs, ours in (
                ("codebooks", draft.layout.cell, self.layout.cell),
                ("codes", draft.vocab_size, self.vocab_size),
                ("columns", draft.layout.length, self.layout.length),
            ):
                if theirs != ours:
                    raise ModelError(
                        f"draft_model makes {theirs} {what}, the model {ours}; they belong to different families"
                    )
            small = draft
            resources = replace(
                resources,
                draft_model=lambda: small.target(recipe.window, False),
                draft_sampling=[replace(draft.sampling, guidance_scale=1.0)] * rows,
            )
        target = self.target(recipe.window, self.guided)
        return PreparedRows(target, self.layout, [self.sampling] * rows, resources)

    def _codebooks(self, tables: Sequence[Tensor]) -> list[Codebook]:
        """The vectors of each codebook; special tokens after the codes have none."""
        size = self.vocab_size
        vectors = [table[:size] for table in tables[: self.layout.cell[0]]]
        return [Codebook(each, torch.arange(len(each)), size) for each in vectors]


def decode_columns(
    call: GenerateRequest,
    batch_size: int,
    plan: Callable[[Any], ColumnDecodingPlan],
    tables: Callable[[], Sequence[Tensor]] | None = None,
) -> Decoded:
    """Decodes a call of `generate`.

    Args:
        batch_size: Rows.
        plan: Makes the plan of the call with a given model, which is the target's or the draft model.
        tables: Returns the vectors of the codes; see `ColumnDecodingPlan.decode`.

    Raises:
        ModelError: For a draft model of another class or family.
    """
    model, seeds = call.model, row_seeds(call.seed, batch_size)
    draft = None if call.draft_model is None else plan(check_same_class(model, call.draft_model))
    return plan(model).decode(model, call.recipe, seeds, draft, call.on_step, tables, call.on_stats)


def check_same_class(model: Any, draft_model: Any) -> Any:
    """The draft model, after a check that it has the model's class.

    Raises:
        ModelError: If it has another class.
    """
    if type(draft_model).__name__ != type(model).__name__:
        raise ModelError(f"draft_model is a {type(draft_model).__name__}, which is another class than the model")
    return draft_model


def refuse_logits_processors(model: Any, processors: Sequence[object]) -> None:
    """Checks that no logits processor depends on earlier ids, which columns do not have.

    Raises:
        ArgumentError: If there is one.
    """
    if processors:
        raise ArgumentError(
            f"logits_processor depends on earlier ids, and {type(model).__name__} generates columns of codes; leave "
            "repetition_penalty and similar arguments out"
        )
