"""A model of the same tokens as drafter: a smaller one, or of vectors also the target with less work."""

from __future__ import annotations

import torch

from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import Target
from mmspec.sampling.logits import Logits
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.sampler import Sampler


class ModelDrafter:
    """Drafts token by token with a model of its own.

    Args:
        model: Wrapped as a target, with the same prompts.
        sampler: How its tokens are drawn; q is this distribution, whatever the target's own settings are.
        after: How many tokens before a window may differ from what it has read. After a window accepted whole two are
            new to it, the last draft and what the target drew; all are where a rule replaces drafts in place.
    """

    def __init__(self, model: Target, sampler: Sampler, after: int = 2) -> None:
        self.calls = 0
        self._model = model
        self._sampler = sampler
        self._behind = after
        self._missed = -1  # tokens of single steps, which it has not read; the first is among those `after`

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        if verdict.tokens.shape[1] == 1:
            self._missed += 1

    def select_rows(self, row_ids: list[int]) -> None:
        self._model.select_rows(row_ids)
        self._sampler.select_rows(torch.tensor(row_ids, device=self._model.device))

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        if self.calls == 0:
            self._model.prefill()
            self.calls = 1
        positions = state.positions(count)
        # Reading a token twice is harmless.
        unread = min(self._behind + self._missed, int(state.length.min()))
        self._missed = 0
        step, at = state.last(unread), state.length - unread
        tokens, probs = [], []
        for i in range(count):
            logits = self._model.forward(step, at)
            self.calls += 1
            newest = Logits(logits.cond[:, -1:], None if logits.uncond is None else logits.uncond[:, -1:])
            q = self._sampler(newest, positions[:, i : i + 1])
            step, at = self._sampler.sample(q, draws.slot(i), DRAFT), state.length + i
            tokens.append(step)
            probs.append(q)
        return Draft(torch.cat(tokens, dim=1), torch.cat(probs, dim=1))
