"""Records of a part: one per case, with what was measured or with the error in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from gpu_bench.plan import Plan

Record = dict[str, Any]
PartRun = Callable[[Plan, torch.device], Iterator[Record]]


def record_of(case: Record, measure: Callable[[], Record]) -> Record:
    """A case with what was measured, or with the error in one line.

    Raises:
        torch.AcceleratorError: If the device cannot be used any more.
    """
    try:
        return case | measure()
    except torch.AcceleratorError:
        raise
    except Exception as error:
        return case | {"error": one_line(error)}


def one_line(error: BaseException) -> str:
    """The kind of an error, and the beginning of its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def records_of(record: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    """The records of a part that have no error."""
    return [one for one in record["parts"].get(part, {}).get("records", ()) if "error" not in one]


def dtype_of(device: torch.device) -> torch.dtype:
    """bfloat16 on a CUDA device, else float32."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32
