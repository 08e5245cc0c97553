"""A model of the same latents as drafter: a smaller one, the target's first layers, or the target with few steps."""

from __future__ import annotations

import torch

from mmspec.continuous.law import LatentLaw, normals
from mmspec.law import Logits
from mmspec.noise import DRAFT, Draws
from mmspec.rows import Rows
from mmspec.target import Target
from mmspec.verify import Draft, Verdict


class LatentModel:
    """Drafts latent by latent.

    **Arguments:**

    - `model`: wrapped as a target, with the same prompts.
    - `law`: of its own head and of noise of the target's seeds: at each position both start from the same noise.
    """

    def __init__(self, model: Target, law: LatentLaw) -> None:
        self.calls = 0
        self._seen = 0
        self._model = model
        self._law = law

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None:
        pass

    def keep(self, rows: list[int]) -> None:
        self._model.keep(rows)
        self._law.keep(torch.tensor(rows, device=self._model.device))

    def propose(self, rows: Rows, count: int, draws: Draws) -> Draft:
        if self.calls == 0:
            self._model.prefill()
            self.calls = 1
        positions, dim = rows.positions(count), self._law.head.dim
        fresh = normals(draws, DRAFT, dim)
        # What was drafted and accepted has been read, but for the last; reading a token twice is harmless.
        unread = min(int(rows.length.max()) - self._seen, int(rows.length.min()))
        self._seen = int(rows.length.min())
        step, at = rows.last(unread), rows.length - unread
        tokens, laws = [], []
        for i in range(count):
            logits = self._model.forward(step, at)
            self.calls += 1
            newest = Logits(logits.cond[:, -1:], None if logits.uncond is None else logits.uncond[:, -1:])
            q = self._law(newest, positions[:, i : i + 1])
            step, at = self._law.draw(q, fresh[:, i : i + 1]), rows.length + i
            tokens.append(step)
            laws.append(q)
        return Draft(torch.cat(tokens, dim=1), torch.cat(laws, dim=1))
