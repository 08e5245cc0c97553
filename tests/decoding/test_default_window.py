"""Jacobi recipes that name no window read as many tokens per call as a table says, whatever the load is."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from batch_runs import run
from torch import nn

from mmspec.decoding import default_window
from mmspec.decoding.adaptive_window import AdaptiveWindow
from mmspec.decoding.assembly import window_policy, with_window
from mmspec.decoding.default_window import window_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.errors import ArgumentError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget, toy_heads, toy_resources


@dataclass(slots=True)
class Slotted:
    device: torch.device


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
    chosen = with_window(parse(recipe), LARGE)
    assert not chosen.window_by_model and chosen.window == widths[1]
    for rows in (1, 64):
        assert window_policy(chosen, [SamplingParams()] * rows, rows, DraftResources(), 100).choose() == widths[1]


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
    assert [each.stats.window for each in made] == [16, 16]


def test_targets_of_any_make_are_weighed() -> None:
    """Those with slots hold no modules that are seen; two that know each other are weighed once."""
    one = SimpleNamespace(device=torch.device("cpu"), prefill=None, module=LARGE.module)
    one.outer = SimpleNamespace(prefill=None, inner=one)
    assert window_of(parse("sjd"), one) == 8 and window_of(parse("sjd"), Slotted(torch.device("cpu"))) == 16
    for backbone, reader, width in ((LARGE, SMALL, 16), (SMALL, LARGE, 8)):  # the depth decoder alone
        frames = SimpleNamespace(device=torch.device("cpu"), module=backbone.module, reader=reader.module)
        assert window_of(parse("sjd"), frames) == width


@pytest.mark.parametrize(
    ("recipe", "named"),
    [
        ("scd:start=medusa", "drafts 15 tokens ahead"),
        ("scd:refresh=medusa,refreshed=20", "drafts 20 tokens ahead"),
        ("scd:window=auto,refresh=medusa,refreshed=20", "drafts 20 tokens ahead"),
    ],
)
def test_the_default_is_known_before_drafters_are_built(recipe: str, named: str) -> None:
    layout, heads = Layout(40), DraftResources(heads={"medusa": toy_heads(3, None, 5)["medusa"]})
    with pytest.raises(ArgumentError, match=f"{named}, but the drafter has 8 Medusa heads"):
        run(ToyTarget(1, 3, 40, 5, memory=3), parse(recipe), layout, [SamplingParams()], [1], heads)


def test_a_window_chosen_later_may_be_wider_than_there_are_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdaptiveWindow, "choose", lambda policy: 32)
    layout, heads = Layout(80), DraftResources(heads={"medusa": toy_heads(3, None, 5)["medusa"]})
    found = run(
        ToyTarget(1, 3, 80, 5, memory=3), parse("scd:window=auto,start=medusa"), layout, [SamplingParams()], [1], heads
    )
    assert found.tokens.shape == (1, 80)
