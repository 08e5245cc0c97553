"""Any text gives samples or one line, in every adapter that reads texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from every_pipe import IMAGES, MUSIC, SIZES, SPEECH
from hard_texts import HARD, endless

from mmspec.errors import MMSpecError, PromptError
from mmspec.recipes import parse

PLAIN = parse("plain")


def jobs(name: str, pipe: Any, text: str) -> Iterator[Any]:
    """Reads a text, and prepares what is decoded, some parts at a time."""
    if name in IMAGES:
        yield pipe.read_request(text, {"seed": 0, "output_type": "latent", **SIZES.get(name, {})}, PLAIN)
        return
    adapter, parts = pipe.adapter, pipe.read(text, None).parts
    assert len(parts)
    for i in range(0, min(len(parts), 8), 4):
        yield adapter.prepare_rows(parts[i : i + 4], PLAIN, [adapter.sampling] * len(parts[i : i + 4]))


def outcome(name: str, pipe: Any, text: str) -> str | None:
    """The message with which a text is refused, or None."""
    try:
        with torch.inference_mode():
            for _ in jobs(name, pipe, text):
                pass
    except MMSpecError as error:
        return str(error)
    return None


@pytest.fixture(params=[*SPEECH, *MUSIC, *IMAGES])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any]:
    pipe = {**SPEECH, **MUSIC, **IMAGES}[request.param](tmp_path)
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    return request.param, pipe


def check(named: tuple[str, Any], texts: dict[str, str]) -> None:
    name, pipe = named
    for label, text in texts.items():
        message = outcome(name, pipe, text)
        assert message is None or ("\n" not in message and len(message) < 5000), label
        if label in ("empty", "surrogate", "surrogates") and name != "amused":
            assert message is not None, label


def test_hard_texts_give_jobs_or_one_line(named: tuple[str, Any]) -> None:
    check(named, HARD | endless(4000))
    _, pipe = named
    sized = {"output_type": "latent"} if named[0] in IMAGES else {}
    for wrong in (7, True, 1.5, b"one"):
        for door in (pipe, pipe.stream, lambda wrong, **options: pipe.read_request(wrong, options, PLAIN)):
            with pytest.raises(PromptError, match=rf"^(text|prompt)=\[?{re.escape(repr(wrong))}\]? is "):
                door(wrong, **sized)


@pytest.mark.slow
def test_endless_texts_give_jobs_or_one_line(named: tuple[str, Any]) -> None:
    """Some processors' own attention is quadratic, as is that of the encoders of texts of music models."""
    if named[0] not in ("musicgen", "magnet"):
        check(named, endless(100_000))
