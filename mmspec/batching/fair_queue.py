"""A queue that serves its users in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A queue with a line for each user. `pop` takes from the lines in turn, and from a line in order of arrival.

    A user with a thousand requests thus delays another by one request at a time.
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, deque[Item]] = OrderedDict()  # the line whose turn it is comes first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        for line in self._lines.values():
            yield from line

    def push(self, user: Hashable, item: Item) -> None:
        """Appends an item to a user's line."""
        self._lines.setdefault(user, deque()).append(item)
        self._count += 1

    def peek(self) -> Item:
        """The item that `pop` returns next.

        Raises:
            IndexError: If the queue is empty.
        """
        for line in self._lines.values():
            return line[0]
        raise IndexError("the queue is empty")

    def pop(self) -> Item:
        """Removes and returns the next item.

        Raises:
            IndexError: If the queue is empty.
        """
        if not self._lines:
            raise IndexError("the queue is empty")
        user, line = self._lines.popitem(last=False)
        item = line.popleft()
        if line:
            self._lines[user] = line
        self._count -= 1
        return item

    def remove(self, leaves: Callable[[Item], bool]) -> list[Item]:
        """Removes and returns the items for which `leaves` is true."""
        removed = []
        for user, line in list(self._lines.items()):
            removed += [item for item in line if leaves(item)]
            self._lines[user] = deque(item for item in line if not leaves(item))
            if not self._lines[user]:
                del self._lines[user]
        self._count -= len(removed)
        return removed
