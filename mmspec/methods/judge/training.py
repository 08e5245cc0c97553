"""Trains a judge (`mmspec.methods.judge.head`) on pairs of outputs that differ in one token and what follows from it.

The target generates a sequence. At one of its positions the token is replaced by another one that the target might have
drafted, and the target continues from there with the same random numbers. If the metric calls the two outputs equal,
the replaced token was a good draft, and the judge learns to tell that from the target's feature there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.target import FeatureTarget
from mmspec.errors import ArgumentError
from mmspec.methods.judge.head import Judge
from mmspec.sampling.logits import Logits
from mmspec.sampling.sampler import TokenSampler
from mmspec.training.objectives import feature_target
from mmspec.training.prepared import PreparedPrompts, TrainablePipeline

ROWS = 32  # sequences per batch; two of each prompt, whose distance is the unit of the tolerance
POSITIONS = 8  # pairs that share an original
FLATTER = 0.5  # replacements are sampled from p to this power, which proposes what drafters get wrong
L2 = 0.1  # weight of the squared weights in the loss, on standardized features

# Tokens int64 [B, N] of two outputs -> their distances, float64 [B].
Distance = Callable[[Tensor, Tensor], NDArray[np.float64]]


@dataclass(frozen=True)
class JudgeSettings:
    """Everything that determines a judge.

    Attributes:
        tolerance: Outputs are equal if their distance is at most this share of the median distance between two seeds
            of one prompt.
        prompts: Prompts to train on.
        held_out: Prompts to measure on.
        pairs: Pairs to train on; half as many are measured on.
        seed: Seed of the sequences, the positions and the replaced tokens.
        temperature: Temperature of the sequences; None for the pipeline's default.
        guidance_scale: Their guidance; None for the pipeline's default.
    """

    metric: str
    tolerance: float
    prompts: tuple[str, ...]
    held_out: tuple[str, ...]
    pairs: int
    seed: int
    temperature: float | None = None
    guidance_scale: float | None = None


@dataclass(frozen=True)
class Pairs:
    """Pairs of outputs.

    Attributes:
        features: float32 [n, D], the target's features at the replaced tokens.
        equal: bool [n], whether the metric calls the outputs equal.
    """

    features: Tensor
    equal: Tensor


@dataclass(frozen=True)
class JudgeQuality:
    """The quality of a judge on held-out prompts.

    Attributes:
        pairs: Their number.
        equal: The share of pairs that are equal.
        auc: The probability that an equal pair has a higher score than another one; None if all pairs are alike.
        accepted: The share of pairs with a score above 0.8, which the rule accepts by default.
        equal_accepted: The share of these that are equal; None if there are none.
    """

    pairs: int
    equal: float
    auc: float | None
    accepted: float
    equal_accepted: float | None


def train_judge(
    pipe: TrainablePipeline,
    distance: Distance,
    settings: JudgeSettings,
    on_pairs: Callable[[int], None] | None = None,
) -> tuple[Judge, dict[str, object]]:
    """Generates the pairs and trains a judge.

    Args:
        pipe: The pipeline of the target.
        distance: The metric's distance between two outputs.
        on_pairs: Called after each batch with its number of pairs.

    Returns:
        The judge, and its settings and quality for `training.json`.

    Raises:
        ArgumentError: If the model's sequences end by themselves or have several codes per position, or if the metric
            calls all pairs equal, or none.
    """
    train = make_pairs(pipe, distance, settings, settings.prompts, settings.pairs, settings.seed, on_pairs)
    share = float(train.equal.float().mean())
    if not 0 < share < 1:
        raise ArgumentError(
            f"--tolerance: {settings.tolerance} calls {'all' if share else 'none'} of {len(train.equal)} pairs equal; "
            f"use a {'smaller' if share else 'larger'} one"
        )
    first = settings.seed + 10**6
    measured = make_pairs(pipe, distance, settings, settings.held_out, settings.pairs // 2, first, on_pairs)
    target = feature_target(pipe.prepare(settings.prompts[:1], 1))
    judge = fit(train, target.vocab_size, settings.metric)
    known = {**asdict(settings), "prompts": len(settings.prompts), "held_out": len(settings.held_out)}
    return judge, {"schema_version": 1, "settings": known, "quality": asdict(quality(judge, measured))}


def make_pairs(
    pipe: TrainablePipeline,
    distance: Distance,
    settings: JudgeSettings,
    prompts: Sequence[str],
    count: int,
    seed: int,
    on_pairs: Callable[[int], None] | None = None,
) -> Pairs:
    """At least `count` pairs, `ROWS` at each of several positions; see `train_judge`."""
    features, equal = list[Tensor](), list[Tensor]()
    batches = -(-count // ROWS)
    chooser, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    for first in range(0, batches, POSITIONS):
        chosen = [prompts[(first // POSITIONS * ROWS // 2 + i) % len(prompts)] for i in range(ROWS // 2)]
        doubled = [prompt for prompt in chosen for _ in range(2)]
        prepared = pipe.prepare(doubled, 1, settings.temperature, settings.guidance_scale)
        layout = prepared.layout
        if layout.kind != "tokens" or layout.eos:
            raise ArgumentError("a judge is trained for images of one code per position; this model generates others")
        with torch.inference_mode():
            original = Continuation(prepared, seed + first).run(torch.zeros(ROWS, 0, dtype=torch.int64))
            unit = np.median(distance(original[::2], original[1::2]))
            for batch in range(first, min(first + POSITIONS, batches)):
                # One position in each stretch of the sequence, in an order that mixes early and late ones.
                stretch = batch * 5 % batches if batches % 5 else batch
                position = int((stretch + chooser.uniform()) * layout.length / batches)
                other = Continuation(prepared, seed + first)
                replaced = other.run(other.replace(original[:, :position], original[:, position], generator))
                features.append(other.feature.clone())
                equal.append(torch.from_numpy(distance(original, replaced) <= settings.tolerance * unit))
                if on_pairs is not None:
                    on_pairs(ROWS)
    return Pairs(torch.cat(features).float().cpu(), torch.cat(equal))


class Continuation:
    """Continues prefixes by plain decoding, with the same random numbers at a position whatever the prefix is.

    Args:
        prepared: The prompts.
        seed: Seed of the random numbers.

    Attributes:
        feature: float [B, D], the target's feature at the replaced token; None before `replace`.
    """

    feature: Tensor

    def __init__(self, prepared: PreparedPrompts, seed: int) -> None:
        self._target: FeatureTarget = feature_target(prepared)
        self._sampler = TokenSampler(prepared.samplings, prepared.layout.constraint, self._target.device)
        self._length, self._rows, self._seed = prepared.layout.length, len(prepared.samplings), seed
        self._logits = self._target.prefill()

    def _read(self, tokens: Tensor, at: int) -> None:
        self._logits = self._target.forward(tokens.to(self._target.device), np.full(self._rows, at))

    def _probs(self, position: int) -> Tensor:
        """The target distribution [B, V] of a position, from the last logits."""
        uncond = self._logits.uncond
        last = Logits(self._logits.cond[:, -1:], None if uncond is None else uncond[:, -1:])
        return self._sampler.probs(last, np.full((self._rows, 1), position))[:, 0].cpu()

    def replace(self, prefix: Tensor, token: Tensor, generator: torch.Generator) -> Tensor:
        """The prefix with another token than `token` after it, int64 [B, n + 1]; reads both.

        Args:
            prefix: int64 [B, n].
            token: int64 [B].
            generator: Chooses the token.
        """
        if prefix.shape[1]:
            self._read(prefix, 0)
        weights = self._probs(prefix.shape[1]).pow(FLATTER).scatter(1, token[:, None], 0.0)
        # Where nothing else is possible the token stays, and the pair is equal.
        weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, F.one_hot(token, weights.shape[1]).float())
        other = torch.multinomial(weights, 1, generator=generator)
        self._read(other, prefix.shape[1])
        self.feature = self._target.features()[: self._rows, -1]
        return torch.cat([prefix, other], dim=1)

    def run(self, prefix: Tensor) -> Tensor:
        """The whole sequences int64 [B, N], from a prefix that has been read."""
        tokens = prefix
        for position in range(prefix.shape[1], self._length):
            p = self._probs(position)
            noise = torch.Generator().manual_seed(self._seed * self._length + position)
            # The Gumbel trick: prefixes with nearly the same p mostly continue alike.
            chosen = (p / torch.empty_like(p).exponential_(generator=noise)).argmax(1, keepdim=True)
            tokens = torch.cat([tokens, chosen], dim=1)
            if position < self._length - 1:
                self._read(chosen, position)
        return tokens


def fit(pairs: Pairs, vocab_size: int, metric: str) -> Judge:
    """Logistic regression on standardized features, with classes of equal weight."""
    mean, deviation = pairs.features.mean(0), pairs.features.std(0) + 1e-6
    x, y = (pairs.features - mean) / deviation, pairs.equal.float()
    weight, bias = torch.zeros(x.shape[1], requires_grad=True), torch.zeros(1, requires_grad=True)
    share = y.mean()
    balance = torch.where(pairs.equal, 0.5 / share, 0.5 / (1 - share))
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits(x @ weight + bias, y, balance) + L2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    judge = Judge(vocab_size, x.shape[1], metric)
    with torch.no_grad():
        judge.weight.copy_(weight / deviation)
        judge.bias.copy_(bias - (mean / deviation * weight).sum())
    return judge.eval()


def quality(judge: Judge, pairs: Pairs) -> JudgeQuality:
    with torch.no_grad():
        scores, equal = judge(pairs.features), pairs.equal
    good, bad, accepted = scores[equal], scores[~equal], scores > 0.8
    auc = None
    if len(good) and len(bad):
        above = (good[:, None] > bad).double() + 0.5 * (good[:, None] == bad).double()
        auc = float(above.mean())
    share = float(equal[accepted].float().mean()) if bool(accepted.any()) else None
    return JudgeQuality(len(equal), float(equal.float().mean()), auc, float(accepted.float().mean()), share)
