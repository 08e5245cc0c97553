"""Checks of an adapter: whether a target around a real model is what the loop expects.

`check_windows` compares windows with single tokens, `check_samples` the samples of a recipe with the target's own
distribution. Both use the target alone. A mistake that it makes in every call, such as a wrong head, only shows against
the model's own generation loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.assembly import NO_RESOURCES, PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.rows import select_rows
from mmspec.decoding.target import Target
from mmspec.decoding.to_end import Decoded, decode_to_end
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import ExactnessResult, compare_with_joint

# (rows, window) -> a target with that many rows of the same prompt, and room for windows of that many tokens at the
# last position.
MakeTarget = Callable[[int, int], Target]

MAX_SEQUENCES = 4096


def check_windows(
    make: MakeTarget, length: int, window: int = 4, batch_size: int = 3, seed: int = 0, cell: tuple[int, ...] = ()
) -> float:
    """The largest difference between logits of windows and logits of one token at a time.

    Windows overlap and start at a different position in each row. Before each of them a window of other tokens is read,
    as after drafts that were all rejected. Half-way one row is dropped; the last windows reach past the end. Rounding
    in float32 gives about 1e-5; a mistake in positions, masks, cache or guidance rows gives 0.1 and more.

    Args:
        make: Makes the target.
        length: Positions per row, N, at least `window` + 2.
        window: Tokens per window.
        batch_size: Rows.
        seed: Seed of the tokens and the windows.
        cell: Shape of a token; () for token ids.

    Raises:
        ArgumentError: If logits are NaN or have the wrong shape.
    """
    rng = np.random.default_rng(seed)
    steps, target = make(batch_size, window), make(batch_size, window)
    shape = (2, batch_size, length + window, *cell)
    tokens, rejected = torch.from_numpy(rng.integers(0, steps.vocab_size, shape)).to(steps.device)
    with torch.inference_mode():
        single = [steps.prefill()]
        single += [steps.forward(tokens[:, n : n + 1], np.full(batch_size, n)) for n in range(length - 1)]
        expected = stack_logits(single)
        largest = logits_difference(target.prefill(), expected[:, :, :1])
        running, read = np.arange(batch_size), np.zeros(batch_size, dtype=np.int64)
        for turn in range(2 * length):
            at = np.maximum(read - rng.integers(0, window, len(read)), 0)
            positions = at[:, None] + np.arange(window)
            target.forward(rejected[running[:, None], positions], at)
            logits = stack_logits([target.forward(tokens[running[:, None], positions], at)])
            row, slot = np.nonzero(positions + 1 < length)
            reference = expected[:, running[row], positions[row, slot] + 1]
            largest = max(largest, max_difference(logits[:, row, slot], reference))
            read = np.minimum(at + window, length - 1)
            if turn == length and batch_size > 1:
                kept = [i for i in range(batch_size) if i != 1]
                select_rows(target, kept, len(running))
                running, read = running[kept], read[kept]
    return largest


def stack_logits(windows: list[Logits]) -> Tensor:
    """Logits of successive windows as one tensor, float32 [S, B, W, V], with S = 2 under guidance, else 1."""
    sides = [[one.cond, one.uncond] if one.uncond is not None else [one.cond] for one in windows]
    return torch.stack([torch.cat(list(parts), dim=1).float() for parts in zip(*sides, strict=True)])


def logits_difference(logits: Logits, expected: Tensor) -> float:
    """The largest difference between logits and `expected` [S, B, W, V].

    Raises:
        ArgumentError: If the shapes differ, or if there are NaNs.
    """
    stacked = stack_logits([logits])
    if stacked.shape != expected.shape:
        raise ArgumentError(f"logits have shape {list(stacked.shape)}, expected {list(expected.shape)}")
    return max_difference(stacked, expected)


def max_difference(logits: Tensor, expected: Tensor) -> float:
    """The largest difference between two tensors of logits; equal infinities differ by 0.

    Raises:
        ArgumentError: If there are NaNs.
    """
    if bool(logits.isnan().any()):
        raise ArgumentError("logits are NaN; a mask that hides everything from a token causes that")
    # Tokens that the model forbids have -inf in both.
    difference = torch.where(logits == expected, 0.0, (logits - expected).abs())
    return float(difference.max()) if difference.numel() else 0.0


def check_samples(
    make: MakeTarget,
    layout: Layout,
    recipe: str | Recipe,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    samples: int = 20_000,
    seed: int = 0,
    batch: int = 5000,
) -> ExactnessResult:
    """Runs a recipe and measures its distance from the target distribution, enumerated one token at a time.

    For tiny models: the target reads all V**N sequences, at most 4096. With 81 sequences, 20,000 samples have a noise
    floor of about 0.02, and 0.013 above it are accepted; a bias of 0.04 in total variation is
    always found.

    Args:
        make: Makes the target; all its rows have the same prompt.
        layout: Layout of the sequences.
        recipe: A recipe that needs nothing but the target.
        sampling: Sampling parameters of every row.
        samples: Number of rows.
        seed: Seed of the first row.
        batch: Rows decoded at a time.

    Raises:
        ArgumentError: If there are more sequences than can be enumerated.
    """
    recipe = parse(recipe)
    vocab_size = make(1, 1).vocab_size

    def decode(seeds: Sequence[int]) -> Decoded:
        rows = PreparedRows(make(len(seeds), recipe.window), layout, [sampling] * len(seeds), NO_RESOURCES)
        return decode_to_end(rows.batch(recipe, seeds))

    place = vocab_size ** torch.arange(layout.length - 1, -1, -1)
    joint = joint_probs(make, layout, sampling)
    seeds = range(seed, seed + samples)
    return compare_with_joint(joint, decode, lambda tokens: (tokens * place).sum(1), seeds, batch)


def joint_probs(make: MakeTarget, layout: Layout, sampling: SamplingParams) -> Tensor:
    """Probabilities float64 [V**N] of all sequences under plain decoding, numbered in base V.

    Raises:
        ArgumentError: If there are more than `MAX_SEQUENCES`.
    """
    vocab_size = make(1, 1).vocab_size
    count = vocab_size**layout.length
    if count > MAX_SEQUENCES:
        raise ArgumentError(
            f"{vocab_size} tokens in {layout.length} positions make {count} sequences, of which {MAX_SEQUENCES} can "
            "be enumerated; take a smaller vocabulary or a shorter sequence"
        )
    target = make(count, 1)
    sequences = torch.cartesian_prod(*[torch.arange(vocab_size)] * layout.length).view(count, -1).to(target.device)
    sampler = TokenSampler([sampling] * count, layout.constraint, target.device)
    joint = torch.ones(count, dtype=torch.float64)
    ended = torch.zeros(count, dtype=torch.bool)
    ends = torch.tensor(sorted(layout.eos), dtype=torch.int64, device=target.device)
    with torch.inference_mode():
        logits = target.prefill()
        for n in range(layout.length):
            token = sequences[:, n : n + 1]
            p = dense(sampler(logits, Numbers(np.full((count, 1), n))))[:, 0].gather(1, token)[:, 0].double().cpu()
            joint *= torch.where(ended, (token[:, 0].cpu() == layout.pad).double(), p)
            ended |= torch.isin(token[:, 0], ends).cpu()
            if n + 1 < layout.length:
                logits = target.forward(token, np.full(count, n))
    return joint / joint.sum()
