"""`mmspec.register`: every kind of component, through every door; and names that it refuses."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec import registry
from mmspec.bulk.generator import Generator
from mmspec.cli.app import main
from mmspec.drafters.recipe_info import Choice
from mmspec.errors import ArgumentError, MMSpecError, PluginError, UnknownNameError
from mmspec.heads.info import HeadInfo
from mmspec.hf.adapters import adapter_of
from mmspec.knobs import Knob
from mmspec.loading import load as load_model
from mmspec.metrics.evaluation.folders import measure_folders
from mmspec.metrics.metric import MeanMetric
from mmspec.recipes import parse
from mmspec.rules import Rule
from mmspec.sampling.rejection import Draft, ratio
from mmspec.testing.exactness import check
from mmspec.ways_to_draft import RECIPES, RecipeInfo

PROMPT = "a red circle"


class Repeat:
    """Drafts the last token again."""

    calls = 0

    def __init__(self, context: Any) -> None:
        self.vocab_size = context.target.vocab_size

    def propose(self, state: Any, count: int, draws: Any) -> Draft:
        last = state.at(state.length[:, None] - 1)
        tokens = last.expand(-1, count).contiguous()
        return Draft(tokens, torch.nn.functional.one_hot(tokens, self.vocab_size).float())

    def observe(self, verdict: Any, state: Any, draws: Any) -> None: ...


def raised(by: float) -> Callable[..., Any]:
    return lambda p, q, x: ratio(p, q, x) + by


class Brightness(MeanMetric):
    kind = "image"

    def scores(self, samples: Any, extractor: Any) -> Any:
        return samples.images.reshape(len(samples.images), -1).mean(1)


class OtherLlama(LlamaForCausalLM):
    """A class that only a script has."""


ADAPTER = SimpleNamespace(vocab_size=lambda model: 7, plan=lambda model, request: None, image_adapter=lambda *_: None)
RULE = Rule("p/q and more", raised, knobs={"by": Knob(0.2, "what is added", low=0.0, high=1.0)})
WIDE = RecipeInfo("scd with a wide window", {"tokens": RECIPES["scd"].builders["tokens"]}, RECIPES["scd"].knobs)
COMPONENTS: dict[str, tuple[str, Any]] = {
    "drafter": ("repeat", Repeat),
    "recipe": ("wide", WIDE),
    "rule": ("raised", RULE),
    "metric": ("brightness", Brightness("brightness")),
    "adapter": ("OtherLlama", ADAPTER),
    "model": ("my-shapes", lambda device, dtype: load_model("shapes", device=device, dtype=dtype)),
    "head": ("tall-eagle", HeadInfo("mmspec.heads.eagle:EagleHead", "tall", registry.HEADS["eagle"].runner, True)),
    "start": ("again", Choice("the table that is built while decoding", registry.starts()["recycle"].builders, True)),
    "refresh": ("inner", Choice("as outer", registry.refreshes()["outer"].builders)),
}
GROUPS = {kind: "mmspec.refreshes" if kind == "refresh" else f"mmspec.{kind}s" for kind in COMPONENTS}
KINDS = list(COMPONENTS)
RECIPES_OF = {
    "drafter": "repeat:window=3", "recipe": "wide:window=4", "rule": "raised:by=0.1",
    "start": "scd:start=again,window=4",
}  # fmt: skip


@pytest.fixture
def everything() -> Iterator[None]:
    """All components, registered."""
    found = [mmspec.register(kind, *component) for kind, component in COMPONENTS.items()]  # type: ignore[arg-type]
    yield
    for each in found:
        each.undo()
    assert not any(registry.REGISTERED.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_known_until_it_is_undone(kind: Any) -> None:
    name, component = COMPONENTS[kind]
    group = GROUPS[kind]
    with mmspec.register(kind, name, component) as first:
        assert registry.registered(group)[name].where is component and name in repr(first)
        second = mmspec.register(kind, name, component)  # a cell that runs again
        third = mmspec.register(kind, name, component)
        second.undo()
        first.undo()
        assert name in registry.registered(group)
        third.undo()
        assert name not in registry.registered(group)
        second.undo()
    assert name not in registry.registered(group)


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_what_stands_longest_is_left(order: tuple[int, ...]) -> None:
    """Whatever is undone first, the name means the latest registration that has not been."""
    components = [Rule(f"number {i}", raised, knobs=RULE.knobs) for i in range(4)]
    made = [mmspec.register("rule", "raised", each) for each in components[:3]]
    standing = [0, 1, 2]
    for gone in order:
        made[gone].undo()
        standing.remove(gone)
        found = registry.registered("mmspec.rules").get("raised")
        assert (found and found.where) is (components[standing[-1]] if standing else None)
        with mmspec.register("rule", "raised", components[3]):
            assert registry.rules()["raised"] is components[3]
        found = registry.registered("mmspec.rules").get("raised")
        assert (found and found.where) is (components[standing[-1]] if standing else None)


def test_they_are_listed(everything: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    for kind, (name, _) in COMPONENTS.items():
        (entry,) = (entry for entry in listed[GROUPS[kind].removeprefix("mmspec.")] if entry["name"] == name)
        assert entry["summary"]
    assert "repeat" in {entry["name"] for entry in listed["recipes"]}


@pytest.mark.parametrize("kind", RECIPES_OF)
def test_recipes_decode_and_are_checked(everything: None, kind: str) -> None:
    recipe = mmspec.Recipe(RECIPES_OF[kind])
    result = check(recipe, samples=4000)
    assert (result.ok or not recipe.exact) and result.tokens_per_call > 1.05
    out = mmspec.load("my-shapes")(PROMPT, recipe=recipe, seed=0, output_type="latent")
    engine = mmspec.Engine(mmspec.load("shapes"))
    engine.add(PROMPT, recipe=str(recipe), seed=0)
    while engine.has_unfinished:
        (output,) = engine.step()[-1:]
    assert torch.equal(output.result.tokens, out.tokens)


def test_the_commands_take_them(everything: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "repeat:window=3", "--samples", "4000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["passed"]
    assert main(["image", PROMPT, "-m", "my-shapes", "--recipe", "repeat+raised", "-o", str(tmp_path / "a.png")]) == 0


@pytest.mark.slow
def test_a_benchmark_takes_them(everything: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.txt").write_text(PROMPT)
    prompts = ["--prompts", str(tmp_path / "prompts.txt"), "--repeats", "1"]
    assert main(["bench", "image", "-m", "my-shapes", "--recipes", "plain,repeat", *prompts]) == 0
    assert "repeat" in capsys.readouterr().out


def test_a_metric_measures(everything: None, tmp_path: Path) -> None:
    for i in range(2):
        Image.new("RGB", (8, 8), (10 + 20 * i,) * 3).save(tmp_path / f"{i}.png")
    found = measure_folders([tmp_path, tmp_path], ["brightness"])
    assert found.quality[0]["brightness"].value == 20


def test_an_adapter_is_of_its_class_alone(everything: None) -> None:
    small = LlamaConfig(vocab_size=7, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    ours, theirs = OtherLlama(small), LlamaForCausalLM(small)
    assert adapter_of(ours) is ADAPTER and adapter_of(theirs) is not ADAPTER
    with mmspec.register("adapter", "LlamaForCausalLM", ADAPTER, replace=True):
        assert adapter_of(theirs) is ADAPTER
    assert adapter_of(theirs) is not ADAPTER


def test_an_adapter_without_a_plan_is_named() -> None:
    model = OtherLlama(
        LlamaConfig(vocab_size=7, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    with mmspec.register("adapter", "OtherLlama", ADAPTER), pytest.raises(PluginError) as error:
        model.generate(torch.ones(1, 2).long(), custom_generate=mmspec.generate, max_new_tokens=2)
    assert str(error.value) == "plan of the adapter of OtherLlama must return a mmspec.hf.plan.Plan, not None"


def test_a_generator_takes_them_and_another_process_is_told(everything: None) -> None:
    generator = Generator("my-shapes", recipe="repeat+raised:window=3")
    sent = pickle.dumps(generator)
    (image,) = pickle.loads(sent)({"prompt": [PROMPT], "seed": np.array([1])})["image"]
    assert image.startswith(b"\x89PNG")
    before, registry.REGISTERED = registry.REGISTERED, {}
    try:
        with pytest.raises(PluginError, match=r"^'my-shapes' was added by mmspec\.register in the process"):
            pickle.loads(sent)
    finally:
        registry.REGISTERED = before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("draftr", "x", Repeat),
            "kind='draftr' is not allowed (did you mean 'drafter'?); it is one of model, adapter",
        ),
        (("drafter", "a:b", Repeat), "name='a:b' is not allowed; it is letters, digits and . _ - @"),
        (("drafter", 3, Repeat), "name=3 is not allowed"),
        (("drafter", "x", 3), "component=3 is not allowed for kind='drafter'; it must be a function (context)"),
        (
            ("recipe", "x", Repeat),
            "component=<class Repeat> is not allowed for kind='recipe'; it must be a mmspec.drafters.recipe_info.Rec",
        ),
        (("recipe", "x", "scd:window=8"), "(knobs are set where a recipe is named, as in 'scd:window=32')"),
        (("rule", "x", raised), "component=<function> is not allowed for kind='rule'; it must be a mmspec.rules.Rule"),
        (
            ("adapter", "X", Repeat),
            "for kind='adapter'; it must be a module or an object with the functions vocab_size",
        ),
        (("metric", "x", 3), "metric 'x': 'component=3' must be a mmspec.metrics.metric.Metric, not 3"),
        (("metric", "x", Brightness), "must be a mmspec.metrics.metric.Metric, not <class Brightness>"),
        (
            ("drafter", "x", lambda: Repeat),
            "component=<function> is not allowed for kind='drafter'; it must be a function",
        ),
        (
            ("rule", "x", Rule("no factory", lambda p, q, x: q)),
            "it must be a mmspec.rules.Rule whose `make` takes its kn",
        ),
        (("model", "x", lambda: None), "for kind='model'; it must be a function (device, dtype) that returns"),
        (("adapter", "transformers.LlamaModel", ADAPTER), "is not allowed for an adapter; it is a class, such as"),
        (("metric", "x", Brightness("y")), "is named 'y'; the two names must be equal"),
        (("model", "x", 3), "component=3 is not allowed for kind='model'"),
        (("drafter", "scd", Repeat), "name='scd' is taken by mmspec's own drafter; choose another name, or pa"),
        (("adapter", "LlamaForCausalLM", ADAPTER), "name='LlamaForCausalLM' is taken by mmspec's own adapter"),
        (("rule", "exact", RULE), "name='exact' is taken by mmspec's own rule"),
        (("metric", "fid", Brightness("fid")), "name='fid' is taken by mmspec's own metric"),
        (("model", "shapes", COMPONENTS["model"][1]), "name='shapes' is taken by mmspec's own model"),
        (("start", "up", COMPONENTS["start"][1]), "name='up' is taken by mmspec's own start"),
        (("refresh", "model", COMPONENTS["start"][1]), "name='model' is taken by mmspec's own refresh"),
        (("head", "eagle", COMPONENTS["head"][1]), "name='eagle' is taken by mmspec's own head"),
        (("head", "x", Repeat), "for kind='head'; it must be a mmspec.heads.info.HeadInfo"),
        (("start", "x", WIDE), "for kind='start'; it must be a mmspec.drafters.recipe_info.Choice"),
        (("drafter", "lantern", Repeat), "name='lantern' is not allowed for a drafter: a rule has it"),
        (("rule", "scd", RULE), "name='scd' is not allowed for a rule: a recipe has it"),
        (("recipe", "repeat", WIDE), "name='repeat' is registered as a drafter; undo that first"),
    ],
)
def test_refused(everything: None, arguments: Any, message: str) -> None:
    with pytest.raises(MMSpecError, match=re.escape(message)) as error:
        mmspec.register(*arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["drafter", "recipe", "rule", "metric"])
def test_the_guides_register_as_they_say(root: Path, kind: str) -> None:
    guide = (root / "docs" / f"adding-a-{kind}.md").read_text()
    (module,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (call,) = re.findall(r"^    (mmspec\.register\(.*\))$", guide, re.MULTILINE)
    names: dict[str, Any] = {"mmspec": mmspec, "__file__": __file__}
    exec(module, names)
    with eval(call, names) as found:
        assert found.kind == kind


def test_a_name_of_mmspec_is_taken_over_only_if_told() -> None:
    with mmspec.register("drafter", "scd", Repeat, replace=True):
        assert list(parse("scd").knobs) == ["window"]
    assert parse("scd").info is RECIPES["scd"]
    with pytest.raises(UnknownNameError):
        parse("repeat")
    with pytest.raises(ArgumentError, match="replace=1 is not allowed"):
        mmspec.register("drafter", "x", Repeat, replace=1)  # type: ignore[arg-type]
