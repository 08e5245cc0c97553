"""Every recipe, with every kind of sampling parameter, gives the same tokens with the kernels as without them.

Each case runs once, with two rows, in Triton's interpreter, where memory that nothing was written to is poisoned. One
case in ten runs every day, and those that have failed before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import tiny_speech
import torch
from every_recipe import RULE_KNOBS, SETTINGS, Setting, decode_columns, decode_tokens, recipes, relaxed, variants
from frame_models import frames_by
from poisoned_memory import poisoned_memory

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.models.csm.decoding import CsmFrames
from mmspec.decoding.to_end import Decoded
from mmspec.recipes import parse
from mmspec.registry import RULES
from mmspec.sampling.params import SamplingParams
from mmspec.testing.latents import run_toy
from mmspec.testing.toys import ToyHead

pytest.importorskip("triton")

from mmspec.sampling.lazy_probs import LazyProbs

FAILED = {("prompt:branch=2/1", "none"), ("draft:window=3", "truncated"), ("scd+clusters:window=3,size=2", "cuts")}


def cases(names: Iterable[str], settings: Iterable[str] = SETTINGS, share: int = 1, first: int = 0) -> list[Any]:
    """Recipes with the settings, most of them slow.

    Args:
        names: The recipes.
        settings: The settings.
        share: Each recipe has one in so many of them, in turn.
        first: Where the turns begin.
    """
    found = list[Any]()
    for i, name in enumerate(names, first):
        for j, setting in enumerate(settings):
            # Heads of frames and prompts read what a processed target does not provide.
            refused = SETTINGS[setting].penalized and ("frame" in name or name.startswith("prompt"))
            known = (name, setting) in FAILED
            if refused or ((i + j) % share and not known):
                continue
            marks = () if (i + j) % 10 == 0 or known else pytest.mark.slow
            found.append(pytest.param(name, setting, marks=marks, id=f"{name} {setting}"))
    return found


@pytest.fixture(autouse=True)
def interpreter() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As many numbers as there are windows that kernels have read."""
    found, of = list[int](), LazyProbs.of

    def counted(*given: Any) -> LazyProbs:
        found.append(1)
        return of(*given)

    monkeypatch.setattr(LazyProbs, "of", counted)
    return found


def compare(
    decode: Callable[[str, Setting], Decoded], recipe: str, setting: str, patch: pytest.MonkeyPatch, read: list[int]
) -> None:
    patch.setenv("MMSPEC_KERNELS", "torch")
    theirs = decode(recipe, SETTINGS[setting])
    assert not read
    patch.setenv("MMSPEC_KERNELS", "triton")
    with poisoned_memory():
        ours = decode(recipe, SETTINGS[setting])
    assert read or not SETTINGS[setting].reads_logits, "no kernel has run"
    assert torch.equal(ours.tokens, theirs.tokens)
    assert ours.stats.target_calls == theirs.stats.target_calls and ours.stats.acceptance == theirs.stats.acceptance
    assert ours.stats.tv_bound == pytest.approx(theirs.stats.tv_bound, abs=1e-5)


SOME = "cuts", "truncated", "constraint"
OTHERS = [*variants("tokens"), "draft:window=3,guidance=1.5", "tree:branch=2/1,layers=1,guidance=2"]


@pytest.mark.parametrize(("recipe", "setting"), [*cases(recipes("tokens")), *cases(OTHERS, SOME)])
def test_tokens(recipe: str, setting: str, monkeypatch: pytest.MonkeyPatch, read: list[int]) -> None:
    compare(decode_tokens, recipe, setting, monkeypatch, read)


WAYS = "scd", "draft", "tree", "spectr"


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [case for i, way in enumerate(WAYS) for case in cases(relaxed(way), ("cuts", "truncated"), share=2, first=i)],
)
def test_relaxed_rules(recipe: str, setting: str, monkeypatch: pytest.MonkeyPatch, read: list[int]) -> None:
    compare(decode_tokens, recipe, setting, monkeypatch, read)


RELAXED_COLUMNS = [name for way in ("scd", "draft") for name in relaxed(way) if "judge" not in name]


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        *cases(recipes("columns"), [name for name, setting in SETTINGS.items() if not setting.penalized]),
        *cases([*variants("columns"), "draft:window=3,layers=2"], SOME),
        *cases(RELAXED_COLUMNS, ("cuts", "truncated"), share=2),
    ],
)
def test_columns(recipe: str, setting: str, monkeypatch: pytest.MonkeyPatch, read: list[int]) -> None:
    compare(decode_columns, recipe, setting, monkeypatch, read)


def test_all_rules_have_knobs() -> None:
    assert set(RULE_KNOBS) == {name for name, rule in RULES.items() if not (rule.exact or rule.continuous)}


FRAMES = {
    "truncated": (SamplingParams(0.9, min_p=0.1), SamplingParams(1.1, typical_p=0.7)),
    "mixed": (SamplingParams(1.2, top_p=0.8), SamplingParams(1.1, min_p=0.1)),
    "cuts": (SamplingParams(0.8, top_k=3), SamplingParams(1.2, top_p=0.8)),
}  # of the first code of a frame, and of the others


@pytest.mark.parametrize(("recipe", "ahead", "setting"), [
    ("draft:window=3", 0, "truncated"),
    *(
        pytest.param(recipe, ahead, setting, marks=pytest.mark.slow)
        for recipe, ahead, setting in [
            ("plain", 0, "cuts"), ("plain", 0, "mixed"), ("scd:window=3", 0, "cuts"), ("draft:window=3", 0, "mixed"),
            ("stand:window=3", 0, "truncated"), ("scd:window=3,start=stand", 2, "mixed"),
            ("scd:window=3,start=stand", 2, "cuts"),
        ]
    ),
])  # fmt: skip
def test_frames(recipe: str, ahead: int, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_speech.csm(2, codebooks=3, codes=5)
    embeds, mask = model.embed_text_tokens(torch.tensor([[3, 4]])).detach(), torch.ones(3, 2, dtype=torch.bool)
    spec = FrameSpec(2, None, 0, *FRAMES[setting])
    found = []
    for kernels in ("torch", "triton"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        with poisoned_memory():
            found.append(frames_by(recipe, lambda: CsmFrames(model, embeds.expand(3, -1, -1), mask, 2, 2), spec, ahead))
    assert torch.equal(*found)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.continuous])
def test_latents(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors have no kernels of their own; random numbers may."""
    for name in recipes("latents"):
        drafting, _, knobs = name.partition(":")
        if drafting == "plain":
            continue
        found = []
        for kernels in ("torch", "triton"):
            monkeypatch.setenv("MMSPEC_KERNELS", kernels)
            recipe = parse(f"{drafting}+{rule}:{knobs}")
            found.append(run_toy(recipe, [1, 2], 3, 2, 5, ToyHead(2, sigma=0.2), ToyHead(2, 0.1, sigma=0.2)).tokens)
        assert torch.equal(*found) and found[0].isfinite().all(), name
