"""A pipeline without a model, for tests of bulk generation; as a script, runs that are killed at every step.

`python bulk_pipe.py FORMAT FOLDER` generates seven samples in a child process that kills itself, with SIGKILL, before
its first operation on the disk, in the next folder before its second, and so on; and then lets another one finish the
folder. It prints a JSON list with a mapping for each place: the operation, and what was left and found.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.bulk.folder import RunIdentity, ShardFolder, open_shard
from mmspec.bulk.requests import SampleRequest, SampleSettings
from mmspec.bulk.run import BulkResult, generate_missing
from mmspec.bulk.stores import open_store
from mmspec.decoding.stats import RowStats, Stats
from mmspec.environment.distributed import Shard
from mmspec.errors import ArgumentError, PromptError
from mmspec.recipes import Recipe

TOKENS = 4


@dataclass
class Output:
    images: list[Image.Image]
    tokens: Tensor
    stats: Stats


class BulkPipe:
    """Renders noise that prompt and seed determine; refuses prompts that contain "refused"."""

    def __init__(self, weights: float = 0.0, window: int = 0) -> None:
        self.window = window
        self.config = {"recipe": "plain"}
        self.calls: list[tuple[str, int]] = []
        self.settings: list[dict[str, Any]] = []
        self.module = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(self.module.weight, weights)

    def __call__(self, prompts: Sequence[str], *, recipe: Recipe, seed: Sequence[int], **settings: Any) -> Output:
        if any("refused" in prompt for prompt in prompts):
            raise PromptError(f"text={prompts[0]!r} is not allowed")
        if settings.pop("top_k", 0) == 99:
            raise ArgumentError("top_k=99 is not allowed")
        self.calls += list(zip(prompts, seed, strict=True))
        self.settings.append({"recipe": str(recipe), **settings})
        draws = [
            random.Random(zlib.crc32(f"{prompt} {one}".encode())) for prompt, one in zip(prompts, seed, strict=True)
        ]
        images = [Image.frombytes("RGB", (8, 8), draw.randbytes(192)) for draw in draws]
        tokens = torch.tensor([[draw.randrange(9) for _ in range(TOKENS)] for draw in draws])
        rows = [RowStats(TOKENS, 2, 0.0, None, None)] * len(prompts)
        stats = Stats(2, TOKENS * len(prompts), 2.0, [], 0, 0.5, {}, 7, rows=rows, window=self.window)
        return Output(images, tokens, stats)


def run(
    pipe: Any, output: Path, requests: Sequence[SampleRequest], format: str = "files", shard: Shard | None = None
) -> BulkResult:
    """A bulk run in this process: three samples per archive, two per call."""
    mine = shard or Shard()
    with open_shard(output, mine, RunIdentity("fake", "0123", format)) as folder:
        store = open_store(format, folder, "0123", 3)
        return generate_missing(pipe, mine.of(requests), folder, store, batch_size=2, fingerprint="0123")


def contents(output: Path, format: str) -> list[tuple[str, bytes]]:
    """The name and the file of every sample in an output, from the files alone."""
    if format == "files":
        return [(path.stem, path.read_bytes()) for path in sorted(output.glob("samples/*/*.png"))]
    found = list[tuple[str, bytes]]()
    for path in sorted(output.glob("*.tar" if format == "webdataset" else "*.parquet")):
        if format == "webdataset":
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.name.endswith(".png"):
                        file = archive.extractfile(member)
                        assert file is not None
                        found.append((member.name[:-4], file.read()))
        else:
            import pyarrow.parquet

            rows = pyarrow.parquet.read_table(path).to_pylist()
            found += [(row["name"], row["image"]["bytes"]) for row in rows]
    return found


def some_requests(count: int) -> list[SampleRequest]:
    """Requests of two kinds of settings."""
    return [SampleRequest(f"prompt {i}", i, SampleSettings(temperature=None if i < 4 else 0.5)) for i in range(count)]


def killed_at(step: int, output: Path, format: str, requests: Sequence[SampleRequest]) -> str | None:
    """Runs in a child that kills itself before its `step`-th operation on the disk; returns its name, or None."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def counted(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == step:
                    os.write(writing, name.encode())
                    os.kill(os.getpid(), signal.SIGKILL)
                return operation(*args, **kwargs)

            return wrapped

        for name in ("fsync", "replace", "unlink", "ftruncate"):
            setattr(os, name, counted(name, getattr(os, name)))
        run(BulkPipe(), output, requests, format)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        name = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) if name else status == 0
    return name or None


def main(format: str, folder: Path) -> list[dict[str, Any]]:
    """The table of kills; see the module."""
    requests = some_requests(7)
    run(BulkPipe(), folder / "whole", requests, format)
    expected = contents(folder / "whole", format)
    table = list[dict[str, Any]]()
    for step in range(1, 200):
        output = folder / str(step)
        operation = killed_at(step, output, format, requests)
        left = len(contents(output, format))
        pipe = BulkPipe()
        result = run(pipe, output, requests, format)
        found = contents(output, format)
        table.append({
            "step": step, "operation": operation, "left": left, "finished": result.finished,
            "generated": len(pipe.calls), "equal": found == expected,
            "lost": len({name for name, _ in expected} - {name for name, _ in found}),
            "doubled": len(found) - len({name for name, _ in found}),
            "lines": len({entry.name for entry, _ in ShardFolder(output, Shard()).journal.read()}),
            "leftovers": [path.name for path in output.rglob("*.part")]
            + [path.name for path in output.glob("shards/*/staged/*")],
        })  # fmt: skip
        if operation is None:
            return table
    raise AssertionError("the run does not end")


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
