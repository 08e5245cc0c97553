"""A benchmark's rows as a Markdown table, which is readable in a terminal too."""

from __future__ import annotations

from collections.abc import Sequence

from mmspec.metrics.bench.recipes import BenchRow

PARTS = ("target", "drafter", "rule", "other")
HEADER = (
    "batch", "recipe", "exact?", "TV bound", "tokens/call", "target calls", "speed-up", "seconds",
    *(f"{part} s" for part in PARTS), "overhead", "bits/token", "NLL", "quality",
)  # fmt: skip


def table(rows: Sequence[BenchRow]) -> str:
    """One line per row, with aligned columns; seconds and target calls are per call of the pipeline, that is per batch.

    A speed-up is the median over repeats with the smallest and the largest in brackets, of one repeat `(once)`; "-" if
    the recipe's exactness check failed.
    """
    lines = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    rule = [f"{'-' * (width - 1)}:" if i not in (1, 2) else "-" * width for i, width in enumerate(widths)]
    return "\n".join(_line(line, widths) for line in [lines[0], rule, *lines[1:]])


def _cells(row: BenchRow) -> list[str]:
    return [
        str(row.batch),
        row.recipe,
        _guarantee(row),
        "-" if row.exact else f"{row.tv_bound:.3f}",
        f"{row.tokens_per_call:.2f}",
        f"{row.nfe:.1f}",
        "-" if row.speedup is None else row.speedup.text(2),
        f"{row.seconds.median:.3f}",
        *(f"{row.parts.get(part, 0.0):.3f}" for part in PARTS),
        f"{row.loop_overhead:.1%}",
        "-" if row.bits_per_token is None else f"{row.bits_per_token:.2f}",
        "-" if row.nll is None else f"{row.nll:.2f}",
        "-" if row.quality is None else f"{row.quality:.1%}",
    ]


def _guarantee(row: BenchRow) -> str:
    if not row.exact:
        return "relaxed"
    return "exact" if row.gate else "CHECK FAILED"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if i in (1, 2) else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
