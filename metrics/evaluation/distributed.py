"""The processes that share an evaluation, started by torchrun or `accelerate launch`; one process needs neither."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

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
        return items[self.rank :: self.count]

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


def local_device(device: str) -> str:
    """The CUDA device of this process for `cuda`; any other device as it is."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device
