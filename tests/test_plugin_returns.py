"""Components of other packages that return something else, or are something else: one line that names them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec import registry
from mmspec.cli.app import main
from mmspec.drafters.recipe_info import Choice
from mmspec.errors import PluginError
from mmspec.heads.info import HeadInfo
from mmspec.hf.adapters import adapter_of
from mmspec.recipes import parse
from mmspec.registry import Info
from mmspec.rules import Rule
from mmspec.sampling.rejection import Draft, ratio
from mmspec.testing.exactness import check
from mmspec.ways_to_draft import RECIPES, RecipeInfo


class Drafts:
    """A drafter, or a continuation of drafts, that returns what it is told to."""

    calls = 0

    def __init__(self, made: Callable[[int, int, int], Any], vocab: int) -> None:
        self.made, self.vocab = made, vocab

    def propose(self, state: Any, count: int, draws: Any) -> Any:
        return self.made(len(state.ids), count, self.vocab)

    def extend(self, state: Any, draft: Draft, reused: Any, draws: Any) -> Any:
        rows, count = draft.tokens.shape
        return self.made(rows, count, self.vocab)

    def observe(self, verdict: Any, state: Any, draws: Any) -> None: ...


def drafter(made: Callable[[int, int, int], Any]) -> Callable[[Any], Drafts]:
    return lambda context: Drafts(made, context.target.vocab_size)


def zeros(*shape: int) -> Any:
    return torch.zeros(shape, dtype=torch.int64)


def uniform(*shape: int) -> Any:
    return torch.full(shape, 1 / shape[-1])


DRAFTS: dict[str, tuple[Callable[[int, int, int], Any], str]] = {
    "nothing": (lambda b, m, v: None, r"a mmspec\.sampling\.rejection\.Draft with tokens, int64 \[\d+, \d\], not None"),
    "tensor": (lambda b, m, v: zeros(b, m), r"a mmspec\.sampling\.rejection\.Draft .*, not int64 \[\d+, \d\]"),
    "floats": (lambda b, m, v: Draft(uniform(b, m), uniform(b, m, v)), r"int64 \[\d+, \d\], not float32 \[\d+, \d\]"),
    "fewer": (lambda b, m, v: Draft(zeros(b, m + 1), uniform(b, m + 1, v)), r"int64 \[\d+, 4\], not int64 \[\d+, 5\]"),
    "no q": (
        lambda b, m, v: Draft(zeros(b, m), cast(Any, None)),
        r"a Draft with q, float32 .*, not None",
    ),
    "one q": (lambda b, m, v: Draft(zeros(b, m), uniform(b, v)), r"vocabulary\], not float32 \[\d+, \d+\]"),
}
RULES: dict[str, tuple[Any, str]] = {
    "nothing": (lambda p, q, x: None, r"the probability of each draft, float32 \[\d+, \d+\], not None"),
    "number": (lambda p, q, x: 0.5, r"the probability of each draft, float32 \[\d+, \d+\], not 0\.5"),
    "flags": (lambda p, q, x: ratio(p, q, x) > 1, r"float32 \[\d+, \d+\], not bool \[\d+, \d+\]"),
    "row": (lambda p, q, x: ratio(p, q, x)[:, 0], r"float32 \[\d+, \d+\], not float32 \[\d+\]"),
    "no function": (None, r"the factory of the rule 'odd' must return a function \(p, q, x\), not None"),
}


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("method", ["propose", "extend"])
def test_drafters(name: str, method: str) -> None:
    made, message = DRAFTS[name]
    if method == "propose":
        component: Any = drafter(made)
        kind, recipe = "drafter", "odd:window=5"
    else:
        component = Choice("odd", {"tokens": drafter(made)})
        kind, recipe = "start", "scd:start=odd,window=5"
    with (
        mmspec.register(kind, "odd", component),  # type: ignore[arg-type]
        pytest.raises(PluginError, match=f"^`{method}` of the drafter Drafts must return .*{message}"),
    ):
        check(parse(recipe), samples=1000)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("features", [False, True])
def test_rules(name: str, features: bool) -> None:
    accept, message = RULES[name]
    made = (lambda p, q, x, f: accept(p, q, x)) if features and accept else accept
    rule = Rule("odd", lambda: made, takes_features=features)
    with mmspec.register("rule", "odd", rule), pytest.raises(PluginError, match=message) as error:
        check(parse("odd"), samples=1000)
    assert "'odd'" in str(error.value)


def test_a_good_rule_with_a_number_as_its_factory() -> None:
    with mmspec.register("rule", "odd", Rule("odd", lambda: ratio)):
        assert check(parse("odd"), samples=1000).tokens_per_call > 1


@pytest.mark.parametrize(
    ("kind", "component", "recipe", "message"),
    [
        ("start", Choice("odd", {"tokens": lambda context: None}), "scd:start=odd", "builder of start=odd must retu"),
        ("start", Choice("odd", {"tokens": 3}), "sjd:start=odd", "the builder of start=odd must be a function that"),  # type: ignore[dict-item]
        ("refresh", Choice("odd", {"tokens": lambda context: 3}), "scd:refresh=odd", "must return a mmspec.drafters.j"),
        ("drafter", lambda context: None, "odd", "must return a Drafter, not None, which has no propose"),
        ("recipe", RecipeInfo("odd", {"tokens": 3}, RECIPES["eagle"].knobs), "odd", "must be a function, not 3"),  # type: ignore[dict-item]
    ],
)  # fmt: skip
def test_builders(kind: Any, component: Any, recipe: str, message: str) -> None:
    with mmspec.register(kind, "odd", component), pytest.raises(PluginError, match=re.escape(message)):
        check(parse(recipe), samples=1000)


def test_a_runner_of_a_head() -> None:
    info = HeadInfo("mmspec.heads.eagle:EagleHead", "", lambda *_: None)
    message = "the runner of the head 'eagle' must return a mmspec.drafters.draft_runner.DraftRunner, not None"
    with mmspec.register("head", "eagle", info, replace=True), pytest.raises(PluginError, match=re.escape(message)):
        check(parse("eagle"), samples=1000)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Entry points in every group that name the number 3, under a new name and under one of mmspec."""
    owned = {
        "mmspec.drafters": "scd", "mmspec.recipes": "sjd", "mmspec.rules": "exact", "mmspec.heads": "eagle",
        "mmspec.starts": "up", "mmspec.refreshes": "none", "mmspec.models": "shapes", "mmspec.metrics": "fid",
        "mmspec.adapters": "LlamaForCausalLM",
    }  # fmt: skip

    def found(group: str) -> dict[str, Info]:
        new = "WrongForCausalLM" if group == "mmspec.adapters" else f"wrong-{group[7:]}"
        return dict.fromkeys((new, owned[group]), Info("plug-in three:THREE", 3))

    for module in ("mmspec.registry", "mmspec.registry.registration", "mmspec.ways_to_draft"):
        monkeypatch.setattr(f"{module}.installed", found)
    yield


class WrongForCausalLM(LlamaForCausalLM):
    """A class whose adapter is none."""


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: parse("wrong-recipes"), "plug-in 3 (mmspec.recipes) must be a mmspec.drafters.recipe_info.RecipeI"),
        (lambda: parse("wrong-rules"), "plug-in 3 (mmspec.rules) must be a mmspec.rules.Rule whose `make`"),
        (lambda: parse("scd:start=wrong-starts"), "plug-in 3 (mmspec.starts) must be a mmspec.drafters.recipe_info.Ch"),
        (lambda: parse("scd:refresh=wrong-refreshes"), "plug-in 3 (mmspec.refreshes) must be a mmspec.drafters.recipe"),
        (lambda: parse("scd:start=wrong-heads"), "plug-in 3 (mmspec.heads) must be a mmspec.heads.info.HeadInfo, not"),
        (lambda: check(parse("wrong-drafters"), samples=1000), "of recipe 'wrong-drafters' must be a function, not 3"),
        (lambda: mmspec.load("wrong-models"), "plug-in 3 (mmspec.models) must be a function (device, dtype) that ret"),
        (lambda: adapter_of(WrongForCausalLM(LlamaConfig(vocab_size=7, hidden_size=8, intermediate_size=8,
         num_hidden_layers=1, num_attention_heads=1))), "plug-in 3 (mmspec.adapters) must be a module or an object wi"),
    ],
    ids=lambda use: use[8:30] if isinstance(use, str) else "",
)  # fmt: skip
def test_entry_points_of_another_kind(wrong: None, use: Callable[[], Any], message: str) -> None:
    with pytest.raises(PluginError, match=re.escape(message)) as error:
        use()
    assert "\n" not in str(error.value)


def test_the_names_of_mmspec_are_kept_and_no_others_are_listed(wrong: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("scd:start=up").knobs["start"] == "up" and "up" not in registry.starts()
    assert mmspec.load("shapes").config["recipe"] == "scd"
    assert main(["ls", "--json"]) == 0
    listed = {kind: [one["name"] for one in found] for kind, found in json.loads(capsys.readouterr().out).items()}
    assert listed["drafters"] == ["wrong-drafters"]
    assert "up" not in listed["starts"] and "none" not in listed["refreshes"]
    assert "wrong-starts" in listed["starts"] and "wrong-heads" in listed["heads"]


def test_a_model_that_returns_nothing() -> None:
    with (
        mmspec.register("model", "odd", lambda device, dtype: None),
        pytest.raises(PluginError, match="^the model 'odd' must return a pipeline, not None"),
    ):
        mmspec.load("odd")
