"""Draft heads of speech models: their training data, and how a pipeline takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.audio.spoken.transformer import STOP
from mmspec.errors import ArgumentError, ModelError
from mmspec.methods.block.head import BlockHead
from mmspec.training.settings import TrainingSettings
from mmspec.training.trainer import Trainer

TEXTS = ("call emma", "turn on the light", "seven")


@pytest.fixture(scope="module", params=["block", "eagle3"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of the voice after one step, on sentences of different lengths."""
    folder = tmp_path_factory.mktemp("drafter")
    kind = request.param
    settings = TrainingSettings(kind, "kl", TEXTS[:2], TEXTS[2:], 2, 1, 2, 1e-3, 4, 32, 0, layers=1, markov_rank=4)
    trainer = Trainer(mmspec.load("spoken"), settings, folder)
    sequences = trainer.collect()
    ends = sequences.tokens == STOP
    assert ends.any(1).all() and not ends[:, :3].any() and ends[:, -1].all()
    trainer.train(sequences, 10, 10)
    return folder


def test_a_head_of_the_voice_drafts(trained: Path) -> None:
    """It reads layers of the transformer and the next phones of the script; greedy speech stays the same."""
    pipe = mmspec.load("spoken", drafter=trained)
    ((kind, head),) = pipe.adapter.heads.items()
    assert head.layer_ids == (1, 3, 5, 6, 7, 8)
    plain = pipe(list(TEXTS), recipe="plain", temperature=0, seed=0)
    for recipe in (f"{kind}:window=4", f"scd:window=6,start={kind}", f"tree-{kind}:branch=2/1"):
        out = pipe(list(TEXTS), recipe=recipe, temperature=0, seed=0)
        assert out.stats.draft_calls > 0
        for one, other in zip(out, plain, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one.tokens, other.tokens, strict=True))


def test_heads_of_other_models_are_refused(tmp_path: Path) -> None:
    pipe = mmspec.load("spoken")
    BlockHead(pipe.adapter.net.vocab_size + 1, 192, 32, 2).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="drafter is for another model"):
        pipe.add_drafter(tmp_path)
    with pytest.raises(ArgumentError, match="cannot train a small speech model"):
        pipe.new_small()
