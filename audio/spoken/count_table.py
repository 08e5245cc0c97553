"""Count the table that the recipe `table` guesses from.

Command: python -m mmspec.audio.spoken.count_table        (after prepare)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from mmspec.audio.spoken.config import CODES, RUNS, WEIGHTS
from mmspec.audio.spoken.guesses import LEVELS, OLDEST, TextTable, key, places
from mmspec.audio.spoken.prepare import load_read
from mmspec.audio.spoken.text import alphabet
from mmspec.audio.spoken.train import HELD_OUT, Example, example
from mmspec.files import replacing


def contexts_of(one: Example) -> np.ndarray:
    """What tells the context of every token of a sentence, uint64 [5, T]; see `mmspec.audio.spoken.guesses.key`."""
    codes = one.tokens.numpy() % CODES
    left, second = (np.concatenate([np.full(k, CODES), codes])[: len(codes)] for k in (1, 2))
    wide, full = places(one.features[one.phone_at].numpy())
    return np.stack([wide, full, one.age.numpy().clip(max=OLDEST), left, second]).astype(np.uint64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    args = parser.parse_args()
    examples = [example(row, alphabet()) for row in load_read(args.out)]
    known = examples[HELD_OUT:]
    tokens = np.concatenate([one.tokens.numpy() for one in known])
    context = np.concatenate([contexts_of(one) for one in known], axis=1)
    keys = np.stack([key(level, *context) for level in range(LEVELS)]).astype(np.int64)
    table = TextTable.count(keys, tokens)
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
    right = [
        [
            table.guess(*column) == token
            for column, token in zip(contexts_of(one).T.tolist(), one.tokens.tolist(), strict=True)
        ]
        for one in examples[:HELD_OUT]
    ]
    print(f"{len(table.keys)} contexts; {np.mean(np.concatenate(right)):.1%} of held-out tokens guessed")


if __name__ == "__main__":
    main()
