"""Integers of a batch that the host knows, and that may be on a device already.

Lengths, positions and counts are on the host, because the loop branches on them. Each of them that a device needs would
be a copy of its own, and each copy from pageable memory waits for the device. A window therefore copies all that it
needs at once, from page-locked memory, see `upload`. Copies do not wait for the device where that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Numbers:
    """Integers on the host, with their copy on a device if there is one.

    Attributes:
        host: int64. What only the device knows yet has a bound here, see `mmspec.decoding.ahead`.
        there: The same numbers on the device; None if they have not been copied.
        part_of: The numbers that these are a part of, and the index of the part, see `part`; None if there are none.
    """

    host: NDArray[np.int64]
    there: Tensor | None = None
    part_of: tuple[Numbers, Any] | None = None

    def on(self, device: torch.device) -> Tensor:
        """The numbers as a tensor of the device, copied only if they are not there yet; see `on_device`."""
        there = self.there
        return there if there is not None and there.device == device else on_device(self.host, device)

    def part(self, index: Any) -> Numbers:
        """Some of the numbers, by slices and integers."""
        if self.there is None:
            return Numbers(self.host[index])
        return Numbers(self.host[index], self.there[index], (self, index))

    def plus(self, by: int) -> Numbers:
        """Each number plus another one."""
        return self if not by else Numbers(self.host + by, None if self.there is None else self.there + by)

    def window(self, first: int, count: int, device: torch.device) -> Numbers:
        """The `count` positions from `first` on after each of [B] positions, [B, count]; on a CPU without a copy."""
        host = self.host[:, None] + np.arange(first, first + count)
        if device.type == "cpu":
            return Numbers(host)
        return Numbers(host, self.on(device)[:, None] + torch.arange(first, first + count, device=device))

    def uploaded(self, device: torch.device) -> Numbers:
        """The numbers with their copy on a device, which is made if there is none; on a CPU as they are."""
        return self if device.type == "cpu" or self.there is not None else upload([self.host], device)[0]


def upload(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> list[Numbers]:
    """Host arrays with their copies on a device, which are made at once; on a CPU without."""
    if device.type == "cpu":
        return [Numbers(array) for array in arrays]
    there = copied(torch.from_numpy(np.concatenate([array.ravel() for array in arrays])), device)
    parts = there.split([array.size for array in arrays])
    return [Numbers(array, part.view(array.shape)) for array, part in zip(arrays, parts, strict=True)]


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
