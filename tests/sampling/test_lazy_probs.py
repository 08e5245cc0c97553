"""Decoding with and without the kernels gives the same tokens for the same seeds."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from torch import Tensor

from mmspec.codebook import Codebook
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.drafters import restarts
from mmspec.drafters.token_init import repeat_left
from mmspec.errors import ModelError
from mmspec.methods.prompt.head import PromptTokens
from mmspec.methods.stand.drafter import StandDrafter
from mmspec.recipes import parse
from mmspec.sampling.constraints import Constraint, ForcedCells
from mmspec.sampling.logits import Logits
from mmspec.sampling.multi_codebook import entries
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Draft, ratio, sample
from mmspec.sampling.rng import DRAFT, CounterRNG, WindowRNG
from mmspec.sampling.sampler import ColumnSampler, TokenSampler, ops_on

pytest.importorskip("triton")

from mmspec.kernels.fused_sampler import Settings
from mmspec.sampling.kernel_ops import KERNELS
from mmspec.sampling.lazy_probs import LazyProbs

VOCAB, LENGTH = 21, 5


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    return torch.device(request.param)


class Bigram:
    """A target whose logits depend on the last token alone, with unconditional logits; prompts are one token.

    Another `seed` makes another model, such as a draft model.
    """

    vocab_size = VOCAB

    def __init__(self, batch_size: int, device: torch.device, seed: int = 3) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.device = device
        self.cond, self.uncond = (torch.randn(2, VOCAB, VOCAB, generator=generator) * 1.5).to(device)
        self.rows = batch_size

    def prefill(self) -> Logits:
        return self.forward(torch.zeros(self.rows, 1, dtype=torch.int64, device=self.device), np.zeros(self.rows))

    def forward(self, tokens: Tensor, at: Any) -> Logits:
        return Logits(self.cond[tokens], self.uncond[tokens])

    def read_prompts(self, embeddings: Tensor) -> None:
        """Prompt token i is read as token i."""

    def forward_tree(self, tokens: Tensor, at: Any, tree: Any, first: int = 0) -> Logits:
        return self.forward(tokens % VOCAB, at)

    def settle(self, at: Any, path: Any) -> None:
        """This target has no cache."""

    def select_rows(self, row_ids: list[int]) -> None:
        self.rows = len(row_ids)


class ColumnBigram(Bigram):
    """The same for columns of two cells; each cell depends on the last cell of its codebook."""

    def prefill(self) -> Logits:
        return self.forward(torch.zeros(self.rows, 1, 2, dtype=torch.int64, device=self.device), np.zeros(self.rows))


def resources(device: torch.device) -> DraftResources:
    """A draft model, and a codebook for rules that need one."""
    vectors = torch.rand(VOCAB, 3, generator=torch.Generator().manual_seed(0)).to(device)
    return DraftResources(
        draft_model=lambda: Bigram(2, device, seed=4),
        draft_sampling=[SamplingParams(0.9, top_p=0.9), SamplingParams()],
        codebook=lambda: Codebook(vectors),
        heads={"prompt": PromptTokens(VOCAB, 2, 2)},
    )


SAMPLINGS = [SamplingParams(0.8, guidance_scale=2.0, top_k=12, guidance_end=3), SamplingParams(0.0, guidance_scale=1.5)]
TRUNCATED = [SamplingParams(0.8, guidance_scale=2.0, min_p=0.1), SamplingParams(1.2, typical_p=0.7)]


def decoded(
    recipe: str, device: torch.device, kernels: str, monkeypatch: pytest.MonkeyPatch,
    samplings: list[SamplingParams] = SAMPLINGS,
) -> Any:  # fmt: skip
    monkeypatch.setenv("MMSPEC_KERNELS", kernels)
    allowed = torch.ones(2, VOCAB, dtype=torch.bool, device=device)
    allowed[1, ::2] = False
    kinds = torch.tensor([0, 0, 1, 0, 0], device=device)
    layout = Layout(LENGTH, 4, Constraint(kinds, allowed))
    return run(Bigram(2, device), parse(recipe), layout, samplings, [5, 6], resources(device))


SLOW = [
    "scd:window=3,coupling=gumbel", "draft:window=3", "beta:window=3,beta=0.4", "ensemble:window=3,draft=0.4",
    "omega:window=3", "lantern:window=3,delta=0.3,k=5", "lantern++:window=3,k=4", "draft+gsd:window=3,group=4",
    "gsd:window=3,group=5,distance=0.3", "recycle+typical:window=3", "tree-chains:branch=2/1",
    "tree-dynamic:window=4,depth=2,top=2", "tree-sampled:window=4,depth=2", "tree+lantern:branch=2/1,delta=0.3,k=5",
    "draft+clusters:window=3,size=3", "spectr:drafts=2,length=2",
]  # fmt: skip


@pytest.mark.parametrize(
    "recipe",
    [
        "plain",
        "sjd:window=3,start=left",
        "scd:window=3,start=up",
        "draft+lantern:window=3,delta=0.3,k=5",
        "tree:branch=2/1",
        "prompt:branch=2/1",
        *[pytest.param(name, marks=pytest.mark.slow) for name in SLOW],
    ],
)
def test_the_same_tokens_with_and_without(recipe: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (decoded(recipe, device, kernels, monkeypatch) for kernels in ("triton", "torch"))
    assert torch.equal(ours.tokens, theirs.tokens)
    assert ours.stats.target_calls == theirs.stats.target_calls and ours.stats.acceptance == theirs.stats.acceptance
    assert ours.stats.tv_bound == pytest.approx(theirs.stats.tv_bound, abs=1e-5)


@pytest.mark.parametrize("recipe", ["draft:window=3", "stand:window=3", "prompt:branch=2/1"])
def test_the_same_tokens_with_min_p_and_typical_p(
    recipe: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no kernel, but drafts have."""
    ours, theirs = (decoded(recipe, device, kernels, monkeypatch, TRUNCATED) for kernels in ("triton", "torch"))
    assert torch.equal(ours.tokens, theirs.tokens) and ours.stats.acceptance == theirs.stats.acceptance


def test_a_stored_distribution_is_the_q_of_its_draft_behind_reused_ones() -> None:
    """The q of reused drafts has been read by a kernel, and assigning to such distributions would change nothing."""
    window = Logits(torch.randn(1, 3, VOCAB), None)
    p = LazyProbs.of(window, Settings(torch.ones(1, 3), torch.ones(1), None, None, None, None))
    state = BatchState([0], Layout(8), 3, p.device)
    state.commit(torch.tensor([[1, 2]]), np.array([1]))
    drafter = StandDrafter(1, VOCAB, repeat_left, p.device)
    draws = state.window(3, np.zeros((1, 1), dtype=np.int64))
    # All pairs of neighbors have the same stored distribution.
    drafter._probs[..., :2], drafter._tokens[..., 0], drafter._tokens[..., 1] = 0.5, 3, 4
    draft = Draft(torch.tensor([[5, 0]]), p[:, :2])
    drafted = drafter.extend(state, draft, Numbers(np.array([1])), draws)
    assert int(drafted.tokens[0, 1]) in (3, 4)
    assert ratio(torch.ones(1, 2, VOCAB), dense(drafted.q), drafted.tokens)[0, 1] == 2


@pytest.mark.parametrize(
    "recipe",
    [
        "scd:window=3",
        "draft:window=3",
        *[pytest.param(name, marks=pytest.mark.slow) for name in ("plain", "sjd:window=3", "beta:window=3")],
    ],
)
def test_the_same_columns_with_and_without(recipe: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    forced = np.full((4, 2), -1)
    forced[0, 1], forced[2, 0] = VOCAB + 3, 2  # one of them outside the vocabulary
    layout = Layout(4, cell=(2,), forced=ForcedCells(forced))
    target, drafts = ColumnBigram(2, device), DraftResources(draft_model=lambda: ColumnBigram(2, device, seed=4))
    forward = Bigram.forward
    monkeypatch.setattr(Bigram, "forward", lambda model, tokens, at: forward(model, entries(tokens, VOCAB), at))
    found = []
    for kernels in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        found.append(
            run(
                target,
                parse(recipe),
                layout,
                [SamplingParams(0.8, guidance_scale=2.0), SamplingParams(0.7)],
                [5, 6],
                drafts,
            )
        )
    ours, theirs = found
    assert torch.equal(ours.tokens, theirs.tokens) and (ours.tokens[:, 0, 1] == VOCAB + 3).all()
    assert ours.stats.target_calls == theirs.stats.target_calls and ours.stats.acceptance == theirs.stats.acceptance


def column_window(
    kernels: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> tuple[Probs, Draft, WindowRNG, ColumnSampler]:
    """The distributions of a window of 4 columns of 2 cells in 3 rows, and drafts from others."""
    monkeypatch.setenv("MMSPEC_KERNELS", kernels)
    generator, positions = torch.Generator().manual_seed(1), np.arange(4) + np.array([[5], [9], [0]])
    cond, uncond = torch.randn(2, 3, 4, 2, VOCAB, generator=generator).to(device)
    sampler = ColumnSampler([SamplingParams(0.8, guidance_scale=1.5)] * 3, None, device)
    p = sampler(Logits(cond, uncond), Numbers(positions))
    q = (cond[:, :3] + 0.8 * torch.randn(3, 3, 2, VOCAB, generator=generator).to(device)).softmax(-1)
    draft = Draft(sample(q, torch.rand(3, 3, 2, generator=generator).to(device)), q)
    return p, draft, CounterRNG([1, 2, 3], device).window(positions, 4), sampler


def test_coupled_columns_are_the_core_s(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slot is tested as if it were the first; the last one has no draft."""
    found = []
    for kernels in ("triton", "torch"):
        p, draft, rng, _ = column_window(kernels, device, monkeypatch)
        found.append(ops_on(device).couple_columns(p, draft, rng))
    kept = (found[1][:, :3] == draft.tokens).all(-1)
    assert torch.equal(*found) and kept.any() and not kept.all(), "a weak test"


@pytest.mark.parametrize("broken", ["p", "q"])
def test_columns_without_a_distribution_are_found(
    broken: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft's distribution is checked where it is verified; one after the next column where slots are coupled."""
    p, draft, rng, sampler = column_window("triton", device, monkeypatch)
    logits = torch.zeros(3, 4, 2, VOCAB, device=device)
    logits[:, 1:] = torch.nan
    invalid = sampler(Logits(logits, None), rng.positions)
    if broken == "q":
        drafts = sampler.sample(invalid, rng, DRAFT)[:, 1:]
        assert (drafts >= 0).all(), "a model reads them"
        with pytest.raises(ModelError, match="NaN"):
            sampler.verify(p, Draft(drafts, invalid[:, slice(1, None)]), ratio, rng)
        return
    draft.tokens[:] = 0
    dense(draft.q)[:] = torch.eye(VOCAB, device=device)[0]  # rejected
    verdict = sampler.verify(invalid, draft, ratio, rng)
    with pytest.raises(ModelError, match="NaN"):
        KERNELS.couple_columns(verdict.p, verdict.draft, rng)


def test_nothing_of_a_window_is_written_out(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def dense(self: LazyProbs) -> Tensor:
        raise AssertionError("a distribution was written out")

    own = LazyProbs.dense
    monkeypatch.setattr(restarts, "dense", lambda p: own(p) if isinstance(p, LazyProbs) else p)  # on a CPU alone
    monkeypatch.setattr(LazyProbs, "dense", dense)
    for recipe in ("plain", "lantern:window=3,start=left,k=3", "draft+pcg:window=3", "typical:window=3,start=left"):
        decoded(recipe, device, "triton", monkeypatch)


def test_lazy_probs_are_written_out_for_all_other_code(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    cond, positions = torch.randn(2, 3, VOCAB, device=device), np.zeros((2, 3), dtype=np.int64)
    params = [SamplingParams(0.7), SamplingParams(top_k=3)]
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    wanted = TokenSampler(params, None, device)(Logits(cond, None), Numbers(positions))
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    p = TokenSampler(params, None, device)(Logits(cond, None), Numbers(positions))
    assert isinstance(p, LazyProbs) and p.shape == wanted.shape and len(p) == 2 and p.device == cond.device
    written = dense(wanted)
    assert torch.allclose(dense(p), written, atol=1e-6) and torch.allclose(dense(p[:, 1:]), written[:, 1:], atol=1e-6)
    with pytest.raises(TypeError):
        p[:, 0] = 0.0  # type: ignore[index]
    with pytest.raises(TypeError):
        torch.mul(p, 0)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        p[1, 0]


@pytest.mark.parametrize(("bad", "temperature"), [(torch.nan, 1.0), (-torch.inf, 0.0)], ids=["sampled", "greedy"])
def test_logits_without_a_valid_distribution_are_an_error(
    bad: float, temperature: float, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Bigram(2, device)
    target.cond[:] = bad
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    for recipe in ("plain", "tree:branch=2"):
        with pytest.raises(ModelError, match="not numbers"):
            run(target, parse(recipe), Layout(LENGTH, 4), [SamplingParams(temperature)] * 2, [5, 6], resources(device))
    target.cond[0] = torch.arange(VOCAB)  # the first token is the last of the vocabulary; all later logits are invalid
    with pytest.raises(ModelError, match="not numbers"):
        run(
            target, parse("draft:window=3"), Layout(LENGTH, 4), [SamplingParams(temperature, top_k=1)] * 2, [5, 6],
            resources(device),
        )  # fmt: skip


def test_a_draft_model_without_a_valid_distribution_is_an_error(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drafts are checked with the verification, which waits for the device anyway."""
    broken = Bigram(2, device)
    broken.cond = torch.full_like(broken.cond, torch.nan)
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    provided = replace(resources(device), draft_model=lambda: broken)
    with pytest.raises(ModelError, match="not numbers"):
        run(Bigram(2, device), parse("draft:window=3"), Layout(LENGTH, 4), [SamplingParams()] * 2, [5, 6], provided)


def test_probabilities_in_training_have_gradients(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    hidden = torch.randn(2, 3, VOCAB, generator=torch.Generator().manual_seed(0)).to(device)
    weight = torch.eye(VOCAB, device=device, requires_grad=True)
    sampler, positions = TokenSampler([SamplingParams(top_k=5)] * 2, None, device), np.tile(np.arange(3), (2, 1))
    q = sampler.probs(Logits(hidden @ weight, None), positions)
    q.clamp(min=1e-9).log().sum().backward()
    assert weight.grad is not None
    assert float(weight.grad.abs().sum()) > 0


def test_allowed_tokens_may_be_a_slice(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    allowed = torch.rand(3, 2 * VOCAB, generator=generator) < 0.5
    allowed[:, 12] = True
    constraint = Constraint(torch.arange(3, device=device), allowed[:, 10 : 10 + VOCAB].to(device))
    logits = Logits(torch.randn(2, 3, VOCAB, generator=generator).to(device), None)
    positions = np.tile(np.arange(3), (2, 1))
    probs = []
    for kernels in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        p = TokenSampler([SamplingParams()] * 2, constraint, device)(logits, Numbers(positions))
        one = torch.ones(2, 3, VOCAB, device=device)
        probs.append(torch.stack([ratio(dense(p), one, torch.full((2, 3), t, device=device)) for t in range(VOCAB)]))
    torch.testing.assert_close(probs[0], probs[1])
