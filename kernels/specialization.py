"""Kernels that are compiled once for all sizes of a window.

Triton compiles a kernel anew for integers that are 1 or divisible by 16, and for addresses divisible by 16. Of counts
and of short lists neither makes a kernel faster, while a decode, whose windows and batches have many sizes, would stop
to compile in its middle. Strides and the size of the vocabulary stay as they are: on them the width of loads depends.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import triton

COUNTS = {
    "width", "slots", "q_slots", "m", "n", "group", "neighbors", "dimensions", "cells", "max_samples", "max_children",
    "height", "children_stride", "count", "first", "drafts_row", "drafted", "most", "line", "before_width",
    "forced_row", "forced_last", "indices_row", "positions_row", "iterations_row", "last_row", "scales_row",
    "kinds_row", "us_row",
    "entries_row", "table_row", "heads", "following", "chains", "batch",
    "previous", "total", "depth", "starts_row", "shift", "end", "nodes", "size",
    "sees_row", "sees_entry", "cache_row", "cache_head", "cache_slot",
    "k_row", "k_head", "k_slot", "v_row", "v_head", "v_slot",
    "columns_row", "prefix", "recent", "room", "read", "steps", "marker", "searched", "begin", "latest",
    "tokens_row", "tokens_slot", "top_k",
}  # fmt: skip
WIDE = {"cond", "uncond", "q_cond", "q_uncond", "allowed", "q_allowed", "vectors", "draft_probs"}
"""Tensors as wide as the vocabulary or a codebook."""


def kernel(function: Callable[..., None]) -> Any:
    """`triton.jit` for a kernel whose arguments have the names of this module."""
    names = [name for name, one in signature(function).parameters.items() if one.annotation is one.empty]
    wide = WIDE | COUNTS | {"vocab"} | {name for name in names if "stride" in name}
    return triton.jit(
        function,
        do_not_specialize=[name for name in names if name in COUNTS],
        do_not_specialize_on_alignment=[name for name in names if name not in wide],
    )
