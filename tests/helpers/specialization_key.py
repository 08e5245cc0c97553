"""What Triton tells launches of a kernel apart by."""

from __future__ import annotations

from typing import Any

import torch


def key(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, ...]:
    """What Triton compiles a kernel for: types, and whether integers are 1 and numbers are divisible by 16."""
    counts, small = (set(kernel.kwargs[name]) for name in ("do_not_specialize", "do_not_specialize_on_alignment"))
    found: list[object] = [kernel.fn.__name__]
    for name, value in (dict(zip(kernel.arg_names, args, strict=False)) | kwargs).items():
        if isinstance(value, torch.Tensor):
            found.append((name, value.dtype, name not in small and value.data_ptr() % 16 == 0))
        elif name in counts or (isinstance(value, float) and not name.isupper()):
            found.append((name, type(value)))
        elif name.isupper() or not isinstance(value, int):
            found.append((name, value))
        elif name != "num_warps":
            found.append((name, value == 1, value % 16 == 0))
    return tuple(found)
