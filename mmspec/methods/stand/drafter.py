"""Stochastic n-grams: drafts sampled from the target's own distributions after the same neighbors.

STAND (Song et al. 2025, arXiv 2506.04708) stores the distributions that the target gave after each n-gram and samples
from them; ADED (Liu et al. 2024, arXiv 2407.12021) keeps such a table of trigrams and adapts it while decoding. Token
recycling (the recipe `recycle`) stores the most likely token alone: one draft for each context, accepted with
probability p(x). A sampled draft is accepted with the overlap of the two distributions, which is larger where the
target is undecided. The stored distribution is the q of the draft, so that decoding is exact. Each row has its own
table, so that it does not depend on its batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.jacobi import Jacobi
from mmspec.drafters.token_init import InitDrafter, TokenInit, neighbors_of_window, repeat_left, repeat_up, table_entry
from mmspec.drafters.window_kernel import LONGEST, ForcedOnDevice, Reusable
from mmspec.sampling.likeliest import likeliest
from mmspec.sampling.numbers import Numbers, on_device
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import INIT, WindowRNG

_ENTRIES = 2**13  # the largest table of a row; pairs that share an entry overwrite each other
_KEPT = 16  # tokens of a distribution that are stored


class StandDrafter:
    """A `mmspec.decoding.drafter.ContinuationDrafter` that samples from stored distributions.

    Args:
        batch_size: B.
        vocab_size: V.
        fallback: The initialization for pairs of neighbors that have not occurred.
        device: Of the tokens.
    """

    ROWS = ("_tokens", "_probs")

    calls = 0

    def __init__(self, batch_size: int, vocab_size: int, fallback: TokenInit, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._fallback = fallback
        entries, kept = min(_ENTRIES, (vocab_size + 1) * vocab_size), min(_KEPT, vocab_size)
        self._tokens = torch.zeros(batch_size, entries, kept, dtype=torch.int32, device=device)
        self._probs = torch.zeros(batch_size, entries, kept, device=device)  # 0 where nothing is stored
        self._slots = InitDrafter(self._sample)
        self._sampled: list[tuple[Tensor, Tensor, Tensor]] = []
        self._forced = ForcedOnDevice()
        self._stored: Probs | None = None  # the distributions that were stored last

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Stores the likeliest tokens of each slot that a row has; `state` still ends where the window began.

        What a window stores does not depend on how much of it was accepted, so that this is done before the host knows;
        a second call for the same window does nothing.
        """
        if verdict.p is self._stored or state.length.min() == 0:
            return  # the first token has no neighbors
        self._stored = verdict.p
        if not isinstance(verdict.p, Tensor) and not state.layout.cell:
            # Imported here: Triton may be missing.
            from mmspec.methods.stand.kernel import Stored, store
            from mmspec.sampling.lazy_probs import lazy

            drafts = verdict.draft.tokens if verdict.p.shape[1] > 1 else verdict.tokens[:, :0]
            positions, stored = draws.positions.on(state.device), Stored(self._tokens, self._probs)
            limits, line = state.limits().on(state.device), state.layout.width or 0
            store(lazy(verdict.p).stats, *state.storage(), positions, limits, drafts, stored, line)
            return
        left, up = neighbors_of_window(verdict, state)
        tokens, probs = likeliest(dense(verdict.p), self._tokens.shape[-1])
        entry = table_entry(left, up, self._vocab_size, self._tokens.shape[1])
        rows, own = torch.arange(len(entry), device=entry.device), state.own_slots(draws.positions)
        for slot in range(entry.shape[1]):  # one after the other: two slots of a window may share an entry
            at, kept = (rows, entry[:, slot]), own[:, slot, None]
            shares = probs[:, slot] / probs[:, slot].sum(-1, keepdim=True)
            self._tokens[at] = torch.where(kept, tokens[:, slot].int(), self._tokens[at])
            self._probs[at] = torch.where(kept, shares, self._probs[at])

    def draft(self, state: BatchState, draws: WindowRNG, previous: Reusable) -> Draft | None:
        """None if drafts are reused, too."""
        is_long = draws.positions.host.shape[1] > LONGEST
        if not state.ops.by_kernels or state.layout.cell or is_long or previous.tokens is not None:
            return None
        # Imported here: Triton may be missing.
        from mmspec.kernels.softmax_stats import SoftmaxStats
        from mmspec.methods.stand.kernel import Stored, draft_stored
        from mmspec.sampling.lazy_probs import LazyProbs

        positions, stored = draws.positions.on(state.device), Stored(self._tokens, self._probs)
        line, forced = state.layout.width or 0, self._forced(state)
        found = draft_stored(*state.storage(), positions, draws[INIT], stored, line, self._vocab_size, forced)
        sampled = LazyProbs.known(SoftmaxStats(found.logits, None, None, found.floats, found.ints))
        return Draft(found.window[:, 1:], sampled, found.window)

    def extend(self, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        self._sampled = []
        draft = self._slots.extend(state, draft, reused, draws)
        first, q = int(reused.host.min()), dense(draft.q).clone()
        kept = on_device(np.arange(q.shape[1]) < reused.host[:, None], q.device)
        for slot, (sampled, tokens, probs) in enumerate(self._sampled, first):
            # A forced token, a reused one and one of the fallback were not sampled, and keep their q.
            stored = (probs.sum(-1) > 0) & (draft.tokens[:, slot] == sampled)
            stored &= ~kept[:, slot]
            own = torch.zeros_like(q[:, slot]).scatter_(-1, tokens, probs)
            q[:, slot] = torch.where(stored[:, None], own, q[:, slot])
        return Draft(draft.tokens, q)

    def _sample(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        """A token after each pair of neighbors; see `mmspec.drafters.token_init.TokenInit`."""
        entry = table_entry(left, up, self._vocab_size, self._tokens.shape[1])
        rows = torch.arange(len(entry), device=entry.device)
        tokens, probs = self._tokens[rows, entry].long(), self._probs[rows, entry]
        sums = probs.cumsum(-1)
        place = (sums <= u[:, None] * sums[:, -1:]).sum(-1, keepdim=True)
        place = place.clamp(max=(probs > 0).sum(-1, keepdim=True) - 1).clamp(min=0)
        sampled = tokens.gather(-1, place)[:, 0]
        sampled = torch.where(sums[:, -1] > 0, sampled, self._fallback(left, up, u))
        self._sampled.append((sampled, tokens, probs))
        return sampled


def continuation(context: DraftingContext) -> StandDrafter:
    """Builds `start=stand`."""
    above = repeat_up if context.layout.width else repeat_left
    return StandDrafter(context.batch_size, context.target.vocab_size, above, context.target.device)


def build(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipe `stand`."""
    return Jacobi(continuation(context), None, context.target.vocab_size)
