"""The options of `mmspec.generate` that are its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_callback, check_flag, shown
from mmspec.errors import ArgumentError
from mmspec.heads.head import Head


def check_options(
    draft_model: Any, table: Any, heads: Any, on_step: Any, measure_entropy: Any, on_stats: Any = None
) -> None:
    """Checks the types of the options of `mmspec.generate`, before any work.

    Raises:
        ArgumentError: If an option is of a type that is not allowed.
    """
    if draft_model is not None and not isinstance(draft_model, torch.nn.Module):
        raise ArgumentError(f"draft_model={shown(draft_model)} is not allowed; it must be a loaded model")
    if table is not None and not (isinstance(table, Tensor) and table.ndim == 2 and not table.is_floating_point()):
        raise ArgumentError(f"table={shown(table)} is not allowed; it must be ids of images, an int64 tensor [n, N]")
    if not isinstance(heads, Sequence) or not all(isinstance(head, Head) for head in heads):
        raise ArgumentError(f"heads={shown(heads)} is not allowed; it must be a list of draft heads, see load_head")
    check_callback("on_step", on_step)
    check_callback("on_stats", on_stats)
    check_flag("measure_entropy", measure_entropy)
