"""A server generates once with each model before it listens, where kernels are compiled."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi")

from mmspec.errors import ArgumentError, PromptError
from mmspec.serving.models import ServedModel
from mmspec.serving.warm_up import TEXTS, warm_up
from mmspec.vision.scenes.grammar import parse as parse_scenes
from mmspec.vision.shapes.grammar import parse as parse_shapes


class Image:
    """An image pipeline that counts its calls."""

    def __init__(self, device: str) -> None:
        self.device, self.calls = torch.device(device), list[dict[str, Any]]()

    def __call__(self, prompt: str, **options: Any) -> None:
        self.calls.append(options)


class Speech(Image):
    """A speech pipeline that gives two parts, and then refuses."""

    output_kind = "audio"

    def stream(self, text: str, **options: Any) -> Any:
        self.calls.append(options)
        yield from (1, 2)
        raise ArgumentError("text is not allowed")


class Classes(Image):
    """A pipeline of classes, which reads their numbers."""

    def __call__(self, prompt: str, **options: Any) -> None:
        if not prompt.isdecimal():
            raise PromptError(f"prompt={prompt} is not allowed")
        super().__call__(prompt, **options)


def test_a_model_with_a_vocabulary_of_its_own_gets_a_prompt_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMSPEC_KERNELS", raising=False)
    engine: Any = None
    classes = Classes("cuda")
    assert "warmed up in" in str(warm_up(ServedModel("one", classes, "scd", engine))) and len(classes.calls) == 1
    read = {parser: 0 for parser in (parse_shapes, parse_scenes)}
    for parser, text in product(read, TEXTS):
        try:
            parser(text)
            read[parser] += 1
        except PromptError:
            pass
    assert list(read.values()) == [1, 1]


def test_models_on_a_device_generate_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMSPEC_KERNELS", raising=False)
    cpu, image, speech = Image("cpu"), Image("cuda"), Speech("cuda")
    engine: Any = None
    assert warm_up(ServedModel("one", cpu, "scd", engine)) is None and not cpu.calls
    assert "one was warmed up in" in str(warm_up(ServedModel("one", image, "scd", engine)))
    assert image.calls == [{"recipe": "scd", "seed": 0, "output_type": "latent"}]
    assert warm_up(ServedModel("two", speech, "sjd", engine)) == "two was not warmed up: text is not allowed"
    assert speech.calls == [{"recipe": "sjd", "seed": 0}]
