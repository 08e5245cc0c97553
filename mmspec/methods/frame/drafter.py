"""The draft runner of a frame head, which drafts code by code and frame by frame without the depth decoder."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FrameFeatureTarget
from mmspec.drafters.first_tokens import FirstTokens
from mmspec.errors import ModelError
from mmspec.methods.frame.head import FrameHead
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome


class FrameRunner:
    """Runs a frame head from the target's feature of the frame that the last token belongs to.

    A window may begin anywhere in a frame. Every window starts from features and committed tokens alone, so that
    nothing of a rejected draft is left, and rows join and leave without a state. A first token that the model forces,
    given the first tokens before it, is drafted as it is, and so is a token that the layout's constraint forces.

    Args:
        target: Provides the features of frames, and the sampling parameters of their places.
        sampler: Makes the draft distributions.
    """

    ROWS = ("_sampler",)
    COUNTS = ("calls",)

    def __init__(self, head: FrameHead, target: FrameFeatureTarget, sampler: TokenSampler) -> None:
        self.calls = 0
        self._head, self._target, self._sampler = head, target, sampler
        self._state = self._sum = torch.empty(0)  # [B, S], of each row's current frame, and of its tokens so far
        self._book = np.zeros(0, dtype=np.int64)  # by row, the number of these tokens
        self._firsts: FirstTokens | None = None

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        pass

    def root(self, state: BatchState) -> Probs:
        head, size = self._head, self._head.codebooks
        last = state.length - 1
        frame = last // size
        places = np.arange(size)
        known = torch.from_numpy(places <= (last % size)[:, None]).to(state.device)
        tokens = state.at(np.minimum(frame[:, None] * size + places, last[:, None]))
        embeds = head.embed(tokens, torch.arange(size, device=state.device))
        features = self._target.frame_features(frame).to(head.dtype)
        if features.shape[-1] != head.hidden_size:  # with guidance, those of both rows
            raise ModelError(
                f"drafter reads features of {head.hidden_size} values, and there are {features.shape[-1]} here; it was "
                "trained with another guidance, on or off, or for another model"
            )
        self._state = head.start(features)
        self._sum = (embeds * known[..., None]).sum(1)
        self._book = last % size + 1
        self._firsts = FirstTokens(self._target, state) if self._target.forces_firsts else None
        self._finish_frames()
        self.calls += 1
        return self._probs(state, np.zeros((len(last), 1), dtype=np.int64))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        depth = np.broadcast_to(tree.depth[:, first : first + tokens.shape[1]], tokens.shape)
        probs = list[Probs]()
        for i in range(tokens.shape[1]):
            if self._firsts is not None:
                self._firsts.note(tokens[:, i], self._book == 0)
            books = torch.from_numpy(self._book).to(tokens.device)
            self._sum = self._sum + self._head.embed(tokens[:, i], books)
            self._book = self._book + 1
            self._finish_frames()
            probs.append(self._probs(state, depth[:, i : i + 1]))
        return probs[0] if len(probs) == 1 else state.ops.cat(probs)

    def _finish_frames(self) -> None:
        """Moves the rows whose frame is complete to the next one."""
        complete = self._book == self._head.codebooks
        if not complete.any():
            return
        done = torch.from_numpy(complete[:, None]).to(self._state.device)
        self._state = torch.where(done, self._head.advance(self._state, self._sum), self._state)
        self._sum = self._sum.masked_fill(done, 0.0)
        self._book = np.where(complete, 0, self._book)

    def _probs(self, state: BatchState, depth: NDArray[np.int64]) -> Probs:
        """The distribution of each row's next token, float32 [B, 1, V]; `depth`, host int64 [B, 1], counts drafts."""
        head, device = self._head, self._state.device
        hidden = head.hidden(self._state, self._sum, torch.from_numpy(self._book).to(device))
        logits = torch.empty(len(hidden), head.vocab_size, device=device)
        for book in np.unique(self._book):
            rows = torch.from_numpy(np.flatnonzero(self._book == book)).to(device)
            logits[rows] = head.logits(hidden[rows], int(book)).float()
        logits = self._with_forced(logits[:, None], state, depth)
        made = self._target.frame_logits(logits, self._book[:, None])
        return self._sampler(Logits(made, None), Numbers(state.length[:, None] + depth))

    def _with_forced(self, logits: Tensor, state: BatchState, depth: NDArray[np.int64]) -> Tensor:
        """Logits [B, 1, V] of the next tokens; where one is forced, those of all others are -inf."""
        # This comes before the sampling parameters, which may leave the most likely token alone.
        begins, constraint, forced = self._book == 0, state.layout.constraint, np.full(len(logits), -1)
        if constraint is not None:
            forced = constraint.forced[(state.length + depth[:, 0]).clip(max=len(constraint.forced) - 1)]
        if self._firsts is not None and begins.any():
            forced = np.where(begins, self._firsts.forced(), forced)
        if not (forced >= 0).any():
            return logits
        only = torch.from_numpy(forced).to(logits.device)[:, None, None]
        ids = torch.arange(logits.shape[-1], device=logits.device)
        return torch.where(only < 0, logits, torch.where(ids == only, 0.0, -torch.inf))


def build_runner(head: FrameHead, context: DraftingContext, sampler: TokenSampler, depth: int) -> FrameRunner:
    """The runner of the network for a recipe.

    Raises:
        ModelError: If the head is for frames of another size.
    """
    target = context.target
    assert isinstance(target, FrameFeatureTarget)
    if head.codebooks != target.frame_size:
        raise ModelError(f"drafter is for frames of {head.codebooks} tokens, and this model's have {target.frame_size}")
    return FrameRunner(head, target, sampler)
