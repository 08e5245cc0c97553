"""Draft heads with a sliding window: twins of its mask, and rows of different lengths; goldens are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import toy_pipe
from batch_runs import run
from engine_rows import from_engine
from golden_heads import block_difference, block_head, eagle3_differences, eagle3_head, folder_of, recorded
from torch import Tensor

import mmspec.methods.block.head
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.drafters.eagle import EagleRunner
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.methods.block.head import BlockHead
from mmspec.recipes import parse
from mmspec.sampling.logits import split_cfg
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.toys import FEATURES, toy_resources
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.target import LlamaGenTarget

SIDE, V, IDS = 4, 12, (0, 1, 3)
SAMPLING = SamplingParams(temperature=0.9, guidance_scale=1.5)
Draft = tuple[int, list[int], int, Tensor]
"""The row, the tokens before the draft, how many of them are drafts, and its distribution."""


def wider(head: Any) -> None:
    head.sliding_window += 1


def narrower(head: Any) -> None:
    head.sliding_window -= 1


def full_eagle3(head: Any) -> None:
    head.sliding_window = None


def full(head: Any) -> None:
    head.sliding_layers = frozenset()


def everywhere(head: Any) -> None:
    head.sliding_layers = frozenset(range(len(head.layers)))


def other_direction(head: Any) -> None:
    head.sliding_window_non_causal ^= True


@pytest.mark.parametrize("twin", [wider, narrower, full_eagle3])
@pytest.mark.parametrize("case", ["eagle3_default", "eagle3_sliding"])
def test_another_mask_of_an_eagle3_head_is_found(case: str, twin: Callable[[Any], None]) -> None:
    head, wanted = eagle3_head(folder_of(case)), recorded(folder_of(case))
    twin(head)
    assert min(eagle3_differences(head, wanted)) > 5e-3


@pytest.mark.parametrize(
    ("case", "twin"),
    [
        *(
            (case, twin)
            for case in ("dflash_default", "dflash_sliding", "dflash_non_causal", "dspark_default", "dspark_sliding")
            for twin in (wider, narrower, full, other_direction)
        ),
        ("dflash_sliding", everywhere),
    ],
)
def test_another_mask_of_a_block_head_is_found(case: str, twin: Callable[[Any], None]) -> None:
    wanted = recorded(folder_of(case))
    head = block_head(folder_of(case), wanted["embed_tokens"])
    twin(head)
    assert block_difference(head, wanted) > 5e-3


def tiny() -> tuple[LlamaGenGPT, Tensor]:
    """A model and the prompts of three rows."""
    torch.manual_seed(0)
    gpt = LlamaGenGPT(V, 32, 3, 2, 64, model_type="t2i", cls_token_num=3, caption_dim=7, grid_size=SIDE).eval()
    for p in gpt.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=0.3)
    return gpt, torch.randn(3, 3, 7)


def drafts_of(
    recipe: str, head: Eagle3Head, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, list[int], int, Tensor]]:
    """The row, the tokens before a draft, how many of them are drafts, and its distribution, of all drafts of a run."""
    found: list[tuple[int, list[int], int, Tensor]] = []
    entries: list[list[list[int]]] = []  # by row, the tokens up to each entry of the tree
    root, nodes = EagleRunner.root, EagleRunner.nodes

    def recorded_root(self: EagleRunner, state: Any) -> Tensor:
        q = dense(root(self, state))
        entries[:] = [[state.at(np.arange(n)[None].repeat(len(q), 0))[i].tolist()] for i, n in enumerate(state.length)]
        found.extend((int(row), entries[i][0], 0, q[i, 0]) for i, row in enumerate(state.ids))
        return q

    def recorded_nodes(self: EagleRunner, state: Any, tokens: Tensor, tree: Any, first: int) -> Tensor:
        q = dense(nodes(self, state, tokens, tree, first))
        for i, row in enumerate(state.ids):
            del entries[i][first:]
            for j in range(tokens.shape[1]):
                parent = int(tree.parents[i % len(tree.parents), first + j - 1])
                entries[i].append([*entries[i][parent], int(tokens[i, j])])
                drafted = len(entries[i][-1]) - len(entries[i][0])
                found.append((int(row), entries[i][-1], drafted, q[i, j]))
        return q

    monkeypatch.setattr(EagleRunner, "root", recorded_root)
    monkeypatch.setattr(EagleRunner, "nodes", recorded_nodes)
    gpt, prompts = tiny()
    target = LlamaGenTarget(gpt, prompts, gpt.unconditional(3), None, slack=16)
    resources = DraftResources(heads={"eagle": head})
    run(target, parse(recipe), Layout(SIDE**2, SIDE), [SAMPLING] * 3, [7, 8, 9], resources)
    return found


def differences(recipe: str, window: int | None, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The differences of drafts that a run makes from those of `Eagle3Head.unroll`, by depth."""
    gpt, prompts = tiny()
    head = Eagle3Head(V, 32, 48, 4, 2, layer_ids=IDS, grid_size=SIDE, sliding_window=window)
    for p in head.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=0.4)
    drafts = drafts_of(recipe, head, monkeypatch)
    assert len({len(tokens) - drafted for row, tokens, drafted, _ in drafts}) > 5
    sampler, found = TokenSampler([SAMPLING], None, gpt.device), [0.0] * 4
    for row, tokens, drafted, q in drafts:
        if len(tokens) >= SIDE**2:
            continue
        fresh = LlamaGenTarget(gpt, prompts[row : row + 1], gpt.unconditional(1), None, slack=16)
        fresh.collect_layers(IDS)
        fresh.prefill()
        hidden = fresh.layer_features()[:, -1:]
        if len(tokens) > 1:  # of drafts the target's states are computed too, but not read
            fresh.forward(torch.tensor([tokens[:-1]]), np.zeros(1, dtype=np.int64))
            hidden = torch.cat([hidden, fresh.layer_features()], dim=1)
        outputs = head.unroll(torch.tensor([tokens] * 2), hidden, drafted + 1)[drafted][:, -1:]
        wanted = sampler.probs(split_cfg(head.logits(outputs), True), np.array([[len(tokens)]]))[0, 0]
        found[drafted] = max(found[drafted], float((wanted - q).abs().max()))
    return found


EAGLES = ["eagle:window=4", "tree-eagle:branch=2/2/1", "eagle-2:window=6,depth=3,top=2"]


@pytest.mark.parametrize("recipe", EAGLES)
@pytest.mark.parametrize("window", [1, 3])
@torch.no_grad()
def test_drafts_in_a_batch_read_the_window_of_their_own_root(
    recipe: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows have different lengths; drafts read each other, and the window does not move with their depth."""
    assert max(differences(recipe, window, monkeypatch)) < 1e-5


@torch.no_grad()
def test_a_window_that_moves_with_the_drafts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bias = mmspec.drafters.eagle.bias_of_window

    def moving(starts: Any, shift: int, *others: Any) -> Tensor | None:
        return bias(starts, shift, *others[:-1], 3)

    monkeypatch.setattr("mmspec.drafters.eagle.bias_of_window", moving)
    root, *deeper = differences(EAGLES[0], 3, monkeypatch)
    assert root < 1e-5 and min(deeper[:2]) > 1e-3


def sliding_heads(*arguments: Any) -> DraftResources:
    """As `toy_resources`, with heads that see two slots."""
    found = toy_resources(*arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        eagle = Eagle3Head(toy_pipe.V, FEATURES, 24, 4, 2, layer_ids=(1, 2, 4), prefix=1, sliding_window=2)
        block = BlockHead(toy_pipe.V, FEATURES, 24, 2, block_size=4, prefix=1, sliding_layers=[1], sliding_window=2)
        for p in (*eagle.parameters(), *block.parameters()):
            torch.nn.init.normal_(p, std=0.5)
    return DraftResources(**vars(found) | {"heads": {**found.heads, "eagle": eagle, "block": block}})


@pytest.mark.parametrize(
    "recipe", ["eagle:window=3", "tree-eagle:branch=2/2", "block:window=4", "scd:window=3,start=block"]
)
def test_rows_that_join_and_leave_get_the_tokens_that_they_get_alone(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_pipe, "toy_resources", sliding_heads)
    pipe = toy_pipe.ToyPipe(ends=True)
    prompts = [f"prompt {i}" for i in range(9)]
    found = from_engine(pipe, prompts, 0, recipe, rows=3)
    assert [found[prompt] for prompt in prompts] == [pipe.alone(recipe, seed, toy_pipe.N) for seed in range(9)]
