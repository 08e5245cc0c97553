"""The `custom_generate` repository in examples/hub, as transformers loads it from a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
import torch
from transformers import dynamic_module_utils
from transformers.generation import GenerationMixin

import mmspec

pytestmark = pytest.mark.releases

IDS = torch.tensor([[0, 0, 1, 31, 32, 3], [1, 31, 33, 34, 30, 3]])
CALL: dict[str, Any] = {
    "input_ids": IDS, "attention_mask": (IDS != 0).long(), "max_new_tokens": 12, "do_sample": True, "top_p": 0.9,
    "seed": 3,
}  # fmt: skip


@pytest.fixture
def repository(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return str(root / "examples" / "hub")


@pytest.mark.parametrize("recipe", ["scd:window=8", "plain"])
def test_the_repository_generates_what_the_function_does(recipe: str, repository: str) -> None:
    model = tiny.emu3()
    own = model.generate(**CALL, custom_generate=mmspec.generate, recipe=recipe)
    loaded = model.generate(**CALL, custom_generate=repository, trust_remote_code=True, recipe=recipe)
    assert torch.equal(own, loaded)


def test_a_model_with_a_loop_of_its_own(repository: str) -> None:
    model = tiny.janus()
    call = {**CALL, "guidance_scale": 3.0, "recipe": "scd"}
    call["max_new_tokens"] = 16
    ids = torch.tensor([[1, 12, 13, 3]])
    call |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    own = GenerationMixin.generate(model, **call, custom_generate=mmspec.generate)
    loaded = GenerationMixin.generate(model, **call, custom_generate=repository, trust_remote_code=True)
    assert torch.equal(own, loaded) and own.shape[-1] == 16


def test_streamer_and_output_reach_the_caller(repository: str) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.tokens = 0
            self.ended = False

        def put(self, tokens: torch.Tensor) -> None:
            self.tokens += tokens.numel()

        def end(self) -> None:
            self.ended = True

    streamer = Streamer()
    call = CALL | {"input_ids": IDS[1:], "attention_mask": torch.ones_like(IDS[1:])}
    output = tiny.emu3().generate(
        **call, custom_generate=repository, trust_remote_code=True, streamer=streamer, return_dict_in_generate=True
    )
    assert streamer.ended and streamer.tokens == output.sequences.shape[1] and output.stats.target_calls > 0


def test_without_mmspec_the_error_says_how_to_install_it(repository: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers itself would tell to install a package of that name from an index, where it is another's."""
    monkeypatch.setitem(sys.modules, "mmspec", None)
    with pytest.raises(
        ImportError, match=r"^mmspec is not installed; run pip install \. in a checkout of its repository$"
    ):
        tiny.emu3().generate(**CALL, custom_generate=repository, trust_remote_code=True)
