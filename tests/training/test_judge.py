"""A judge is trained on pairs that differ in one token, and the rule of the same name uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from batch_runs import run
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import Target
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.checkpoint import load_head
from mmspec.methods.judge.head import Judge
from mmspec.methods.judge.training import ROWS, Continuation, JudgeSettings, train_judge
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import FEATURES, ToyTarget
from mmspec.training.prepared import PreparedPrompts

V, N = 6, 8


class Bigrams:
    """A target whose distribution and feature depend on the last token alone, so that a judge can learn from it."""

    ROWS = ("_last",)

    vocab_size, device = V, torch.device("cpu")

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self._table = torch.randn(V + 1, V, generator=generator)
        self._last = torch.full((rows, 1), V)

    def prefill(self) -> Logits:
        return Logits(self._table[self._last], None)

    def forward(self, tokens: Tensor, at: Any) -> Logits:
        self._last = tokens
        return self.prefill()

    def features(self) -> Tensor:
        return torch.cat([self._table[self._last], F.one_hot(self._last, V + 1)], dim=-1)[..., :FEATURES]

    def head(self, features: Tensor) -> Tensor:
        return features[..., :V]


class ToyPipeline:
    """A pipeline of a toy target."""

    def __init__(self, target: Callable[[int], Target]) -> None:
        self.target = target

    def prepare(
        self, prompts: Sequence[str], slack: int, temperature: float | None = None, guidance_scale: float | None = None
    ) -> PreparedPrompts:
        rows = len(prompts)
        samplings = [SamplingParams(1.0 if temperature is None else temperature)] * rows
        return PreparedPrompts(lambda: self.target(rows), Layout(N), samplings, DraftResources())

    def new_small(self) -> Any:
        raise NotImplementedError

    def add_drafter(self, folder: str | Path) -> None:
        raise NotImplementedError


def toy(rows: int) -> Target:
    return ToyTarget(rows, V, N, 5)


def in_small_tokens(first: Tensor, second: Tensor) -> Any:
    """A metric that sees only how often the tokens 0 and 1 occur."""
    return ((first < 2).sum(1) - (second < 2).sum(1)).abs().double().numpy()


def test_a_pair_differs_from_one_token_on() -> None:
    prepared = ToyPipeline(toy).prepare(["a"] * 40, 1)
    original = Continuation(prepared, 3).run(torch.zeros(40, 0, dtype=torch.int64))
    assert torch.equal(original, Continuation(prepared, 3).run(torch.zeros(40, 0, dtype=torch.int64)))
    other = Continuation(prepared, 3)
    changed = other.run(other.replace(original[:, :4], original[:, 4], torch.Generator().manual_seed(0)))
    assert torch.equal(changed[:, :4], original[:, :4]) and (changed[:, 4] != original[:, 4]).all()
    # The same random numbers: what follows is more alike than two samples are.
    alike = (changed[:, 5:] == original[:, 5:]).float().mean()
    assert alike > (original[:, 5:].roll(1, 0) == original[:, 5:]).float().mean() + 0.1
    # The feature is the target's at the replaced token, which gives the next distribution.
    target = ToyTarget(40, V, N, 5)
    target.prefill()
    logits = target.forward(changed[:, :5], np.zeros(40, dtype=np.int64)).cond
    torch.testing.assert_close(other.feature[:, :V], logits[:, -1])


def test_plain_decoding_continues_with_the_target_distribution() -> None:
    """The Gumbel trick samples from p: the marginal of the first token, over 20,000 rows, within 6 deviations."""
    rows = 20_000
    prepared = PreparedPrompts(lambda: ToyTarget(rows, 3, 2, 5), Layout(2), [SamplingParams()] * rows, DraftResources())
    found = Continuation(prepared, 1).run(torch.zeros(rows, 0, dtype=torch.int64))[:, 0].bincount(minlength=3) / rows
    p = ToyTarget(rows, 3, 2, 5).prefill().cond[0, -1].softmax(-1)
    assert ((found - p).abs() < 6 * (p * (1 - p) / rows).sqrt()).all()


def test_a_trained_judge_finds_good_drafts_and_the_rule_uses_it(tmp_path: Path) -> None:
    settings = JudgeSettings("toy", 0.4, ("a", "b"), ("c",), 40 * ROWS, 0)
    judge, record = train_judge(ToyPipeline(Bigrams), in_small_tokens, settings)
    quality: Any = record["quality"]
    assert quality["pairs"] == 20 * ROWS and 0.1 < quality["equal"] < 0.9
    assert quality["auc"] > 0.6, quality
    judge.save_pretrained(tmp_path)
    loaded = load_head(tmp_path)
    assert isinstance(loaded, Judge) and loaded.metric == "toy" and torch.equal(loaded.weight, judge.weight)
    resources = DraftResources(
        draft_model=lambda: ToyTarget(50, V, N, 6), draft_sampling=[SamplingParams()] * 50, heads={"judge": loaded}
    )
    exact, judged = (
        run(Bigrams(50), parse(recipe), Layout(N), [SamplingParams()] * 50, range(50), resources).stats
        for recipe in ("draft:window=4", "draft+judge:window=4,leniency=0.5")
    )
    assert judged.tokens_per_call > exact.tokens_per_call and judged.tv_bound > 0 == exact.tv_bound


def test_a_judge_of_other_features_is_refused() -> None:
    resources = DraftResources(
        draft_model=lambda: ToyTarget(2, V, N, 6),
        draft_sampling=[SamplingParams()] * 2,
        heads={"judge": Judge(V, 3, "")},
    )
    with pytest.raises(ModelError, match="the judge reads features of 3 values, and this model's have 13"):
        run(Bigrams(2), parse("draft+judge:window=4"), Layout(N), [SamplingParams()] * 2, range(2), resources)


@pytest.mark.parametrize(
    ("tolerance", "message"), [(10.0, "calls all of 32 pairs equal; use a smaller one"), (0.0, "")]
)
def test_a_metric_that_calls_all_pairs_alike_is_refused(tolerance: float, message: str) -> None:
    settings = JudgeSettings("toy", tolerance, ("a",), ("b",), ROWS, 0)
    distance = in_small_tokens if message else lambda a, b: np.ones(len(a))
    with pytest.raises(ArgumentError, match=message or "calls none of 32 pairs equal; use a larger one"):
        train_judge(ToyPipeline(toy), distance, settings)


def test_models_whose_sequences_end_are_refused() -> None:
    class Ending(ToyPipeline):
        def prepare(self, *arguments: Any) -> PreparedPrompts:
            prepared = super().prepare(*arguments)
            return replace(prepared, layout=Layout(N, eos=frozenset({1})))

    with pytest.raises(ArgumentError, match="one code per position"):
        train_judge(Ending(toy), in_small_tokens, JudgeSettings("toy", 0.5, ("a",), ("b",), ROWS, 0))


def test_the_shipped_judge_fits_its_model() -> None:
    model = Path(__file__).parents[2] / "examples" / "quality_vs_speed" / "model"
    judge = load_head(model / "drafters" / "judge")
    transformer = json.loads((model / "transformer" / "config.json").read_text())
    assert judge.kind == "judge" and judge.hidden_size == transformer["dim"]
    assert judge.vocab_size == transformer["vocab_size"]
    quality = json.loads((model / "drafters" / "judge" / "training.json").read_text())["quality"]
    assert quality["auc"] > 0.7
