"""A generator that says in which process it runs, so that a test can kill it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmspec.bulk.generator import Generator


class WatchedGenerator(Generator):
    """Adds a line with its process to `folder/calls` before each call, and waits a little.

    Args:
        folder: Where the file is.
    """

    def __init__(self, folder: str) -> None:
        super().__init__("shapes", recipe="scd", batch_size=4)
        self.folder = Path(folder)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        with (self.folder / "calls").open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return {**super().__call__(batch), "process": [os.getpid()] * len(batch["prompt"])}
