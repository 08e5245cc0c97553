"""Drafters that keep learning from what their target generates.

Online Speculative Decoding (Liu et al. 2023, arXiv 2310.07177): requests change over time, and a drafter that learns
from the latest ones is accepted more often. Decoding stays exact, since the drafter changes between calls only; which
tokens a seed gives then depends on the calls before it, so that nothing learns unless somebody asks for it here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.files import replacing_folder
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.training.drafter_kind import Batch
from mmspec.training.kinds import KINDS, check_loss, layer_ids
from mmspec.training.objectives import run_teacher
from mmspec.training.prepared import GivesOutCodes, TrainablePipeline
from mmspec.training.settings import TrainingSettings


class OnlineDistillation:
    """Trains a copy of a pipeline's drafter on its latest sequences, and lets the pipeline use that copy.

    The weights are a function of the first drafter, the arguments, and the sequences in the order of `observe`.

    Args:
        pipe: The pipeline, with a drafter of that kind.
        kind: "small" or the name of the recipe that drafts with the head, such as "eagle".
        folder: Where the drafter is written after each update; any later `add_drafter` reads it.
        loss: A name in `mmspec.training.objectives.LOSSES`.
        lr: Learning rate of AdamW, above 0.
        every: Sequences between updates, at least 1.
        batch: Sequences of an update, the latest ones, at least 1.
        depth: Number of draft depths that are trained.
        seed: Seed of the parts of sequences that block and grid heads are trained on.

    Attributes:
        losses: The loss of each update.

    Raises:
        ArgumentError: If the pipeline has no such drafter, or a number is out of range.
    """

    def __init__(
        self,
        pipe: TrainablePipeline,
        kind: str,
        folder: str | Path,
        loss: str = "kl",
        lr: float = 1e-4,
        every: int = 8,
        batch: int = 8,
        depth: int = 4,
        seed: int = 0,
    ) -> None:
        heads: Mapping[str, Any] = getattr(pipe, "heads", {})
        if kind != "small" and (kind not in {*KINDS} & {*heads} or not KINDS[kind].learns_online):
            raise ArgumentError(f"kind={kind!r} is not allowed; the pipeline must have a drafter of that kind")
        if not (lr > 0 and every >= 1 and batch >= 1):
            raise ArgumentError(f"lr={lr}, every={every}, batch={batch} is not allowed; lr > 0, every and batch >= 1")
        self._pipe = pipe
        self._folder = Path(folder)
        self._every = every
        known = "eagle3" if kind == "eagle" and isinstance(heads[kind], Eagle3Head) else kind
        self._settings = TrainingSettings(known, loss, (), (), 0, 0, batch, lr, depth, 0, seed)
        check_loss(self._settings)
        own: Any = pipe.new_small() if kind == "small" else deepcopy(heads[kind])
        self._model: Any = own.float().train().requires_grad_(True)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=lr, betas=(0.9, 0.95))
        self._latest: deque[tuple[str, Tensor]] = deque(maxlen=batch)
        self._seen = 0
        self.losses: list[float] = []

    def observe(self, prompts: Sequence[str], tokens: Tensor) -> None:
        """Takes in sequences that the pipeline has generated, and learns after every `every` of them.

        Args:
            prompts: Their prompts.
            tokens: int64 [B, N], padded after the ends of rows; of images the codes, as in the output of a call.

        Raises:
            ArgumentError: If there are not as many prompts as rows, or rows are not whole images.
            ModelError: If the loss is no number any more; the pipeline keeps the drafter of the update before.
        """
        if tokens.ndim != 2 or len(prompts) != len(tokens):
            raise ArgumentError(f"tokens has shape {list(tokens.shape)}; it must have a row for each of the prompts")
        if isinstance(self._pipe, GivesOutCodes):
            tokens = self._pipe.sequences(prompts, tokens)
        for prompt, row in zip(prompts, tokens.cpu(), strict=True):
            self._latest.append((prompt, row.clone()))
            self._seen += 1
            if self._seen % self._every == 0:
                self._learn()

    def _learn(self) -> None:
        """Updates the drafter on the latest sequences, and gives it to the pipeline."""
        s, prompts = self._settings, [prompt for prompt, _ in self._latest]
        longest = max(len(row) for _, row in self._latest)
        # Shorter rows repeat their last token, which is their end or the padding after it.
        rows = [torch.cat([row, row[-1:].expand(longest - len(row))]) for _, row in self._latest]
        prepared = s.prepare(self._pipe, prompts, 1)
        generator = torch.Generator().manual_seed((s.seed * 1_000_003 + len(self.losses)) % 2**63)
        with torch.inference_mode(False), torch.enable_grad():
            teacher = run_teacher(prepared, torch.stack(rows).long(), None, layer_ids(self._model))
            loss = KINDS[s.kind].loss(self._model, Batch(prepared, teacher, s, generator))
            if not loss.item() < float("inf"):
                raise ModelError(f"the loss of update {len(self.losses) + 1} is {loss.item()}; use a smaller lr")
            self._optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
        self.losses.append(loss.item())
        with replacing_folder(self._folder) as partial:
            self._model.save_pretrained(partial)
        self._pipe.add_drafter(self._folder)
