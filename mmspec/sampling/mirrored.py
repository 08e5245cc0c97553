"""Host arrays of a window that a device has as well, so that none of them is copied a second time.

Lengths, positions and counts are arrays on the host, because the loop branches on them. Each of them that a device
needs would be a copy of its own, and each copy from pageable memory waits for the device. A window therefore copies all
that it needs at once, from page-locked memory; code that needs an array on the device asks `on_device`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Mirrored(np.ndarray[Any, np.dtype[np.int64]]):
    """An array on the host that is on a device too; what is computed from it is not.

    Attributes:
        mirror: The same numbers on the device; None for arrays that were computed from such an array.
        whole: The array that this one is a part of, and the index of the part; None if it is none, see `part`.
    """

    mirror: Tensor | None
    whole: tuple[Mirrored, Any] | None

    def __array_finalize__(self, source: object) -> None:
        self.mirror = None
        self.whole = None


def mirrored(array: NDArray[np.int64], mirror: Tensor) -> NDArray[np.int64]:
    """The array, with its copy on a device."""
    view = array.view(Mirrored)
    view.mirror = mirror
    return view


def part(array: NDArray[np.int64], index: Any) -> NDArray[np.int64]:
    """`array[index]`, by slices and integers, with its copy on a device if the array has one."""
    if not isinstance(array, Mirrored) or array.mirror is None:
        return array[index]
    found = mirrored(np.asarray(array)[index], array.mirror[index])
    assert isinstance(found, Mirrored)
    found.whole = array, index
    return found


def window_positions(at: NDArray[np.int64], first: int, count: int, device: torch.device) -> NDArray[np.int64]:
    """The positions from `at + first` on, `count` of each row, int64 [B, count], with their copy on a device.

    Args:
        at: Host int64 [B].
        first: The first position after `at`.
        count: Positions per row.
        device: The device; on a CPU the result has no copy.
    """
    host = np.asarray(at)[:, None] + np.arange(first, first + count)
    if device.type == "cpu":
        return host
    return mirrored(host, on_device(at, device)[:, None] + torch.arange(first, first + count, device=device))


def advanced(at: NDArray[np.int64], by: int = 1) -> NDArray[np.int64]:
    """The array plus a number, with its copy on a device if the array has one."""
    mirror = getattr(at, "mirror", None)
    return at + by if mirror is None else mirrored(np.asarray(at) + by, mirror + by)


def upload(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> Sequence[NDArray[np.int64]]:
    """The arrays, copied to the device in one copy, see `copied`; on a CPU as they are."""
    if device.type == "cpu":
        return arrays
    return split_mirror(arrays, copied(torch.from_numpy(np.concatenate([array.ravel() for array in arrays])), device))


def uploaded(array: NDArray[np.int64], device: torch.device) -> NDArray[np.int64]:
    """The array with its copy on a device, which is made if there is none; on a CPU as it is."""
    known = device.type == "cpu" or getattr(array, "mirror", None) is not None
    return array if known else upload([np.asarray(array)], device)[0]


def split_mirror(arrays: Sequence[NDArray[np.int64]], there: Tensor) -> list[NDArray[np.int64]]:
    """Arrays with the parts of a flat tensor, one after another, as their copies on the device."""
    parts = there.split([array.size for array in arrays])
    return [mirrored(array, part.view(array.shape)) for array, part in zip(arrays, parts, strict=True)]


def on_device(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """The array as a tensor of the device, copied only if it is not there yet; on a CPU they share their memory."""
    mirror = getattr(array, "mirror", None)
    if mirror is not None and mirror.device == device:
        return mirror
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
