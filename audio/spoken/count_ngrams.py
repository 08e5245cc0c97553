"""Count the table that the recipe `table` guesses from: what the trained transformer says over its training data.

Command: python -m mmspec.audio.spoken.count_ngrams        (about 5 core-minutes, after train)

The distributions of the transformer, not the tokens that were recorded, are counted: they are what a guess is tested with, and
each says as much as many draws.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from mmspec.audio.spoken.checkpoint import load
from mmspec.audio.spoken.config import CODES, RUNS, TEMPERATURE, WEIGHTS
from mmspec.audio.spoken.ngram_drafter import LEVELS, OLDEST, TextNGramTable, key, places, tell
from mmspec.audio.spoken.prepare_data import load_read
from mmspec.audio.spoken.text import alphabet
from mmspec.audio.spoken.train import HELD_OUT, Example, collate, example
from mmspec.audio.spoken.transformer import STOP, SpokenTransformer
from mmspec.files import replacing

_LIKELY = 4  # tokens of each distribution that are counted
_GROUP, _GROUPS = 24, 600  # sentences read together, all of like length; how many such groups
_LEAST, _GAIN = 1.0, 0.4  # see `TextNGramTable.count`


def groups_of(examples: list[Example]) -> list[list[Example]]:
    """Sentences to read, in random groups of like length."""
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].tokens))
    every = [order[first : first + _GROUP] for first in range(0, len(order), _GROUP)]
    return [[examples[i] for i in every[k]] for k in np.random.default_rng(0).permutation(len(every))[:_GROUPS]]


def contexts_of(one: Example) -> NDArray[np.int64]:
    """The key of every token of a sentence at every level, int64 [levels, T]; see `mmspec.audio.spoken.ngram_drafter.key`."""
    codes = one.tokens.numpy() % CODES
    before = [np.concatenate([np.full(k, CODES), codes])[: len(codes)].astype(np.uint64) for k in (1, 2, 3)]
    told = tell(one.age.numpy().clip(max=OLDEST).astype(np.uint64), *before)
    at = places(one.features.numpy())[:, one.phone_at.numpy()]
    return np.stack([key(at[i], told & mask) for i, (_, mask) in enumerate(LEVELS)]).astype(np.int64)


@torch.inference_mode()
def top_probs(net: SpokenTransformer, group: list[Example]) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """The likeliest tokens at each place of each sentence and their probabilities, [T, 4] each."""
    tokens, features, age = collate(group)
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(tokens.clamp(min=0), features, age).float()
    found = []
    for one, scores in zip(group, logits, strict=True):
        scores = scores[: len(one.tokens)]
        last = one.phone_at == len(one.features) - 1
        scores[~last, STOP] = -torch.inf
        scores[last, CODES:STOP] = -torch.inf
        top = scores.topk(_LIKELY)
        found.append((top.indices.numpy(), (top.values / TEMPERATURE).softmax(-1).numpy()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    args = parser.parse_args()
    examples = [example(row, alphabet()) for row in load_read(args.out)]
    net = load(SpokenTransformer, args.weights / "target")
    keys, tokens, weights = [], [], []
    for group in groups_of(examples[HELD_OUT:]):
        keys += [contexts_of(one) for one in group]
        for likely, p in top_probs(net, group):
            tokens.append(likely)
            weights.append(p)
    weighted = np.concatenate(tokens), np.concatenate(weights)
    table = TextNGramTable.count(np.concatenate(keys, axis=1), *weighted, _LEAST, _GAIN)
    folder = args.weights / "table"
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.safetensors") as partial:
        save_file(
            {
                "keys": torch.from_numpy(table.keys - 2**31).int(),
                "tokens": torch.from_numpy(np.asarray(table.tokens)).short(),
            },
            partial,
        )
    print(f"{len(table.keys)} contexts")


if __name__ == "__main__":
    main()
