"""`prefix_allowed_tokens_fn` asked once for every position, before decoding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.vision.hf.plan import Allowed

AllowedFn = Callable[[int, Tensor], Any]


def ask(allowed_fn: AllowedFn, prompts: Tensor, length: int, vocab_size: int) -> Allowed:
    """What a `prefix_allowed_tokens_fn` allows at each new position.

    Verification needs the answer for tokens that are not decided yet, so the function may count tokens and look at the
    prompt, but not at the picture. It is asked about different pictures to see that.

    **Arguments:**

    - `prompts`: int64 [B, T]; `length`: new tokens N; `vocab_size`: ids the model has.

    **Raises:** `ArgumentError` when the answers depend on the tokens or on the row, or allow nothing.
    """
    batch, start = prompts.shape
    kinds = Kinds(vocab_size)
    # One more row than prompts: the first prompt, continued in another way.
    rows = [*range(batch), 0]
    sequences = torch.cat([prompts, prompts[:1]])
    sequences = torch.cat([sequences, sequences.new_zeros(len(rows), length)], dim=1)
    kind = []
    for n in range(start, start + length):
        answers = [kinds.of(allowed_fn(row, sequence[:n])) for row, sequence in zip(rows, sequences, strict=True)]
        if len(set(answers)) > 1:
            reason = "on the tokens made so far" if answers[0] != answers[-1] else "on the row of the batch"
            raise ArgumentError(
                f"prefix_allowed_tokens_fn depends {reason} (at new token {n - start}); mmspec needs it to depend on "
                "the position alone: decode such prompts one at a time, or without it"
            )
        low, high = kinds.ends[answers[0]]
        if low < 0:
            raise ArgumentError(f"prefix_allowed_tokens_fn allows no token at all for new token {n - start}")
        sequences[:, n] = low
        sequences[-1, n] = high
        kind.append(answers[0])
    ids = torch.stack(kinds.masks).to(prompts.device)
    width = getattr(allowed_fn, "width", None) or line_width([kinds.only[k] for k in kind])
    return Allowed(torch.tensor(kind, device=prompts.device), ids, width)


class Kinds:
    """The different answers met so far, numbered.

    - `masks`: bool [V] each; `ends`: lowest and highest id, -1 when there is none; `only`: the id, where just one is.
    """

    def __init__(self, vocab_size: int) -> None:
        self.masks: list[Tensor] = []
        self.ends: list[tuple[int, int]] = []
        self.only: list[int | None] = []
        self._vocab_size = vocab_size
        self._numbers: dict[bytes, int] = {}
        # Large answers tend to be one and the same list; holding it keeps its address from being used again.
        self._held: dict[int, tuple[Any, int]] = {}

    def of(self, answer: Any) -> int:
        """The number of an answer: a sequence or tensor of ids."""
        if id(answer) in self._held:
            return self._held[id(answer)][1]
        mask = torch.zeros(1, self._vocab_size, dtype=torch.bool)
        mask[0, answer.cpu() if isinstance(answer, Tensor) else answer] = True
        key = mask.numpy().tobytes()
        number = self._numbers.setdefault(key, len(self.masks))
        if number == len(self.masks):
            ids = mask[0].nonzero()[:, 0]
            self.masks.append(mask[0])
            self.ends.append((int(ids[0]), int(ids[-1])) if len(ids) else (-1, -1))
            self.only.append(int(ids[0]) if len(ids) == 1 else None)
        if self.only[number] is None and len(self._held) < 64:
            self._held[id(answer)] = answer, number
        return number


def line_width(forced: Sequence[int | None]) -> int | None:
    """Tokens per line, its end included: the distance at which one forced token comes back; None without lines."""
    places: dict[int, list[int]] = defaultdict(list)
    for n, token in enumerate(forced):
        if token is not None:
            places[token].append(n)
    for found in places.values():
        steps = {b - a for a, b in zip(found, found[1:], strict=False)}
        if len(steps) == 1 and (step := steps.pop()) > 1:
            return step
    return None
