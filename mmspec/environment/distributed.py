"""The processes that share a run, started by torchrun, `accelerate launch` or Slurm; one process needs none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from mmspec.errors import ArgumentError

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessGroup:
    """The place of this process in its group; objects are exchanged through the CPU.

    Attributes:
        rank: Of this process, from 0.
        count: Number of processes.
    """

    rank: int = 0
    count: int = 1

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of a list; the lengths of the parts differ by at most one."""
        return Shard(self.rank, self.count).of(items)

    def gather(self, mine: T) -> list[T]:
        """The objects of all processes in order of rank, on every process. Every process must call it, and waits."""
        if self.count == 1:
            return [mine]
        import torch.distributed

        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, mine)
        return found

    def merge(self, shards: Sequence[Sequence[T]]) -> list[T]:
        """The list that `shard` divided, in its original order."""
        total = sum(map(len, shards))
        return [shards[i % self.count][i // self.count] for i in range(total)]


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """Yields the group, from the environment variables that launchers set."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        yield ProcessGroup()
        return
    from datetime import timedelta

    import torch.distributed

    # Shards take unequal time, and processes communicate only at the end.
    torch.distributed.init_process_group("gloo", timeout=timedelta(days=7))
    try:
        yield ProcessGroup(torch.distributed.get_rank(), torch.distributed.get_world_size())
    finally:
        torch.distributed.destroy_process_group()


# The variables that launchers set: rank and number of processes. The first pair that is set holds.
LAUNCHERS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))


@dataclass(frozen=True)
class Shard:
    """The part of a list that one process works on, alone: nothing is exchanged with the others.

    Attributes:
        index: From 0.
        count: Number of parts.
    """

    index: int = 0
    count: int = 1

    def of(self, items: Sequence[T]) -> Sequence[T]:
        """This part of a list; the lengths of the parts differ by at most one."""
        return items[self.index :: self.count]

    def split(self, inner: Shard) -> Shard:
        """The part `inner` of this part."""
        return Shard(self.index + self.count * inner.index, self.count * inner.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def read_shard(text: str) -> Shard:
    """The shard that `i/n` names, i from 0 to n - 1.

    Raises:
        ArgumentError: If it names none.
    """
    index, slash, count = text.partition("/")
    numbers = all(part.isascii() and part.isdigit() and len(part) < 7 for part in (index, count))
    if slash and numbers and int(index) < int(count):
        return Shard(int(index), int(count))
    raise ArgumentError(f"--shard {text!r} is not allowed; it must be i/n with i from 0 to n - 1, such as 0/4")


def launched_shard() -> Shard:
    """The shard of this process among those that a launcher has started together.

    Raises:
        ArgumentError: If the launcher's variables are not such numbers.
    """
    for rank, count in LAUNCHERS:
        if rank in os.environ and count in os.environ:
            try:
                return read_shard(f"{os.environ[rank]}/{os.environ[count]}")
            except ArgumentError:
                values = f"{rank}={os.environ[rank]!r} and {count}={os.environ[count]!r}"
                raise ArgumentError(f"{values} name no process; unset them, or set them as torchrun does") from None
    return Shard()


def local_device(device: str) -> str:
    """The CUDA device of this process for `cuda`; any other device as it is.

    Slurm may show each process its own device only, which is then the first one, whatever the process's number.
    """
    local = next((os.environ[name] for name in ("LOCAL_RANK", "SLURM_LOCALID") if name in os.environ), "")
    if device != "cuda" or not local.isdigit():
        return device
    import torch

    return f"cuda:{int(local) % max(1, torch.cuda.device_count())}"
