"""A model of the same tokens as drafter: a smaller one, or of vectors also the target with less work."""

from __future__ import annotations

import torch

from mmspec.law import Logits
from mmspec.loop import TokenLaw
from mmspec.noise import DRAFT, Draws
from mmspec.rows import Rows
from mmspec.target import Target
from mmspec.verify import Draft, Verdict


class ModelDrafter:
    """Drafts token by token with a model of its own.

    **Arguments:**

    - `model`: wrapped as a target, with the same prompts.
    - `law`: how its tokens are drawn; q is this law, whatever the target's own settings are.
    - `behind`: how many tokens before a window may differ from what it has read. After a window accepted whole two are
      new to it, the last draft and what the target drew; all are where a rule replaces drafts in place.
    """

    def __init__(self, model: Target, law: TokenLaw, behind: int = 2) -> None:
        self.calls = 0
        self._model = model
        self._law = law
        self._behind = behind
        self._missed = -1  # tokens of single steps, which it has not read; the first is among those `behind`

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None:
        if verdict.tokens.shape[1] == 1:
            self._missed += 1

    def keep(self, rows: list[int]) -> None:
        self._model.keep(rows)
        self._law.keep(torch.tensor(rows, device=self._model.device))

    def propose(self, rows: Rows, count: int, draws: Draws) -> Draft:
        if self.calls == 0:
            self._model.prefill()
            self.calls = 1
        positions = rows.positions(count)
        # Reading a token twice is harmless.
        unread = min(self._behind + self._missed, int(rows.length.min()))
        self._missed = 0
        step, at = rows.last(unread), rows.length - unread
        tokens, laws = [], []
        for i in range(count):
            logits = self._model.forward(step, at)
            self.calls += 1
            newest = Logits(logits.cond[:, -1:], None if logits.uncond is None else logits.uncond[:, -1:])
            q = self._law(newest, positions[:, i : i + 1])
            step, at = self._law.sample(q, draws.slot(i), DRAFT), rows.length + i
            tokens.append(step)
            laws.append(q)
        return Draft(torch.cat(tokens, dim=1), torch.cat(laws, dim=1))
