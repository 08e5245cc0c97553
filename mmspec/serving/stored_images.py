"""Images that wait to be fetched from their address."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from mmspec import limits


class StoredImages:
    """Keeps the latest images, up to `limits.STORED_BYTES`, under names that cannot be guessed."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def add(self, content: bytes, suffix: str) -> str:
        """Keeps a file and returns its name."""
        name = f"{secrets.token_urlsafe(24)}.{suffix}"
        with self._lock:
            self._files[name] = content
            self._size += len(content)
            while self._size > limits.STORED_BYTES.value and len(self._files) > 1:
                self._size -= len(self._files.popitem(last=False)[1])
        return name

    def get(self, name: str) -> bytes | None:
        """The content of a file, or None if there is none of this name any more."""
        with self._lock:
            return self._files.get(name)
