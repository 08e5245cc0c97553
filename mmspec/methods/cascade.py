"""A cascade: a part of the target drafts, and its drafts are themselves drafted by something cheaper.

TriForce (Sun et al. 2024, arXiv 2404.11912): the target with a short KV cache drafts for the target, and a small model
drafts for it. An inner loop of windows gives tokens that follow the distribution of the middle model exactly, whatever
the small one proposes; that distribution is therefore their q. The inner loop has random numbers of its own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.drafter import ContinuationDrafter, Drafter
from mmspec.decoding.no_gain import tell_of_draft_models
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import Target
from mmspec.drafters.draft_model import ModelDrafter, draft_sampling
from mmspec.drafters.jacobi import Jacobi
from mmspec.drafters.shared_cache import part_of_target
from mmspec.drafters.token_init import InitDrafter, token_init
from mmspec.environment.importing import resolve
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Draft, Verdict, ratio
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import Sampler

_SEED = 0x7F4A7C159E3779B9  # of the inner loop
_ROUNDS = 1024  # more than there are inner windows in a window


class CascadeDrafter:
    """A `mmspec.decoding.drafter.Drafter` that is a loop of speculative decoding itself.

    Args:
        middle: A part of the target, which shares its KV cache.
        sampler: Makes the distributions of `middle`, and verifies the drafts of `small`.
        small: Drafts for `middle`.
        inner: Tokens in one call of `middle`.
    """

    ROWS = ("_small", "_sampler")
    COUNTS = ("_middle_calls",)

    def __init__(self, middle: Target, sampler: Sampler, small: Drafter, inner: int) -> None:
        self._middle = middle
        self._sampler = sampler
        self._small = small
        self._inner = inner
        self._middle_calls = 0

    @property
    def calls(self) -> int:
        return self._middle_calls + self._small.calls

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Shows plain steps to the small drafter; after windows the inner loop begins anew at the batch's tokens."""
        if verdict.tokens.shape[1] == 1:
            self._small.observe(verdict, state, draws)

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        fork, begin = state.fork(count, _SEED), state.length
        rows = torch.arange(len(begin), device=state.device)[:, None]
        q: Tensor | None = None
        iteration, rounds = draws.iteration.host[:, :1] * _ROUNDS, 0
        while fork.is_running.any():
            width = min(self._inner, fork.remaining + 1)
            inner = fork.rng.window(fork.positions(width), iteration + rounds)
            draft = self._small.propose(fork, width - 1, inner)
            logits = self._middle.forward(torch.cat([fork.last(), draft.tokens], dim=1), fork.length - 1)
            self._middle_calls += 1
            verdict = self._sampler.verify(self._sampler(logits, inner.positions), draft, ratio, inner)
            self._small.observe(verdict, fork, inner)
            slots = fork.length[:, None] - begin[:, None] + np.arange(width)
            if q is None:
                q = torch.zeros(len(begin), count + self._inner, verdict.p.shape[-1], device=state.device)
            # A later round writes the slots after the resampled token again; those past `count` are not used.
            running = torch.from_numpy(fork.is_running).to(q.device)[:, None, None]
            index = torch.from_numpy(slots).to(q.device)
            q[rows, index] = torch.where(running, dense(verdict.p), q[rows, index])
            fork.commit(verdict.tokens, verdict.accepted)
            rounds += 1
        tokens = fork.at(begin[:, None] + np.arange(count))
        if q is None:
            q = torch.zeros(len(begin), count, self._middle.vocab_size, device=state.device)
        # Positions past the end of the sequence are not drafted; any token serves there.
        past = begin[:, None] + np.arange(count) >= fork.length[:, None]
        tokens = torch.where(torch.from_numpy(past).to(tokens.device), state.last(), tokens)
        return Draft(tokens, state.ops.point_mass(q[:, :count], tokens, 0, past))


def build(context: DraftingContext) -> CascadeDrafter:
    """Builds the drafter of the recipe `cascade`: a draft model for the middle one, or else an n-gram table."""
    layout, target, resources = context.layout, context.target, context.resources
    middle, settings = part_of_target(context)
    inner = min(int(context.recipe.knobs["inner"]), context.recipe.window)  # no further than caches have room
    small: Drafter
    if resources.draft_model is not None:
        sampler = layout.sampler(draft_sampling(context, 1.0), target.device)
        # Unread may be the last draft, the bonus token of the inner loop, and that of the outer one.
        model = resources.draft_model()
        tell_of_draft_models(context.recipe, target, model)
        small = ModelDrafter(model, sampler, unread=3)
    else:
        if resources.table is not None:
            guesses: ContinuationDrafter = InitDrafter(token_init(context, "table"))
        else:
            guesses = resolve(context.starts["recycle"].builders["tokens"])(context)
        small = Jacobi(guesses, None, target.vocab_size)
    return CascadeDrafter(middle, layout.sampler(settings, target.device), small, inner)
