"""`prefix_allowed_tokens_fn` evaluated at every position before decoding, and checked again afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.plan import Allowed, PlanRequest

AllowedFn = Callable[[int, Tensor], Any]


def tabulate(allowed_fn: AllowedFn, prompts: Tensor, length: int, vocab_size: int) -> Allowed:
    """The ids that a `prefix_allowed_tokens_fn` allows at each new position of each row.

    Verification needs the allowed ids of positions whose earlier tokens are still drafts, so they may depend on the
    position, the row and the prompt, but not on the generated tokens. The function is evaluated on two different images
    for the first row, to find a dependence early; `confirm` evaluates it on the generated images of all rows.

    Args:
        allowed_fn: The function.
        prompts: int64 [B, T].
        length: N new tokens.
        vocab_size: The number of ids of the model.

    Raises:
        ArgumentError: If the allowed ids depend on the generated tokens, or there are none at some position.
    """
    batch, start = prompts.shape
    kinds = AllowedSets(vocab_size)
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
                f"prefix_allowed_tokens_fn allows no id for new token {n - start} of row {lowest.index(-1)}"
            )
        sequences[:, n] = prompts.new_tensor([*lowest[:-1], kinds.ends[answers[-1]][1]])
        kind.append(answers[:-1])
    by_row = [list(answers) for answers in zip(*kind, strict=True)]
    widths = {line_width([kinds.only[k] for k in answers]) for answers in by_row}
    # Usually all rows are equal, and one row of kinds is enough.
    alike = all(answers == by_row[0] for answers in by_row)
    return Allowed(
        torch.tensor(by_row[0] if alike else by_row, device=prompts.device),
        torch.stack(kinds.masks).to(prompts.device),
        getattr(allowed_fn, "width", None) or (widths.pop() if len(widths) == 1 else None),
    )


def confirm(request: PlanRequest, sequences: Tensor, eos: Collection[int]) -> None:
    """Checks the function on the generated tokens: a dependence that `tabulate` missed would show here.

    Args:
        request: With the result of `tabulate` in `allowed`, or None.
        sequences: Ids int64 [B, T + n], prompts first.
        eos: Ids that end a row.

    Raises:
        ArgumentError: If the allowed ids differ from those in `request`.
    """
    allowed, allowed_fn, start = request.allowed, request.allowed_fn, request.input_ids.shape[1]
    if allowed is None or allowed_fn is None:
        return
    kinds = AllowedSets(allowed.ids.shape[1], allowed.ids)
    expected = allowed.kind.expand(len(sequences), -1).tolist()
    for row, (ids, tokens) in enumerate(zip(sequences, sequences[:, start:].tolist(), strict=True)):
        for n, token in enumerate(tokens):
            if kinds.of(allowed_fn(row, ids[: start + n])) != expected[row][n]:
                raise depends_on_tokens(n, row)
            if token in eos:
                break


def depends_on_tokens(n: int, row: int) -> ArgumentError:
    """The error for a function whose result depends on generated tokens."""
    return ArgumentError(
        f"prefix_allowed_tokens_fn depends on generated tokens (at new token {n} of row {row}); it may depend on the "
        "position, the row and the prompt only: leave it out, or use the model's own generate"
    )


class AllowedSets:
    """The distinct sets of allowed ids, numbered in order of their first occurrence.

    Args:
        vocab_size: V.
        known: bool [kinds, V], sets that are numbered from the start.

    Attributes:
        masks: The sets, bool [V] each.
        ends: Lowest and highest id of each set; -1 for an empty set.
        only: The id of a set with a single one, else None.
    """

    def __init__(self, vocab_size: int, known: Iterable[Tensor] = ()) -> None:
        self.masks: list[Tensor] = []
        self.ends: list[tuple[int, int]] = []
        self.only: list[int | None] = []
        self._vocab_size = vocab_size
        self._numbers: dict[bytes, int] = {}
        # Large sets tend to be one list object, found by its address; a reference keeps it from reuse.
        self._held: dict[int, tuple[Any, int]] = {}
        self._single: dict[int, int] = {}
        for mask in known:
            self._number(mask.cpu())

    def of(self, answer: Any) -> int:
        """The number of a set of ids, given as a sequence or tensor."""
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
    """Tokens per line, its end included: the distance at which a forced token recurs; None without lines.

    Args:
        forced: For each position the only allowed id, or None.
    """
    places: dict[int, list[int]] = defaultdict(list)
    for n, token in enumerate(forced):
        if token is not None:
            places[token].append(n)
    for found in places.values():
        steps = {b - a for a, b in zip(found, found[1:], strict=False)}
        if len(steps) == 1 and (step := steps.pop()) > 1:
            return step
    return None
