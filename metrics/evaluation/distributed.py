"""The processes that share an evaluation, started by torchrun or `accelerate launch`; one process needs neither."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among `count`; what they have to say to each other goes through the CPU."""

    rank: int = 0
    count: int = 1

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The part of a list that falls to this process; shares differ by one at most."""
        return items[self.rank :: self.count]

    def gather(self, mine: T) -> list[T]:
        """What every process has, in order of rank, on all of them. Each must call it, and waits for the others."""
        if self.count == 1:
            return [mine]
        import torch.distributed

        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, mine)
        return found

    def whole(self, shares: Sequence[Sequence[T]]) -> list[T]:
        """The list whose shares these are, in its own order."""
        total = sum(map(len, shares))
        return [shares[i % self.count][i // self.count] for i in range(total)]


@contextmanager
def join() -> Iterator[Processes]:
    """Yield this process's place, read from the variables that launchers set."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        yield Processes()
        return
    from datetime import timedelta

    import torch.distributed

    # Shares take unequal time, and nobody speaks before the end.
    torch.distributed.init_process_group("gloo", timeout=timedelta(days=7))
    try:
        yield Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    finally:
        torch.distributed.destroy_process_group()


def own_device(device: str) -> str:
    """`cuda` as this process's own CUDA device; any other is left as it is."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device
