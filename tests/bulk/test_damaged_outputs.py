"""Outputs that a full disk has cut short, and samples that have lost their end: the next run makes them whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from bulk_pipe import BulkPipe, contents

import mmspec.cli.pipelines
from mmspec.bulk.media import AudioClip, encode_medium, is_whole
from mmspec.bulk.stores import FORMATS
from mmspec.cli.app import main

PROMPTS = 5


@pytest.fixture(autouse=True)
def pipe(monkeypatch: pytest.MonkeyPatch) -> BulkPipe:
    found = BulkPipe()
    monkeypatch.setattr(mmspec.cli.pipelines, "load_generator", lambda *_: found)
    return found


def generate(folder: Path, format: str) -> int:
    (folder / "prompts.txt").write_text("".join(f"prompt {i}\n" for i in range(PROMPTS)))
    words = ["--prompts", str(folder / "prompts.txt"), "-o", str(folder / "out"), "--format", format, "--batch", "2"]
    return main(["generate", *words, *([] if format == "files" else ["--pack", "2"])])


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_leaves_what_the_next_run_continues(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full at the first operation that writes, then at the second, and so on."""
    (tmp_path / "whole").mkdir()
    assert generate(tmp_path / "whole", format) == 0
    whole = sorted(contents(tmp_path / "whole" / "out", format))
    assert len(whole) == PROMPTS
    for first in range(100):
        folder, calls = tmp_path / str(first), 0
        folder.mkdir()

        def full(own: Any, first: int = first) -> Any:
            def call(*args: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > first:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return own(*args, **options)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full(os.replace))
            patch.setattr(os, "fsync", full(os.fsync))
            status = generate(folder, format)
        if status == 0:
            break
        assert status == 1 and "No space left on device" in capsys.readouterr().err
        assert generate(folder, format) == 0, first
        assert sorted(contents(folder / "out", format)) == whole, first
    assert first > 8


@pytest.mark.parametrize("left", [0, 1, 60])
@pytest.mark.parametrize("format", FORMATS)
def test_what_has_lost_its_end_is_generated_again(format: str, left: int, tmp_path: Path) -> None:
    assert generate(tmp_path, format) == 0
    whole = sorted(contents(tmp_path / "out", format))
    damaged = sorted(path for path in (tmp_path / "out").rglob("*") if path.suffix in (".png", ".tar", ".parquet"))[0]
    with damaged.open("r+b") as file:
        file.truncate(left)
    assert generate(tmp_path, format) == 0
    assert sorted(contents(tmp_path / "out", format)) == whole


def test_whole_samples(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    clip = AudioClip(np.zeros((1, 99), dtype=np.float32), 8000)
    for medium in (Image.new("RGB", (3, 3)), clip):
        content = encode_medium(medium, {})
        for size in range(len(content)):
            (tmp_path / "x").write_bytes(content[:size])
            assert not is_whole(tmp_path / "x"), size
        (tmp_path / "x").write_bytes(content)
        assert is_whole(tmp_path / "x")
    (tmp_path / "link").symlink_to("x")
    assert not is_whole(tmp_path / "link") and not is_whole(tmp_path / "none")
