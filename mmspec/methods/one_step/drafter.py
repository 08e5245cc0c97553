"""Whole-image drafts: a one-step generator predicts all of the window, or all of an image, in one pass.

Distilled Decoding (arXiv 2412.17153) trains such generators and takes what they give; here it is verified. The noise is
that of the coupling `gumbel`, fixed for each position of a row: a draft is the token that this noise picks from the
generator's distribution at its place. That distribution depends on committed tokens and on the noise of earlier places,
which have been tested before this one, so that it is the q of the draft and the test is exact. After a rejection the
generator reads the corrected tokens, and the same noise for the places after them.

A generator that gives tokens alone, as the published ones, drafts guesses: q is one-hot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FeatureTarget
from mmspec.drafters.jacobi import Jacobi
from mmspec.drafters.last_feature import LastFeatureRunner
from mmspec.errors import ArgumentError, ModelError
from mmspec.methods.one_step.head import OneStepHead
from mmspec.sampling.logits import split_cfg
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Draft, Verdict, point_mass
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import TokenSampler

# The model `one-step` of `DraftResources.models`, which replaces the head:
WholeImages = Callable[[NDArray[np.int64]], Tensor]  # seeds of rows, host int64 [B] -> their tokens, int64 [B, N]


class OneStepGenerator(Protocol):
    """A generator of all that a window lacks; `calls` as in `mmspec.decoding.drafter.Drafter`."""

    calls: int

    def probs(self, state: BatchState, draft: Draft, is_new: Tensor, noise: Tensor) -> Tensor:
        """The distribution q of each slot, float32 [B, count, V].

        It may depend on tokens that are committed or reused and on the noise of earlier slots, not on its own.

        Args:
            state: The batch.
            draft: The drafts of the whole window, [B, count].
            is_new: bool [B, count], the slots without a reused draft.
            noise: Standard Gumbel noise float32 [B, count, V] of each slot.
        """
        ...

    def observe(self, verdict: Verdict, state: BatchState) -> None:
        """Called after verification, before the batch advances."""
        ...


class OneStepRunner(LastFeatureRunner):
    """Runs a `OneStepHead` once for each window. R is B, or 2 B with guidance.

    It reads the tokens so far again in every window, without a cache.

    Args:
        target: Provides the features, and the LM head that maps predicted features to logits.
        sampler: Makes the draft distributions of those logits.
    """

    def __init__(self, head: OneStepHead, target: FeatureTarget, sampler: TokenSampler) -> None:
        super().__init__(target, sampler)
        self._head, self._drafts = head, sampler

    def probs(self, state: BatchState, draft: Draft, is_new: Tensor, noise: Tensor) -> Tensor:
        feature, count = self.feature(), draft.tokens.shape[1]
        known = int(state.length.max())
        places = state.length[:, None] - known + np.arange(known + count - 1)
        window = draft.tokens.masked_fill(is_new, -1)[:, :-1]
        tokens = torch.cat([state.at(places[:, :known]), window], dim=1)
        factor, device = len(feature) // len(tokens), self._head.device
        inputs = (tokens, torch.from_numpy(places), noise[:, :-1])
        rows = (each.to(device).repeat(factor, *[1] * (each.ndim - 1)) for each in inputs)
        predicted = self._head(*rows, feature.to(device)).to(feature)
        self.calls += 1
        return dense(self._drafts(split_cfg(self._target.head(predicted), factor > 1), Numbers(state.positions(count))))


class WholeImageRunner:
    """A `OneStepGenerator` of tokens that a function gives for whole images.

    Args:
        generate: The function; it is called once for each row. It draws its noise from the seeds by a generator of its
            own: with the numbers of `mmspec.sampling.rng.CounterRNG`, which tests its drafts, they would be biased.
        vocab_size: V.
    """

    ROWS = ("_images",)
    COUNTS = ("calls",)

    def __init__(self, generate: WholeImages, vocab_size: int) -> None:
        self.calls = 0
        self._generate, self._vocab_size = generate, vocab_size
        self._images: Tensor | None = None  # int64 [B, N]

    def images(self, state: BatchState) -> Tensor:
        """The tokens of each row's image, int64 [B, N].

        Raises:
            ModelError: If the function gives other rows, or no tokens of the vocabulary.
        """
        if self._images is None:
            found, rows = self._generate(state.rng.seeds), len(state.ids)
            if found.ndim != 2 or len(found) != rows or not found.shape[1] or found.dtype != torch.int64:
                raise ModelError(
                    f"the generator of whole images gave {list(found.shape)} of {found.dtype}; it must give int64 "
                    f"[{rows}, N]"
                )
            if bool(((found < 0) | (found >= self._vocab_size)).any()):
                raise ModelError(f"the generator of whole images gave tokens outside of 0 to {self._vocab_size - 1}")
            self._images = found.to(state.device)
            self.calls += 1
        return self._images

    def probs(self, state: BatchState, draft: Draft, is_new: Tensor, noise: Tensor) -> Tensor:
        images, positions = self.images(state), state.positions(draft.tokens.shape[1])
        tokens = images.gather(1, torch.from_numpy(positions.clip(max=images.shape[1] - 1)).to(images.device))
        return point_mass(dense(draft.q), tokens, 0, np.ones(positions.shape, dtype=bool))

    def observe(self, verdict: Verdict, state: BatchState) -> None:
        """Does nothing: the images stay."""

    def before_join(self, other: WholeImageRunner, state: BatchState, other_state: BatchState) -> None:
        self._images, other._images = self.images(state), other.images(other_state)


class OneStepDrafter:
    """A `mmspec.decoding.drafter.ContinuationDrafter` that lets the noise of each position pick its draft.

    Args:
        generator: Gives the distributions.
    """

    ROWS = ("_generator",)

    def __init__(self, generator: OneStepGenerator) -> None:
        self._generator = generator

    @property
    def calls(self) -> int:
        return self._generator.calls

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        self._generator.observe(verdict, state)

    def extend(self, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        count = draft.tokens.shape[1]
        is_new = torch.from_numpy(np.arange(count) >= reused.host[:, None]).to(state.device)
        noise = state.rng.gumbel(state.positions(count), draft.q.shape[-1])
        q = self._generator.probs(state, draft, is_new, noise)
        tokens = torch.where(is_new, (q.log() + noise).argmax(-1), draft.tokens)
        return Draft(tokens, torch.where(is_new[..., None], q, dense(draft.q)))


def continuation(context: DraftingContext) -> OneStepDrafter:
    """The drafter of the model's own generator of whole images, or of its one-step head.

    Raises:
        ArgumentError: If the model has neither.
        ModelError: If the head belongs to another model.
    """
    resources, target = context.resources, context.target
    if (whole_images := resources.models.get("one-step")) is not None:
        return OneStepDrafter(WholeImageRunner(whole_images, target.vocab_size))
    head = resources.heads.get("one-step")
    if not isinstance(head, OneStepHead):
        raise ArgumentError(
            f"recipe '{context.recipe}' needs a drafter of kind 'one-step', and this model has none; train one with "
            "`mmspec train-drafter --kind one-step` and name its folder as drafter"
        )
    if head.vocab_size != target.vocab_size:
        raise ModelError(
            f"drafter has a vocabulary of {head.vocab_size} tokens, the model {target.vocab_size}; they must match"
        )
    if not isinstance(target, FeatureTarget):
        raise ArgumentError(
            f"recipe '{context.recipe}' is not possible here: {type(target).__name__} does not provide features"
        )
    sampler = TokenSampler(context.samplings, context.layout.constraint, target.device)
    return OneStepDrafter(OneStepRunner(head, target, sampler))


def build(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipe `one-step`."""
    return Jacobi(continuation(context), None, context.target.vocab_size)
