"""`mmspec check --batch-invariance`: tiny models of each shape pass, one whose rows depend on each other fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_latents
import tiny_llamagen
import tiny_mar
import tiny_models
import tiny_processors
import tiny_var
import torch
from image_pipelines import llamagen
from torch import Tensor

import mmspec
from mmspec.cli.app import main
from mmspec.cli.model_check.batch_invariance import (
    LATE,
    SERVER,
    TOGETHER,
    Codes,
    check_batch_invariance,
    difference,
)
from mmspec.cli.model_check.batch_invariance_report import prompts_of
from mmspec.cli.model_check.subject import dtype_of
from mmspec.hf.causal_target import CausalTarget
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.vision.class_prompts import class_count
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.mar.pipeline import MARPipeline

WORDS = ["one two", "a red dog", "two", "a dog"]


def quiet(pipe: Any) -> Any:
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    return pipe


PIPELINES: dict[str, tuple[Callable[[], Any], str, list[str]]] = {
    "image": (lambda: mmspec.load(tiny_models.janus(), processor=tiny_processors.janus()), "scd:window=4", WORDS),
    "classes": (llamagen, "recycle:window=3", ["3", "1", "6", "1"]),
    "speech": (lambda: mmspec.load("spoken"), "table:window=8", ["one", "turn left", "two", "it is half past three"]),
    "vectors": (
        lambda: mmspec.load(tiny_latents.tiny("pocket"), processor=tiny_latents.pocket_processor()),
        "plain",
        ["hello big world", "again", "big hello", "hello"],
    ),
}


QUICK = ("classes",)


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in PIPELINES]
)
def test_codes_do_not_depend_on_other_requests(kind: str) -> None:
    make, recipe, prompts = PIPELINES[kind]
    found = check_batch_invariance(quiet(make()), parse(recipe), prompts, "float32")
    ways = TOGETHER, LATE, SERVER
    assert found == [Codes(way, "float32", len(prompts), len(prompts)) for way in ways]
    assert all(codes.result == "passed" for codes in found)


def test_models_of_classes_choose_classes() -> None:
    llamagen = LlamaGenPipeline(tiny_llamagen.tiny(model_type="c2i", num_classes=9, cls_token_num=1))
    for pipe, count in (
        (llamagen, 9),
        (MARPipeline(tiny_mar.tiny()), 7),
        (tiny_var.tiny_var_pipeline(), 5),
    ):
        chosen = [int(prompt) for prompt in prompts_of("tiny", pipe, 8)]
        assert class_count(pipe) == count and chosen == sorted(chosen) and chosen[0] < chosen[-1] < count
        pipe.read_request(str(chosen[-1]), {"output_type": "latent"}, parse("plain"))
    for model in ("shapes", "spoken"):
        pipe = mmspec.load(model)
        assert class_count(pipe) is None and not prompts_of(model, pipe, 8)[0].isdigit()


@pytest.fixture
def mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a model whose rows depend on each other: each sees the mean of the batch."""
    real = CausalTarget.forward

    def forward(self: CausalTarget, *given: Any) -> Any:
        cond, uncond = real(self, *given)
        return Logits(cond + cond.mean(0, keepdim=True), uncond)

    monkeypatch.setattr(CausalTarget, "forward", forward)


def test_a_model_whose_rows_depend_on_each_other_fails(mixing: None) -> None:
    make, recipe, prompts = PIPELINES["image"]
    found = check_batch_invariance(quiet(make()), parse(recipe), prompts, "float32")
    assert [codes.result for codes in found] == ["FAILED"] * 3
    assert all(codes.equal < codes.requests and codes.first is not None for codes in found)


@pytest.mark.slow
def test_the_command(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny_models.janus().save_pretrained(tmp_path / "janus")
    tiny_processors.janus().save_pretrained(tmp_path / "janus")
    call = ["check", "scd:window=4", "-m", str(tmp_path / "janus"), "--batch-invariance"]
    monkeypatch.setattr("mmspec.cli.model_check.batch_invariance_report.DTYPES", ("bf16",))
    assert main([*call, "-o", str(tmp_path / "page.md")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "8 requests: passed" in page and page.count("bfloat16") == 3
    assert main([*call, "--tokens", "8"]) == 2
    assert "--batch-invariance takes no --tokens" in capsys.readouterr().err
    assert main(["check", "--batch-invariance"]) == 2
    assert "--batch-invariance requires -m/--model" in capsys.readouterr().err
    request.getfixturevalue("mixing")
    assert main([*call, "--dtype", "float32", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"] and [each["result"] for each in found["results"]] == ["FAILED"] * 3


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (torch.tensor([1, 2, 3]), torch.tensor([1, 2, 3]), None),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 5, 6]), 1),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 2]), 2),
        (torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]]), 1),
        (torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0001]]), None),
        (torch.tensor([[1.0, 2.0]]), torch.tensor([[1.1, 2.0]]), 0),
        (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), None),
    ],
)
def test_the_first_difference(one: Tensor, other: Tensor, expected: int | None) -> None:
    assert difference(one, other) == expected


@pytest.mark.parametrize("name", ["spoken", "shapes-latent"])
def test_the_dtype_is_that_of_the_weights(name: str) -> None:
    assert dtype_of(mmspec.load(name, dtype="bf16")) == torch.bfloat16


@pytest.mark.slow
def test_a_request_that_the_server_refuses_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    make, recipe, prompts = PIPELINES["speech"]
    monkeypatch.setenv("MMSPEC_MAX_INPUT", "2")
    *_, codes = check_batch_invariance(make(), parse(recipe), ["one"] * 2, "float32")
    assert codes.result == "not checked" and "the server answers with status 400" in codes.figures


def test_only_float32_is_promised() -> None:
    results = {Codes(TOGETHER, dtype, 4, equal).result for dtype in ("bfloat16", "float16") for equal in (0, 3)}
    assert results == {"not promised"}
    assert Codes(TOGETHER, "bfloat16", 4, 3, 17).figures == "3 of 4 equal, the first difference is at position 17"
    assert Codes(SERVER, "float32", 4, reason="no server").result == "not checked"
