"""Block heads: what a pass reads, in decoding as in training, and their checkpoints; `test_grid` checks exactness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.errors import ArgumentError
from mmspec.heads.checkpoint import load_head
from mmspec.methods.block.drafter import BlockRunner
from mmspec.methods.block.head import BlockHead
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import sample
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import check
from mmspec.testing.toys import ToyTarget
from mmspec.training.objectives import teacher_features
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.target import LlamaGenTarget

V, SIDE, SLOTS = 12, 4, 3
GRID = Layout(length=4, width=2)


def tiny() -> LlamaGenGPT:
    gpt = LlamaGenGPT(V, 32, 3, 2, 64, model_type="t2i", cls_token_num=SLOTS, caption_dim=7, grid_size=SIDE).eval()
    generator = torch.Generator().manual_seed(0)
    for p in gpt.parameters():
        if p.ndim > 1:
            p.data = torch.randn(p.shape, generator=generator) * 0.4
    return gpt


def tiny_target(gpt: LlamaGenGPT) -> LlamaGenTarget:
    condition = torch.randn(1, SLOTS, 7, generator=torch.Generator().manual_seed(1))
    return LlamaGenTarget(gpt, condition, gpt.unconditional(1), None, slack=16)


def tiny_head(**changes: Any) -> BlockHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        arguments: dict[str, Any] = {
            "layer_ids": (0, 2, 3),
            "block_size": 4,
            "num_key_value_heads": 1,
            "markov_rank": 3,
        }
        head = BlockHead(V, 32, 48, 2, **arguments | changes)
        for p in head.parameters():
            torch.nn.init.normal_(p, std=0.3)
    return head.eval()


class RecordingRunner(BlockRunner):
    """Records each distribution with the sequence before it, the length of the committed part, and what was known."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.recorded: list[tuple[Tensor, int, int, int, Tensor]] = []

    def reveal(self, tokens: Tensor, reused: Any) -> None:
        super().reveal(tokens, reused)
        self.count, self.known = tokens.shape[1], int(reused.host[0])

    def root(self, state: Any) -> Tensor:
        q = dense(super().root(state))
        self.sequence = state.at(np.arange(state.length[0])[None])[0]
        self._keep(self.sequence, int(state.length[0]), q[0, 0])
        return q

    def nodes(self, state: Any, tokens: Tensor, tree: Any, first: int) -> Tensor:
        q = dense(super().nodes(state, tokens, tree, first))
        for i in range(tokens.shape[1]):
            self.sequence = torch.cat([self.sequence, tokens[0, i : i + 1]])
            self._keep(self.sequence, int(state.length[0]), q[0, i])
        return q

    def _keep(self, sequence: Tensor, committed: int, q: Tensor) -> None:
        if len(sequence) - committed >= self.known:
            self.recorded.append((sequence, committed, self.known, self.count, q))


@pytest.mark.parametrize("recipe", ["block:window=4", "block:window=7", "scd:window=6,start=block"])
@pytest.mark.parametrize(
    "changes",
    [
        {"grid_size": SIDE, "sample_from_anchor": True, "markov_head_type": "rnn"},
        {"sample_from_anchor": False, "markov_head_type": "gated", "layer_ids": ()},
        {"sample_from_anchor": True, "sliding_layers": [1], "sliding_window": 3},
    ],
    ids=["grid, rnn", "row, gated", "sliding"],
)
@torch.no_grad()
def test_a_block_reads_the_features_before_its_anchor(
    recipe: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distributions of the cached runner equal those of one block over features that are computed afresh."""
    gpt, head, sampling = tiny(), tiny_head(**changes), SamplingParams(temperature=0.9, guidance_scale=1.5)
    runners: list[RecordingRunner] = []

    def new_runner(*arguments: Any) -> RecordingRunner:
        runners.append(RecordingRunner(*arguments))
        return runners[0]

    monkeypatch.setattr("mmspec.methods.block.drafter.BlockRunner", new_runner)
    run(tiny_target(gpt), parse(recipe), Layout(SIDE**2, SIDE), [sampling], [7], DraftResources(heads={"block": head}))
    sampler = TokenSampler([sampling], None, gpt.device)
    assert len(runners[0].recorded) > 3
    for sequence, committed, known, count, q in runners[0].recorded:
        if len(sequence) >= SIDE**2:
            continue
        features = teacher_features(tiny_target(gpt), sequence[None, :committed], head.layer_ids)
        features = features[..., 32:] if head.layer_ids else features
        slots = torch.arange(committed).expand(2, -1)
        width = max(count, head.count) + (not head.sample_from_anchor)
        block = torch.full((width,), head.mask_token_id)
        block[: known + 1] = sequence[committed - 1 : committed + known]
        hidden = head(
            block.repeat(2, 1, 1),
            (committed + torch.arange(width)).repeat(2, 1, 1),
            head.context(features, slots),
            torch.ones(2, 1, committed, dtype=torch.bool),
        )[:, 0, int(not head.sample_from_anchor) :]
        assert head.markov_head is not None
        state = torch.zeros(2, head.markov_head.rank)
        for d in range(len(sequence) - committed + 1):
            token = sequence[committed - 1 + d].repeat(2)
            bias, state = head.markov_head(token, hidden[:, d], state)
        logits = gpt.output(hidden[:, d]) + bias
        expected = sampler.probs(Logits(logits[:1, None], logits[1:, None]), np.array([[len(sequence)]]))[0, 0]
        assert (expected - q).abs().max() < 1e-4


def test_a_distribution_without_the_sequential_head_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin whose drafts depend on the draft before, but whose q is that of the pass alone, is not exact."""
    correct, sampled = BlockRunner._corrected, list[Tensor]()

    def alone(self: BlockRunner, tokens: Tensor, *entries: Any) -> Logits:
        before = self._states
        sampled[:] = [(correct(self, tokens, *entries).cond / 1.6).softmax(-1)]
        after, self._states = self._states, before
        logits = correct(self, torch.zeros_like(tokens), *entries)
        self._states = after
        return logits

    monkeypatch.setattr(BlockRunner, "_corrected", alone)
    monkeypatch.setattr(TorchOps, "sample_draft", staticmethod(lambda q, u: sample(sampled[0], u)))
    result = check("block:window=4", SamplingParams(temperature=1.6), samples=20_000, layout=GRID, seed=3)
    assert not result.ok, result


def test_a_head_of_several_layers_needs_a_target_with_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyTarget, "collect_layers", None)
    head = BlockHead(3, 16, 24, 2, layer_ids=(1, 2))
    with pytest.raises(ArgumentError, match=r"the drafter reads layers \[1, 2\], and ToyTarget provides"):
        run(
            ToyTarget(1, 3, 4, 0), parse("block"), Layout(4), [SamplingParams()], [0],
            DraftResources(heads={"block": head}),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 1}, "block_size=1 is not allowed"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 must divide num_attention_heads=2"),
        ({"markov_head_type": "lstm"}, "markov_head_type='lstm' is not allowed"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 is not allowed"),
    ],
)
def test_impossible_heads_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tiny_head(**changes)


def test_a_saved_head_is_loaded_unchanged(tmp_path: Path) -> None:
    head = tiny_head(markov_head_type="gated", grid_size=SIDE)
    head.save_pretrained(tmp_path)
    loaded = load_head(tmp_path)
    assert isinstance(loaded, BlockHead) and loaded.layer_ids == (0, 2, 3) and loaded.count == 3
    for name, value in head.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
