"""Drafting that stops where the draft model becomes unsure.

SpecDec++ (Huang et al. 2024, arXiv 2405.19715) stops when the predicted probability that all drafts so far are
accepted falls below a threshold. Here the prediction needs no trained head: AdaEDL (Agrawal et al. 2024, arXiv
2410.18351) bounds the acceptance of a draft from below by 1 - sqrt(0.2 H), with H the entropy of q in nats.

The rest of the window is filled with guesses that cost nothing, the tokens above or before, so that the window keeps
its width: a row would otherwise depend on how long other rows draft. A draft depends on those before it only, and a
guess has a one-hot q, so that decoding is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.runner_drafter import RunnerDrafter
from mmspec.drafters.runners import build_runner
from mmspec.sampling.numbers import Download, Numbers
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Draft, point_mass, sample
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.tree import Tree

_GAMMA = 0.2  # of AdaEDL's bound


class StoppingDrafter(RunnerDrafter):
    """A chain of drafts that each row ends on its own; a `mmspec.decoding.drafter.Drafter`.

    Deciding whether to go on waits for the device before each draft but the first: a draft that is not needed would
    take longer.

    Args:
        runner: Provides the draft distributions.
        stop: The threshold.
        device: Of the tokens.
    """

    def __init__(self, runner: DraftRunner, stop: float, device: torch.device) -> None:
        super().__init__(runner)
        self._stop = stop
        self._chain = cache(lambda count: Tree.branching([1] * count, device))
        self._positions: Numbers | None = None  # of the next guesses, see `host_arrays`

    def host_arrays(self, state: BatchState, count: int, iteration: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [self._sources(state, count), *super().host_arrays(state, count, iteration)]

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        self._positions = arrays[0]
        super().take_arrays(arrays[1:])

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        chain, u, q = self._chain(count), draws[DRAFT], self._runner.root(state)
        guesses = self._guesses(state, count)
        if not isinstance(q, Tensor):
            return self._propose_by_kernel(state, chain, u, q, guesses)
        tokens, probs, guessed = list[Tensor](), list[Tensor](), list[Tensor]()
        chance = torch.ones(len(guesses), device=q.device)
        for i in range(count):
            going = chance >= self._stop
            if i and bool(going.any()):
                q = dense(self._runner.nodes(state, tokens[-1], chain, i))
            guess = guesses[:, i : i + 1]
            tokens.append(torch.where(going[:, None], sample(q, u[:, i : i + 1]), guess))
            probs.append(q)
            guessed.append(~going)
            entropy = -torch.special.xlogy(q, q).sum(-1)[:, 0]
            # Once below the threshold, always below it: the factors are at most 1.
            chance = chance * (1 - (_GAMMA * entropy).sqrt()).clamp(min=0) * going
        window = torch.cat(tokens, dim=1)
        return Draft(window, point_mass(torch.cat(probs, dim=1), window, 0, torch.stack(guessed, dim=1)))

    def _propose_by_kernel(self, state: BatchState, chain: Tree, u: Tensor, q: Probs, guesses: Tensor) -> Draft:
        """As `propose`, after the call of the root, with one launch per draft besides the call and its sample."""
        # Imported here: Triton may be missing.
        from mmspec.methods.draft_stop.kernel import stop_draft
        from mmspec.sampling.lazy_probs import join_logits, lazy

        (batch, count), last = guesses.shape, state.last()
        window, chances = guesses.new_empty(batch, 1 + count), u.new_empty(count + 1, batch)
        floats, ints = u.new_empty(batch, count, 5), guesses.new_empty((batch, count, 5), dtype=torch.int32)
        slots, going = list[Probs](), True
        for i in range(count):
            going = going and (i == 0 or bool((Download(chances[i]).wait() >= self._stop).any()))
            if i and going:
                q = self._runner.nodes(state, window[:, i : i + 1], chain, i)
            q = lazy(q)
            sampled = q.sample(u[:, i : i + 1]) if going else guesses[:, i : i + 1]
            stop_draft(q.stats, sampled, guesses, last, window, floats, ints, chances, i, self._stop)
            slots.append(q)
        return Draft(window[:, 1:], join_logits(slots, floats, ints), window)

    def _guesses(self, state: BatchState, count: int) -> Tensor:
        """The committed token above each position, or else the last one, int64 [B, count]."""
        positions, self._positions = self._positions, None
        return state.at(self._sources(state, count)) if positions is None else state.read(positions)

    def _sources(self, state: BatchState, count: int) -> NDArray[np.int64]:
        """The positions that guesses are taken from, host int64 [B, count]."""
        above, length = state.positions(count) - (state.layout.width or 0), state.length[:, None]
        return np.where((above >= 0) & (above < length), above, length - 1)


def build(context: DraftingContext) -> StoppingDrafter:
    """Builds the drafter of the recipe `draft-stop`."""
    runner = build_runner(context, "model")
    return StoppingDrafter(runner, float(context.recipe.knobs["stop"]), context.target.device)
