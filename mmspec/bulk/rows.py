"""The statistics of single samples of a call."""

from __future__ import annotations

from collections.abc import Sequence

from mmspec.decoding.stats import RowStats, Stats


def row_stats(stats: Stats, count: int) -> Sequence[RowStats]:
    """The statistics of each of the `count` samples of a call.

    A pipeline that adds up several runs may not report rows separately; all rows then get equal shares.
    """
    if len(stats.rows) == count:
        return stats.rows
    share = stats.tokens // count
    even = RowStats(share, round(share / stats.tokens_per_call), stats.tv_bound, stats.entropy, stats.nll)
    return [even] * count
