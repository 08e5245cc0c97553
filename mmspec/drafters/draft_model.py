"""A draft model: a smaller model of the same tokens, or the target's own first layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.no_gain import tell_of_draft_models
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import EarlyExit, ReadsAhead, SingleSlotTarget, Target, read_window, reads_ahead
from mmspec.decoding.window_inputs import RECENT
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.drafters.model_runner import at_slot
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams, change_each
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.sampler import Sampler


class ModelDrafter:
    """Drafts token by token with a draft model.

    Args:
        model: The draft model, wrapped as a target, with the same prompts.
        sampler: The draft model's sampler; q is its distribution, whatever the target's sampling parameters are.
        unread: The number of tokens before a window that the model may not have read, or has read differently. After a
            fully accepted window there are two, the last draft and the bonus token. If a rule replaces drafts in place,
            it is the whole window.
    """

    ROWS = ("_model", "_sampler")
    COUNTS = ("calls",)

    def __init__(self, model: Target, sampler: Sampler, unread: int = 2) -> None:
        self.calls = 0
        self._model = model
        self._sampler = sampler
        self._unread = unread
        self._steps = -1  # plain steps since the last proposal; -1, as `unread` covers the token after the prefill

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        if verdict.tokens.shape[1] == 1:
            self._steps += 1

    def before_join(self, other: ModelDrafter, state: BatchState, other_state: BatchState) -> None:
        for drafter in (self, other):
            drafter._start()

    def after_join(self, other: ModelDrafter) -> None:
        self._steps = max(self._steps, other._steps)

    def _start(self) -> None:
        if self.calls == 0:
            self._model.prefill()
            self.calls = 1

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        self._start()
        # Reading a token twice does no harm. Rows with fewer tokens repeat their last one, whose later outputs are not
        # used.
        unread = state.recent(min(self._unread + self._steps, int(state.length.max())))
        self._steps = 0
        slot = Numbers(state.length - 1 - unread.host[:, 0])
        return self.draft_after(state.read(unread), unread, slot, count, draws)

    def draft_after(self, tokens: Tensor, unread: Numbers, slot: Numbers, count: int, draws: WindowRNG) -> Draft:
        """Drafts after given tokens, which need not be committed.

        Args:
            tokens: int64 [B, n], the tokens that the model has not read.
            unread: [B, n], their positions.
            slot: [B], the one of them that the first draft follows.
            count: Draft tokens per row.
            draws: The random numbers of the window.
        """
        draft = self._chain(partial(forward_slot, self._model), tokens, unread, slot, count, draws)
        assert draft is not None
        return draft

    def sample_after(self, tokens: Tensor, unread: Numbers, here: Numbers, u: Tensor) -> Tensor:
        """A sample after the last of given tokens, int64 [B, 1]. Whether there is one is checked with its drafts.

        Args:
            tokens: int64 [B, n], the tokens that the model has not read.
            unread: [B, n], their positions.
            here: [B, 1], the position after them.
            u: float32 [B, 1], the random number of the sample.
        """
        self.calls += 1
        newest = Numbers(np.full(len(tokens), tokens.shape[1] - 1))
        q = self._sampler(forward_slot(self._model, tokens, unread.part(np.s_[:, 0]), newest), here)
        return self._sampler.ops.sample_draft(q, u)

    @property
    def drafts_ahead(self) -> bool:
        """With more unread tokens the host has to know which ones."""
        return self._unread <= RECENT and reads_ahead(self._model)

    def draft_ahead(self, verdict: Verdict, state: BatchState, draws: WindowRNG, next_draws: WindowRNG) -> Draft | None:
        if self._steps or not self.calls:
            return None
        # After a window every running row has two tokens or more, so that the newest one is the last that is read.
        unread = state.recent(RECENT)
        newest = Numbers(np.full(len(state.ids), RECENT - 1))
        read, count = partial(_slot_ahead, self._model), next_draws.positions.host.shape[1] - 1
        return self._chain(read, state.read(unread), unread, newest, count, next_draws)

    def _chain(
        self,
        read: Callable[[Tensor, Numbers, Numbers], Logits | None],
        tokens: Tensor,
        unread: Numbers,
        slot: Numbers,
        count: int,
        draws: WindowRNG,
    ) -> Draft | None:
        """The drafts of `draft_after`, without waiting for the device; `read` returns None if it cannot read."""
        at, step = unread.part(np.s_[:, 0]), tokens
        drafted, probs, first = [step[:, -1:]], list[Probs](), Numbers(np.zeros(len(tokens), dtype=np.int64))
        for i in range(count):
            logits = read(step, at, slot)
            if logits is None:
                return None
            here = draws.positions.part(np.s_[:, i : i + 1])
            q = self._sampler(logits, here)
            self.calls += 1
            step, at, slot = self._sampler.sample(q, draws.slot(i), DRAFT), here.part(np.s_[:, 0]), first
            drafted.append(step)
            probs.append(q)
        window = torch.cat(drafted, dim=1)
        return Draft(window[:, 1:], self._sampler.ops.cat(probs), window)


def _slot_ahead(model: Target, tokens: Tensor, at: Numbers, slot: Numbers) -> Logits | None:
    """As `forward_slot`, for a `mmspec.decoding.target.ReadsAhead`; None if the call needs the host's numbers."""
    logits = cast(ReadsAhead, model).forward_ahead(tokens, at)
    return None if logits is None else at_slot(logits, slot)


def forward_slot(model: Target, tokens: Tensor, at: Numbers, slot: Numbers) -> Logits:
    """The logits after one token of each row; see `mmspec.decoding.target.SingleSlotTarget`."""
    if isinstance(model, SingleSlotTarget):
        return model.forward_slot(tokens, at.host, slot.host)
    return at_slot(read_window(model, tokens, at), slot)


def build(context: DraftingContext) -> ModelDrafter:
    """Builds the drafter of the recipes `draft` and `layer-skip`."""
    model, settings = draft_model_of(context)
    return ModelDrafter(model, context.layout.sampler(settings, context.target.device))


def draft_model_of(context: DraftingContext) -> tuple[Target, Sequence[SamplingParams]]:
    """The draft model and its sampling parameters: a smaller model, or the target's first layers with `layers` set.

    Raises:
        ArgumentError: If the model has no draft model, or none with guidance and the recipe sets guidance.
    """
    recipe, resources = context.recipe, context.resources
    layers, scale = int(recipe.knobs.get("layers", 0)), float(recipe.knobs.get("guidance", 1.0))
    settings = draft_sampling(context, scale)
    if layers:
        return EarlyExitTarget(context.target, EarlyExit(layers, guided=scale != 1)), settings
    if resources.draft_model is None:
        raise ArgumentError(
            f"recipe '{recipe}' needs a draft model, and this model has none; pass one as "
            "draft_model= to generate, or to the pipeline when it is loaded"
        )
    create = resources.draft_model if scale == 1 else resources.guided_draft_model
    if create is None:
        raise ArgumentError(f"recipe '{recipe}' needs a draft model with guidance; leave guidance at 1")
    model = create()
    tell_of_draft_models(recipe, context.target, model)
    return model, settings


def draft_sampling(context: DraftingContext, scale: float) -> Sequence[SamplingParams]:
    """The sampling parameters of drafts from a model with guidance `scale`, one per row."""
    if context.resources.draft_sampling:
        return change_each(context.resources.draft_sampling, lambda s: replace(s, guidance_scale=scale))
    return change_each(context.samplings, lambda s: replace(s, guidance_scale=scale, guidance_end=None))
