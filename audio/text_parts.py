"""The parts that texts are split into, decoded in batches; later parts may continue the first or the latest one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mmspec.audio.adapter import ContinuesLatest, PreparedText, SpeechAdapter, SupportsVoiceContinuation
from mmspec.batching.run import Decoded
from mmspec.decoding.stats import RowStats, Stats

_SEED_STRIDE = 2**32  # between the seeds of one text's parts


@dataclass
class _Row:
    """A part of a text: the indices of both, the part, and what it was decoded to."""

    text: int
    part: int
    prompt: Any
    tokens: Tensor | None = None
    stats: RowStats | None = None


@dataclass(frozen=True)
class DecodedParts:
    """All parts of a call, in order: the tokens of each, and the statistics of the call."""

    tokens: Sequence[Tensor]
    stats: Stats


def part_seed(seed: int, part: int) -> int:
    """The seed of a part of a text with this seed."""
    return seed + part * _SEED_STRIDE


def draws_voice(adapter: SpeechAdapter) -> bool:
    """Whether the model draws a voice with the first part of a text, which later parts continue."""
    return isinstance(adapter, SupportsVoiceContinuation) and adapter.draws_voice


def continues_latest(adapter: SpeechAdapter) -> bool:
    """Whether later parts of a text continue the part just before them, and not the first one."""
    return isinstance(adapter, ContinuesLatest) and adapter.continues_latest


def continued(adapter: SpeechAdapter, part: Any, first: Any, tokens: Tensor) -> Any:
    """A later part of a text; it continues an earlier one that was decoded to `tokens`, if the model draws voices."""
    if not draws_voice(adapter):
        return part
    assert isinstance(adapter, SupportsVoiceContinuation)
    return adapter.continue_voice(part, first, tokens)


def decode_parts(
    adapter: SpeechAdapter,
    texts: Sequence[PreparedText],
    seeds: Sequence[int],
    batch_size: int,
    decode: Callable[[Sequence[Any], Sequence[int]], Decoded],
) -> DecodedParts:
    """Decodes all parts of texts, in their order, at most `batch_size` at a time.

    Args:
        adapter: The model.
        texts: The texts.
        seeds: The seed of each text.
        batch_size: Parts that are decoded at a time.
        decode: Decodes parts with a seed each.
    """
    rows = [_Row(i, j, part) for i, each in enumerate(texts) for j, part in enumerate(each.parts)]
    earlier: dict[int, _Row] = {}  # by text: the part that is continued
    stats: Stats | None = None
    # Parts that continue another one are decoded after it.
    latest, draws = continues_latest(adapter), draws_voice(adapter)
    for wave in range(max(row.part for row in rows) + 1) if latest else range(1 + draws):
        waiting = [row for row in rows if not draws or (row.part if latest else min(row.part, 1)) == wave]
        for begin in range(0, len(waiting), batch_size):
            group = waiting[begin : begin + batch_size]
            for row in group if wave else ():
                before = earlier[row.text]
                assert before.tokens is not None
                row.prompt = continued(adapter, row.prompt, before.prompt, before.tokens)
            found = decode([row.prompt for row in group], [part_seed(seeds[row.text], row.part) for row in group])
            for row, tokens, row_stats in zip(group, found.tokens, found.stats.rows, strict=True):
                row.tokens, row.stats = tokens, row_stats
                if latest or not row.part:
                    earlier[row.text] = row
            stats = found.stats if stats is None else stats.followed_by(found.stats)
    assert stats is not None
    in_order = [row.stats for row in rows if row.stats is not None]
    return DecodedParts([row.tokens for row in rows if row.tokens is not None], replace(stats, rows=in_order))
