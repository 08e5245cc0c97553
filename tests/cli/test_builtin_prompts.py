"""Commands that were given no prompts, on a model that generates classes."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from fake_pipe import open_gate
from image_pipelines import llamagen

import mmspec
from mmspec.cli import train_judge
from mmspec.cli.app import main

TRAIN = "--held-out 2 -o"


@pytest.mark.parametrize(
    ("words", "prompts"),
    [
        ("eval --limit 3 -o", ["0", "1", "2"]),
        (f"train-drafter --kind small --sequences 5 --steps 1 --batch 2 {TRAIN}", list("0123456")),
        (f"train-judge --pairs 32 {TRAIN}", list("0123456")),
    ],
)
def test_classes_are_the_prompts_of_a_model_of_classes(
    words: str, prompts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, read = llamagen(), list[str]()
    prepare, call = pipe.prepare, type(pipe).__call__
    monkeypatch.setattr(mmspec, "load", lambda *_, **__: pipe)
    monkeypatch.setattr(train_judge, "image_distance", lambda *_: lambda a, b: (a != b).sum(1).double().numpy())
    open_gate(monkeypatch)

    def prepared(texts: list[str], *rest: Any) -> Any:
        read.extend(texts)
        return prepare(texts, *rest)

    def called(self: Any, texts: list[str], **options: Any) -> Any:
        read.extend(texts)
        return call(self, texts, **options)

    monkeypatch.setattr(pipe, "prepare", prepared)
    monkeypatch.setattr(type(pipe), "__call__", wraps(call)(called))
    for _ in range(2 if words.startswith("eval") else 1):  # the second continues the folder of the first
        assert main([*words.split(), str(tmp_path / "out"), "-m", "folder"]) == 0
    assert sorted(set(read)) == prompts
