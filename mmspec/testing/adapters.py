"""Is a target what the loop takes it for? Two trials that any adapter can be put to.

`check_windows` compares windows with single tokens, `check_samples` a recipe's images with the target's own distribution. Both
ask the target alone, so what it gets wrong in every way of asking, such as the wrong head, only the model's own
generation loop can show.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.target import Target
from mmspec.engine import run
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import ExactnessResult, noise_floor

# (rows, window) -> a target with that many rows of one and the same prompt, with room for windows of that many tokens
# at the last position.
Make = Callable[[int, int], Target]

MOST_SEQUENCES = 4096


def check_windows(
    make: Make, length: int, window: int = 4, batch_size: int = 3, seed: int = 0, cell: tuple[int, ...] = ()
) -> float:
    """The largest difference between logits read in windows and those read one token at a time.

    The windows overlap, start at another place in each row, and have windows of other tokens read before them, as after
    drafts that were all rejected; half-way a row is dropped; the last ones reach past the end. About 1e-5 is what
    float32 rounding makes of it; a mistake in positions, masks, cache or guidance rows makes 0.1 and more.

    Args:
        make: Makes the target.
        length: Positions per row, N, at least `window` + 2.
        cell: The shape of a token.

    Raises:
        ArgumentError: When logits are not numbers, or not there.
    """
    rng = np.random.default_rng(seed)
    steps, target = make(batch_size, window), make(batch_size, window)
    shape = (2, batch_size, length + window, *cell)
    tokens, junk = torch.from_numpy(rng.integers(0, steps.vocab_size, shape)).to(steps.device)
    with torch.inference_mode():
        single = [steps.prefill()]
        single += [steps.forward(tokens[:, n : n + 1], np.full(batch_size, n)) for n in range(length - 1)]
        expected = stack(single)
        worst = apart(target.prefill(), expected[:, :, :1])
        running, read = np.arange(batch_size), np.zeros(batch_size, dtype=np.int64)
        for turn in range(2 * length):
            at = np.maximum(read - rng.integers(0, window, len(read)), 0)
            places = at[:, None] + np.arange(window)
            target.forward(junk[running[:, None], places], at)  # drafts that are all rejected
            got = stack([target.forward(tokens[running[:, None], places], at)])
            row, slot = np.nonzero(places + 1 < length)
            wanted = expected[:, running[row], places[row, slot] + 1]
            worst = max(worst, distance(got[:, row, slot], wanted))
            read = np.minimum(at + window, length - 1)
            if turn == length and batch_size > 1:
                kept = [i for i in range(batch_size) if i != 1]
                target.select_rows(kept)
                running, read = running[kept], read[kept]
    return worst


def stack(logits: list[Logits]) -> Tensor:
    """Logits of windows next to each other, float32 [sides, B, W, V]."""
    sides = [[one.cond, one.uncond] if one.uncond is not None else [one.cond] for one in logits]
    return torch.stack([torch.cat(list(parts), dim=1).float() for parts in zip(*sides, strict=True)])


def apart(logits: Logits, expected: Tensor) -> float:
    """The largest difference between logits and `expected` [sides, B, W, V]."""
    got = stack([logits])
    if got.shape != expected.shape:
        raise ArgumentError(f"logits have shape {list(got.shape)}, they should have {list(expected.shape)}")
    return distance(got, expected)


def distance(got: Tensor, expected: Tensor) -> float:
    """The largest difference.

    Raises:
        ArgumentError: When there are NaNs.
    """
    if bool(got.isnan().any()):
        raise ArgumentError("logits are not numbers; a mask that hides everything from a token does that")
    # What a model forbids is -inf on both sides.
    difference = torch.where(got == expected, 0.0, (got - expected).abs())
    return float(difference.max()) if difference.numel() else 0.0


def check_samples(
    make: Make,
    layout: Layout,
    recipe: str | Recipe,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    samples: int = 20_000,
    seed: int = 0,
    batch: int = 5000,
) -> ExactnessResult:
    """Runs a recipe and measures its distance from the distribution of the target, which is enumerated token by token.

    For tiny models: V**N sequences are read, 4096 at most. Of 81 sequences, 20,000 samples have a noise floor of about
    0.02, and five standard deviations (0.01) above it are accepted; a bias of 0.04 in total variation is always found.

    Args:
        make: Makes the target; its prompts are all the same.
        layout: The sequence to be made.
        recipe: One that needs nothing but the target.
        samples: Rows decoded, `batch` at a time.
        seed: Of the first.

    Raises:
        ArgumentError: For more sequences than can be read.
    """
    recipe = parse(recipe)
    joint = joint_probs(make, layout, sampling)
    vocab_size = make(1, 1).vocab_size
    place = vocab_size ** torch.arange(layout.length - 1, -1, -1)
    counts, calls, tokens = torch.zeros(len(joint), dtype=torch.int64), 0.0, 0
    seeds = iter(range(seed, seed + samples))
    while some := list(islice(seeds, batch)):
        decoded = run(make(len(some), recipe.window), recipe, layout, [sampling] * len(some), some)
        counts += torch.bincount((decoded.tokens.cpu() * place).sum(1), minlength=len(joint))
        calls += decoded.stats.tokens / decoded.stats.tokens_per_call
        tokens += decoded.stats.tokens
    floor, spread = noise_floor(joint, samples)
    tv = float((counts / samples - joint).abs().sum() / 2)
    return ExactnessResult(tv, floor, floor + 5 * spread, samples, tokens / calls)


def joint_probs(make: Make, layout: Layout, sampling: SamplingParams) -> Tensor:
    """Probabilities float64 [V**N] of all sequences, numbered in base V, under plain decoding."""
    vocab_size = make(1, 1).vocab_size
    count = vocab_size**layout.length
    if count > MOST_SEQUENCES:
        raise ArgumentError(
            f"{vocab_size} tokens in {layout.length} positions make {count} sequences, of which {MOST_SEQUENCES} can "
            "be enumerated; take a smaller vocabulary or a shorter sequence"
        )
    target = make(count, 1)
    every = torch.cartesian_prod(*[torch.arange(vocab_size)] * layout.length).view(count, -1).to(target.device)
    sampler = TokenSampler([sampling] * count, layout.constraint, target.device)
    joint = torch.ones(count, dtype=torch.float64)
    ended = torch.zeros(count, dtype=torch.bool)
    ends = torch.tensor(sorted(layout.eos), dtype=torch.int64, device=target.device)
    with torch.inference_mode():
        logits = target.prefill()
        for n in range(layout.length):
            token = every[:, n : n + 1]
            p = sampler(logits, np.full((count, 1), n))[:, 0].gather(1, token)[:, 0].double().cpu()
            joint *= torch.where(ended, (token[:, 0].cpu() == layout.pad).double(), p)
            ended |= torch.isin(token[:, 0], ends).cpu()
            if n + 1 < layout.length:
                logits = target.forward(token, np.full(count, n))
    return joint / joint.sum()
