"""Counts the n-gram table that the recipe `table` drafts from, over the training data.

Command: python -m train_spoken.count_ngrams        (about 5 core-minutes, after train)

The counts are of the transformer's distributions along the training sentences, not of the recorded tokens: drafts are
tested with these distributions, and each of them carries as much information as many samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from train_spoken.config import RUNS
from train_spoken.prepare_data import load_encoded
from train_spoken.transformer import HELD_OUT, Example, collate, make_example

from mmspec.audio.spoken.checkpoint import load_module
from mmspec.audio.spoken.config import CODES, TEMPERATURE, WEIGHTS
from mmspec.audio.spoken.ngram_drafter import LEVELS, MAX_AGE, TextNGramTable, context_key, pack_tokens, script_keys
from mmspec.audio.spoken.text import alphabet
from mmspec.audio.spoken.transformer import STOP, SpokenTransformer
from mmspec.files import replacing

_TOP = 4  # tokens of each distribution that are counted
_GROUP, _GROUPS = 24, 600  # sentences per batch, all of similar length, and number of batches
_MIN_COUNT, _MIN_GAIN = 1.0, 0.4  # see `TextNGramTable.count`


def groups_of(examples: list[Example]) -> list[list[Example]]:
    """Random batches of sentences of similar length."""
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].tokens))
    groups = [order[first : first + _GROUP] for first in range(0, len(order), _GROUP)]
    return [[examples[i] for i in groups[k]] for k in np.random.default_rng(0).permutation(len(groups))[:_GROUPS]]


def context_keys(one: Example) -> NDArray[np.int64]:
    """The context keys of all tokens of a sentence, int64 [levels, T]; see `ngram_drafter.context_key`."""
    codes = one.tokens.numpy() % CODES
    before = [np.concatenate([np.full(k, CODES), codes])[: len(codes)].astype(np.uint64) for k in (1, 2, 3)]
    context = pack_tokens(one.age.numpy().clip(max=MAX_AGE).astype(np.uint64), *before)
    at = script_keys(one.features.numpy())[:, one.phone_at.numpy()]
    return np.stack([context_key(at[i], context & mask) for i, (_, mask) in enumerate(LEVELS)]).astype(np.int64)


@torch.inference_mode()
def top_probs(net: SpokenTransformer, group: list[Example]) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """The four most probable tokens at each position of each sentence and their probabilities, [T, 4] each."""
    tokens, features, age = collate(group)
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(tokens.clamp(min=0), features, age).float()
    result = []
    for one, scores in zip(group, logits, strict=True):
        scores = scores[: len(one.tokens)]
        last = one.phone_at == len(one.features) - 1
        scores[~last, STOP] = -torch.inf
        scores[last, CODES:STOP] = -torch.inf
        top = scores.topk(_TOP)
        result.append((top.indices.numpy(), (top.values / TEMPERATURE).softmax(-1).numpy()))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    args = parser.parse_args()
    examples = [make_example(row, alphabet()) for row in load_encoded(args.out)]
    net = load_module(SpokenTransformer, args.weights / "target")
    keys, tokens, weights = [], [], []
    for group in groups_of(examples[HELD_OUT:]):
        keys += [context_keys(one) for one in group]
        for top_tokens, p in top_probs(net, group):
            tokens.append(top_tokens)
            weights.append(p)
    table = TextNGramTable.count(
        np.concatenate(keys, axis=1), np.concatenate(tokens), np.concatenate(weights), _MIN_COUNT, _MIN_GAIN
    )
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
