"""Length limits of single rows in a batch whose layout has one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmspec.batching.run import Decoded
from mmspec.continuous.prepared import Latents


def cut_rows(found: Latents, limits: Sequence[int]) -> Decoded:
    """Cuts each row at its own limit, as if it had been decoded alone with that limit.

    Args:
        found: The rows; the tokens after a row's end are zeros.
        limits: Tokens of each row, at most.
    """
    tokens, rows = found.tokens.clone(), list(found.stats.rows)
    for i, (row, limit) in enumerate(zip(rows, limits, strict=True)):
        if row.tokens > limit:
            tokens[i, limit:] = 0
            rows[i] = replace(row, tokens=limit, truncated=True)
    return Decoded(tokens, replace(found.stats, rows=rows))
