"""Refresh by the outer layers: all reused drafts are coupled to a cheap reading of the corrected prefix by the target.

The distributions of a rejected part come from a target call that saw other tokens on the left. Here the first layer of
the target and its last ones read the same slots again, with the tokens that stand there now. The layers between them
add to a slot what they added there in that call, so that nothing changes where no token on the left has. A pass costs
these few layers for a whole window, where `mmspec.drafters.refresh` calls a network for every draft.

A reused draft may be coupled to any distribution r that depends only on what lies to its left, q := r (see there). A
pass reads the new tokens on the left of a slot, and states of the old call there, which saw the old tokens on the left.
Both depend on random numbers of positions on the left alone. The token of the slot itself is drawn last, with the
numbers of its own position, in every pass with the same ones: passes are the Jacobi iterations of drawing the drafts
from left to right, and decoding is exact after any number of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import EarlyExit, LayerFeatureTarget, read_window
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.errors import ArgumentError
from mmspec.methods.outer.head import OuterHead
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import Sampler


class OuterLayers:
    """Couples all reused drafts of a window to what the target's outer layers predict.

    Args:
        part: The target's outer layers, with `EarlyExit.reuse`.
        sampler: Makes the draft distributions of their logits.
        passes: How often they read the window. Each pass reads the tokens that were coupled to the one before.
    """

    ROWS = ("_sampler",)
    COUNTS = ("calls",)

    def __init__(self, part: EarlyExitTarget, sampler: Sampler, passes: int) -> None:
        self.calls = 0
        self._part = part
        self._sampler = sampler
        self._passes = passes

    def couple(
        self,
        verdict: Verdict,
        tokens: Tensor,
        coupling: Callable[[Verdict, BatchState, WindowRNG], Tensor],
        state: BatchState,
        draws: WindowRNG,
    ) -> tuple[Tensor, Probs]:
        """Couples the rejected part of a window, after the target's call and before the batch advances.

        Args:
            verdict: The result of the window.
            tokens: int64 [B, W], coupled to `verdict.p`; slots up to the resampled token are not read.
            state: The batch; it still ends where the window began.
            draws: The random numbers of the window.

        Returns:
            The coupled tokens, int64 [B, W], and their distributions, float32 [B, W, V].
        """
        found = self._coupled(verdict, tokens, coupling, state, draws, partial(read_window, self._part))
        assert found is not None
        return found

    def couple_ahead(
        self,
        verdict: Verdict,
        tokens: Tensor,
        coupling: Callable[[Verdict, BatchState, WindowRNG], Tensor],
        state: BatchState,
        draws: WindowRNG,
    ) -> tuple[Tensor, Probs] | None:
        """As `couple`, before the counts are known on the host, in a batch that has advanced on the device.

        Returns:
            None if the host's numbers are needed.
        """
        if verdict.draft.window is None:
            return None
        return self._coupled(verdict, tokens, coupling, state, draws, self._part.forward_ahead)

    def _coupled(
        self,
        verdict: Verdict,
        tokens: Tensor,
        coupling: Callable[[Verdict, BatchState, WindowRNG], Tensor],
        state: BatchState,
        draws: WindowRNG,
        read: Callable[[Tensor, Numbers], Logits | None],
    ) -> tuple[Tensor, Probs] | None:
        p = verdict.p
        for _ in range(self._passes):
            logits = read(*_reread(verdict, tokens, state, draws))
            if logits is None:
                return None
            self.calls += 1
            p = state.ops.unchecked(self._sampler(logits, draws.positions))
            tokens = coupling(replace(verdict, p=p), state, draws)
        return tokens, p

    @property
    def reads_ahead(self) -> bool:
        """Whether `couple_ahead` can be used, unless a call fails."""
        return self._part.reads_ahead


def _reread(verdict: Verdict, tokens: Tensor, state: BatchState, draws: WindowRNG) -> tuple[Tensor, Numbers]:
    """The tokens of a window that are read again, int64 [B, W], and the position of the first, [B]."""
    accepted, drafted = verdict.counts.on(tokens.device), verdict.draft.window
    if drafted is not None and state.ops.by_kernels:
        # Imported here: Triton may be missing.
        from mmspec.kernels.commit import reread_window

        found = reread_window(drafted[:, :1], verdict.tokens, tokens, accepted, draws.positions.on(tokens.device))
        # Of a window that was opened ahead, the host's positions are bounds; its lengths are exact.
        return found[:, :-1], Numbers(state.length - 1, found[:, -1])
    rejected = torch.arange(tokens.shape[1], device=tokens.device) > accepted[:, None]
    new = torch.where(rejected, tokens, verdict.tokens)
    return torch.cat([state.last(), new[:, :-1]], dim=1), state.before


def outer_layers(target: LayerFeatureTarget, count: int, head: OuterHead | None) -> EarlyExit:
    """The first layer of a target and its last ones, `count` in all, with what takes the place of the others."""
    skip = tuple(range(1, target.layers - count + 1))
    return EarlyExit(target.layers, guided=True, skip=skip, reuse=True, change=head)


def build(context: DraftingContext) -> OuterLayers:
    """Builds the refresh of the recipes `sjd` and `scd` with `refresh=outer`.

    Raises:
        ArgumentError: If the target cannot run some of its layers on the states of the others, or has too few.
    """
    target, knobs = context.target, context.recipe.knobs
    count = int(knobs["layers"]) or 2
    if not isinstance(target, LayerFeatureTarget):
        raise ArgumentError(
            f"recipe '{context.recipe}' is not possible here: {type(target).__name__} does not provide the states of "
            "its layers"
        )
    if not 2 <= count < target.layers:
        raise ArgumentError(
            f"layers={count} is not allowed with refresh=outer; it must be 2 or more, the first layer and the last "
            f"ones, and fewer than the {target.layers} of this model"
        )
    head = context.resources.heads.get("outer") if count == 2 else None
    assert head is None or isinstance(head, OuterHead)
    early_exit = outer_layers(target, count, head)
    part = EarlyExitTarget(target, early_exit)
    target.collect_layers(early_exit.gap)
    sampler = context.layout.sampler(context.samplings, target.device)
    return OuterLayers(part, sampler, int(knobs["passes"]))
