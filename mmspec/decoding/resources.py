"""What a model provides for its drafters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mmspec.decoding.adaptive_window import AdaptiveWindows
from mmspec.decoding.target import Target
from mmspec.sampling.params import SamplingParams

if TYPE_CHECKING:
    from mmspec.codebook import Codebook
    from mmspec.drafters.jacobi import ContinuationDrafter
    from mmspec.drafters.ngram import Table
    from mmspec.heads.checkpoint import Head


@dataclass(frozen=True)
class DraftResources:
    """What a model brings along for its drafters.

    Attributes:
        table: N-gram table, for the recipe `table` and for start tokens.
        draft_model: Makes a smaller model with the same prompts, wrapped as a target, for the recipe `draft`.
        draft_sampling: How that model's tokens are drawn, one per row. Where there are none, first layers draft at the
            rows' own temperature, top-k and top-p.
        codebook: What its tokens stand for, for rules that ask which of them are alike.
        codebooks: The same of each cell, where tokens are columns.
        adaptive_windows: What earlier runs have taught about windows, for `window=auto`; see
            `mmspec.decoding.adaptive_window.adaptive_windows_of`.
        heads: Networks on the target's features, by the name of the recipe that drafts with them.
        guided_draft_model: Makes the draft model with guidance, where it has any.
        guesses: Makes guesses of its own kind, for wherever a table would guess; they may know more than neighbours.
    """

    table: Table | None = None
    draft_model: Callable[[], Target] | None = None
    draft_sampling: Sequence[SamplingParams] = ()
    codebook: Callable[[], Codebook | None] | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    adaptive_windows: AdaptiveWindows = field(default_factory=dict)
    guided_draft_model: Callable[[], Target] | None = None
    guesses: Callable[[], ContinuationDrafter] | None = None
    codebooks: Callable[[], Sequence[Codebook]] | None = None
