"""A draft model: a smaller model of the same tokens, or the target's own first layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import EarlyExit, SingleSlotTarget, Target, join_targets
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.mirrored import part
from mmspec.sampling.params import SamplingParams, change_each
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.sampler import Sampler, join_samplers


class ModelDrafter:
    """Drafts token by token with a draft model.

    Args:
        model: The draft model, wrapped as a target, with the same prompts.
        sampler: The draft model's sampler; q is its distribution, whatever the target's sampling parameters are.
        unread: The number of tokens before a window that the model may not have read, or has read differently. After a
            fully accepted window there are two, the last draft and the bonus token. If a rule replaces drafts in place,
            it is the whole window.
    """

    def __init__(self, model: Target, sampler: Sampler, unread: int = 2) -> None:
        self.calls = 0
        self._model = model
        self._sampler = sampler
        self._unread = unread
        self._steps = -1  # single steps since the last proposal; -1, as `unread` covers the token after the prefill

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        if verdict.tokens.shape[1] == 1:
            self._steps += 1

    def select_rows(self, row_ids: list[int]) -> None:
        self._model.select_rows(row_ids)
        self._sampler.select_rows(torch.tensor(row_ids, device=self._model.device))

    def join(self, other: ModelDrafter, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        """See `mmspec.decoding.loop.JoinableDrafter`."""
        for drafter in (self, other):
            drafter._start()
        join_targets(self._model, other._model, row_ids)
        join_samplers(self._sampler, other._sampler, row_ids)
        self._steps = max(self._steps, other._steps)
        self.calls += other.calls

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
        at, step = part(unread, np.s_[:, 0]), state.at(unread)
        slot = state.length - 1 - at
        tokens, probs = [step[:, -1:]], []
        for i in range(count):
            here = part(draws.positions, np.s_[:, i : i + 1])
            q = self._sampler(forward_slot(self._model, step, at, slot), here)
            self.calls += 1
            step, at, slot = self._sampler.sample(q, draws.slot(i), DRAFT), part(here, np.s_[:, 0]), np.zeros_like(at)
            tokens.append(step)
            probs.append(q)
        window = torch.cat(tokens, dim=1)
        return Draft(window[:, 1:], torch.cat(probs, dim=1), window)


def forward_slot(model: Target, tokens: Tensor, at: NDArray[np.int64], slot: NDArray[np.int64]) -> Logits:
    """The logits after one token of each row; see `mmspec.decoding.target.SingleSlotTarget`."""
    if isinstance(model, SingleSlotTarget):
        return model.forward_slot(tokens, at, slot)
    cond, uncond = model.forward(tokens, at)
    if (slot == slot[0]).all():
        last = slice(slot[0], slot[0] + 1)
        return Logits(cond[:, last], None if uncond is None else uncond[:, last])
    index, rows = torch.from_numpy(slot).to(cond.device), torch.arange(len(tokens), device=cond.device)
    return Logits(cond[rows, index][:, None], None if uncond is None else uncond[rows, index][:, None])


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
        raise ArgumentError(f"recipe {recipe.name!r} needs a draft model, and this model has none")
    create = resources.draft_model if scale == 1 else resources.guided_draft_model
    if create is None:
        raise ArgumentError(f"recipe '{recipe}' needs a draft model with guidance; leave guidance at 1")
    return create(), settings


def draft_sampling(context: DraftingContext, scale: float) -> Sequence[SamplingParams]:
    """The sampling parameters of drafts from a model with guidance `scale`, one per row."""
    if context.resources.draft_sampling:
        return change_each(context.resources.draft_sampling, lambda s: replace(s, guidance_scale=scale))
    return change_each(context.samplings, lambda s: replace(s, guidance_scale=scale, guidance_end=None))
