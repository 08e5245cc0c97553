"""A server generates once with each model before it listens, where kernels are compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("fastapi")

from mmspec.errors import ArgumentError
from mmspec.serving.models import ServedModel
from mmspec.serving.warm_up import warm_up


class Image:
    """An image pipeline that counts its calls."""

    def __init__(self, device: str) -> None:
        self.device, self.calls = torch.device(device), list[dict[str, Any]]()

    def __call__(self, prompt: str, **options: Any) -> None:
        self.calls.append(options)


class Speech(Image):
    """A speech pipeline that gives two parts, and then refuses."""

    def stream(self, text: str, **options: Any) -> Any:
        self.calls.append(options)
        yield from (1, 2)
        raise ArgumentError("text is not allowed")


def test_models_on_a_device_generate_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMSPEC_KERNELS", raising=False)
    cpu, image, speech = Image("cpu"), Image("cuda"), Speech("cuda")
    engine: Any = None
    assert warm_up(ServedModel("one", cpu, "scd", engine)) is None and not cpu.calls
    assert "one was warmed up in" in str(warm_up(ServedModel("one", image, "scd", engine)))
    assert image.calls == [{"recipe": "scd", "seed": 0, "output_type": "latent"}]
    assert warm_up(ServedModel("two", speech, "sjd", engine)) == "two was not warmed up: text is not allowed"
    assert speech.calls == [{"recipe": "sjd", "seed": 0}]
