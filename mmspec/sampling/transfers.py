"""Copies between the host and a device that do not wait for the device where that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array of the host as a tensor of the device; on a CPU they share their memory."""
    return copied(torch.from_numpy(np.require(array, requirements="W")), device)


def copied(host: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; on a CPU the tensor itself.

    The copy is asynchronous from page-locked memory only: others may read the memory after it was freed, as `mps` does
    (https://github.com/pytorch/pytorch/issues/189690).
    """
    if device.type == "cpu":
        return host
    locked = page_locked(host, device)
    return locked.to(device, non_blocking=locked is not host)


def page_locked(host: Tensor, device: torch.device) -> Tensor:
    """A copy in page-locked memory, whose copies to a CUDA device are asynchronous; for other devices the tensor.

    Raises:
        RuntimeError: While a CUDA graph is captured, which would copy the same numbers again and again.
    """
    if device.type != "cuda":
        return host
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("numbers of the host cannot be captured")
    return host.pin_memory()


class Download:
    """A copy of a tensor to the host that has begun, and does not wait for what the device is given after it.

    Args:
        there: The tensor; it must not be written to before `wait`.
    """

    def __init__(self, there: Tensor) -> None:
        self._there = there
        self._host: Tensor | None = None
        if there.device.type == "cuda":
            self._host = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
            self._host.copy_(there, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(there.device))

    def wait(self) -> Tensor:
        """The copy, once it is there."""
        if self._host is None:
            return self._there.cpu()
        self._event.synchronize()
        return self._host
