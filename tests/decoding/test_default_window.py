"""Jacobi recipes that name no window read as many tokens per call as a table says, whatever the load is."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from batch_runs import run
from torch import nn

from mmspec.decoding import default_window
from mmspec.decoding.assembly import window_policy
from mmspec.decoding.default_window import window_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget, toy_resources


def target(device: str, dtype: torch.dtype, mebibytes: int) -> SimpleNamespace:
    with torch.device("meta"):
        module = nn.Linear(2**20 * mebibytes // dtype.itemsize // 1024, 1024, bias=False, dtype=dtype)
    return SimpleNamespace(device=torch.device(device), module=module)


SMALL, LARGE = target("cpu", torch.float32, 8), target("cpu", torch.float32, 400)
LARGE_BF16, GPU = target("cpu", torch.bfloat16, 400), target("cuda", torch.float32, 400)


@pytest.mark.parametrize(
    ("recipe", "widths"),
    [
        ("scd", (16, 16, 16, 32)),
        ("lantern", (16, 16, 16, 32)),
        ("sjd", (16, 8, 16, 16)),
        ("sjd:start=left", (16, 8, 16, 16)),
        ("scd:window=16", (16, 16, 16, 16)),
        ("sjd:window=16", (16, 16, 16, 16)),
        ("draft", (5, 5, 5, 5)),
        ("table", (9, 9, 9, 9)),
    ],
)
def test_the_table(recipe: str, widths: tuple[int, ...]) -> None:
    assert tuple(window_of(parse(recipe), each) for each in (SMALL, LARGE, LARGE_BF16, GPU)) == widths
    for rows in (1, 64):
        policy = window_policy(parse(recipe), [SamplingParams()] * rows, rows, DraftResources(), 100, LARGE)
        assert policy.choose() == widths[1]


def test_what_was_chosen_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    default_window._tell.cache_clear()
    with caplog.at_level(logging.INFO, default_window.__name__):
        for _ in range(2):
            window_of(parse("sjd"), LARGE)
            window_of(parse("sjd:window=4"), LARGE)
            window_of(parse("sjd"), SMALL)
    assert [record.getMessage() for record in caplog.records] == [
        "recipe 'sjd' reads 8 tokens per call, since a CPU reads 400 MiB of float32 weights for it; its knob window "
        "sets another width"
    ]


@pytest.mark.parametrize("recipe", ["scd", "sjd"])
def test_the_default_is_the_window_that_it_stands_for(recipe: str) -> None:
    layout, settings = Layout(8), [SamplingParams()] * 2
    texts = (recipe, f"{recipe}:window=16")
    made = [
        run(ToyTarget(2, 3, 8, 5), parse(text), layout, settings, [1, 2], toy_resources(2, 3, layout, 6, settings))
        for text in texts
    ]
    assert torch.equal(made[0].tokens, made[1].tokens) and made[0].stats.nfe == made[1].stats.nfe
