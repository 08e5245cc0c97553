"""The parts that texts are split into, decoded in batches; later parts may continue the voice of the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mmspec.audio.adapter import PreparedText, SpeechAdapter, SupportsVoiceContinuation
from mmspec.decoding.stats import RowStats, Stats
from mmspec.engine import Decoded

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


def continued(adapter: SpeechAdapter, part: Any, first: Any, tokens: Tensor) -> Any:
    """A later part of a text; it continues the voice of the first part and its tokens, if the model draws voices."""
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
    starts: dict[int, Tensor] = {}
    stats: Stats | None = None
    # Parts that continue the voice of a text's first part are decoded after it.
    for later in (False, True) if draws_voice(adapter) else (None,):
        waiting = [row for row in rows if later is None or (row.part > 0) == later]
        for begin in range(0, len(waiting), batch_size):
            group = waiting[begin : begin + batch_size]
            parts = [
                continued(adapter, row.prompt, texts[row.text].parts[0], starts[row.text]) if later else row.prompt
                for row in group
            ]
            found = decode(parts, [part_seed(seeds[row.text], row.part) for row in group])
            for row, tokens, row_stats in zip(group, found.tokens, found.stats.rows, strict=True):
                row.tokens, row.stats = tokens, row_stats
                starts.setdefault(row.text, tokens)
            stats = found.stats if stats is None else stats.followed_by(found.stats)
    assert stats is not None
    in_order = [row.stats for row in rows if row.stats is not None]
    return DecodedParts([row.tokens for row in rows if row.tokens is not None], replace(stats, rows=in_order))
