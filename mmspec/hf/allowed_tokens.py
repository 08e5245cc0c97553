"""`prefix_allowed_tokens_fn` asked for every position before decoding, and once more after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.plan import Allowed, PlanRequest

AllowedFn = Callable[[int, Tensor], Any]


def ask(allowed_fn: AllowedFn, prompts: Tensor, length: int, vocab_size: int) -> Allowed:
    """What a `prefix_allowed_tokens_fn` allows at each new position of each row.

    Verification needs the answer for tokens that are not decided yet, so the function may count tokens and look at the
    row and its prompt, but not at the image. The first row is asked about two different images to see that early;
    `confirm` asks all of them about the ones that were made.

    Args:
        prompts: int64 [B, T].
        length: New tokens N.
        vocab_size: Ids the model has.

    Raises:
        ArgumentError: When the answers depend on the tokens, or allow nothing.
    """
    batch, start = prompts.shape
    kinds = Kinds(vocab_size)
    rows = [*range(batch), 0]
    sequences = torch.cat([prompts, prompts[:1]])
    sequences = torch.cat([sequences, sequences.new_zeros(len(rows), length)], dim=1)
    kind = []
    for n in range(start, start + length):
        answers = [kinds.of(allowed_fn(row, sequence[:n])) for row, sequence in zip(rows, sequences, strict=True)]
        if answers[0] != answers[-1]:
            raise depends_on_tokens(n - start, 0)
        lowest = [kinds.ends[answer][0] for answer in answers]
        if min(lowest) < 0:
            raise ArgumentError(
                f"prefix_allowed_tokens_fn allows no token at all for new token {n - start} of row {lowest.index(-1)}"
            )
        sequences[:, n] = prompts.new_tensor([*lowest[:-1], kinds.ends[answers[-1]][1]])
        kind.append(answers[:-1])
    by_row = [list(answers) for answers in zip(*kind, strict=True)]
    widths = {line_width([kinds.only[k] for k in answers]) for answers in by_row}
    # Most often all rows are alike, and then there is less to carry along.
    alike = all(answers == by_row[0] for answers in by_row)
    return Allowed(
        torch.tensor(by_row[0] if alike else by_row, device=prompts.device),
        torch.stack(kinds.masks).to(prompts.device),
        getattr(allowed_fn, "width", None) or (widths.pop() if len(widths) == 1 else None),
    )


def confirm(request: PlanRequest, sequences: Tensor, eos: Collection[int]) -> None:
    """Asks once more, about the tokens that were made: what two other images did not show would show here.

    Args:
        request: With what `ask` gave, if anything.
        sequences: int64 [B, T + n] of ids, prompts first.
        eos: Ids that end a row.

    Raises:
        ArgumentError: When the answer is another one.
    """
    allowed, allowed_fn, start = request.allowed, request.allowed_fn, request.input_ids.shape[1]
    if allowed is None or allowed_fn is None:
        return
    kinds = Kinds(allowed.ids.shape[1], allowed.ids)
    expected = allowed.kind.expand(len(sequences), -1).tolist()
    for row, (ids, tokens) in enumerate(zip(sequences, sequences[:, start:].tolist(), strict=True)):
        for n, token in enumerate(tokens):
            if kinds.of(allowed_fn(row, ids[: start + n])) != expected[row][n]:
                raise depends_on_tokens(n, row)
            if token in eos:
                break


def depends_on_tokens(n: int, row: int) -> ArgumentError:
    """The error for a function that looks at the image."""
    return ArgumentError(
        f"prefix_allowed_tokens_fn depends on the tokens made so far (at new token {n} of row {row}); mmspec needs it "
        "to depend on the position, the row and the prompt alone: leave it out, or take the model's own generate"
    )


class Kinds:
    """The different answers met so far, numbered.

    Args:
        vocab_size: V.
        known: bool [kinds, V], answers that are numbered already.

    Attributes:
        masks: bool [V] each.
        ends: Lowest and highest id, -1 when there is none.
        only: The id, where just one is.
    """

    def __init__(self, vocab_size: int, known: Iterable[Tensor] = ()) -> None:
        self.masks: list[Tensor] = []
        self.ends: list[tuple[int, int]] = []
        self.only: list[int | None] = []
        self._vocab_size = vocab_size
        self._numbers: dict[bytes, int] = {}
        # Large answers tend to be one and the same list; holding it keeps its address from being used again.
        self._held: dict[int, tuple[Any, int]] = {}
        self._single: dict[int, int] = {}
        for mask in known:
            self._number(mask.cpu())

    def of(self, answer: Any) -> int:
        """The number of an answer: a sequence or tensor of ids."""
        if id(answer) in self._held:
            return self._held[id(answer)][1]
        single = answer[0] if type(answer) is list and len(answer) == 1 else None
        if type(single) is int and single in self._single:
            return self._single[single]
        mask = torch.zeros(1, self._vocab_size, dtype=torch.bool)
        mask[0, answer.cpu() if isinstance(answer, Tensor) else answer] = True
        number = self._number(mask[0])
        if type(single) is int:
            self._single[single] = number
        elif self.only[number] is None and len(self._held) < 64:
            self._held[id(answer)] = answer, number
        return number

    def _number(self, mask: Tensor) -> int:
        number = self._numbers.setdefault(mask.numpy().tobytes(), len(self.masks))
        if number == len(self.masks):
            ids = mask.nonzero()[:, 0]
            self.masks.append(mask)
            self.ends.append((int(ids[0]), int(ids[-1])) if len(ids) else (-1, -1))
            self.only.append(int(ids[0]) if len(ids) == 1 else None)
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
