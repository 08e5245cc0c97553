"""The exactness check finds every bias that has been published in code, and no exact recipe fails it.

An exact recipe fails once in a million seeds at most. With 60,000 samples of 243 sequences a bias of 0.02 in total
variation is found in 69 to 100 of 100 runs if it is spread evenly over all sequences, one of 0.025 in 99 to 100, one of
0.01 towards the draft model in 49 to 100.
`test_published_biases_are_found` shows it for biases of published implementations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from torch import Tensor

import mmspec.decoding.loop
import mmspec.decoding.window_policy
import mmspec.drafters.coupling
import mmspec.methods.cascade
import mmspec.sampling.rejection
import mmspec.sampling.sampler
import mmspec.testing.toys
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter
from mmspec.decoding.target import EarlyExit
from mmspec.decoding.to_end import decode_to_end
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.drafters.jacobi import Jacobi
from mmspec.drafters.ngram import NGramTable
from mmspec.drafters.refresh import Refresh
from mmspec.drafters.token_init import InitDrafter, repeat_left
from mmspec.methods.draft_stop.drafter import StoppingDrafter
from mmspec.methods.masked import MaskedDrafter
from mmspec.methods.outer.drafter import OuterLayers
from mmspec.methods.outer.head import OuterHead
from mmspec.methods.pearl import PearlDrafter
from mmspec.methods.retrieval.drafter import RetrievalDrafter
from mmspec.methods.stand.drafter import StandDrafter
from mmspec.recipes import parse
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Draft, Verdict, ratio, residual, sample
from mmspec.sampling.rng import ACCEPT, DRAFT, RESAMPLE, WindowRNG
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import ExactnessResult, check, exact_joint
from mmspec.testing.toys import ToyTarget

GRID = Layout(length=4, width=2)
LONGER = Layout(length=5, width=2)
EXACT = [
    "plain", "draft:window=3", "draft:window=6", "table:window=3", "sjd:window=3,start=left",
    "sjd:window=4,start=random", "scd:window=3,start=left", "scd:window=4,start=up", "scd:window=3",
    "scd:window=3,coupling=gumbel", "scd:window=5,coupling=gumbel,start=random", "scd:window=3,start=recycle",
    "recycle:window=3",
]  # fmt: skip


@pytest.mark.parametrize("recipe", ["table:window=3", "scd:window=3", "scd:coupling=gumbel"])
def test_recipes_are_exact_with_batch_size_1(recipe: str) -> None:
    """With 2,000 samples of 8 sequences a bias of 0.06 towards the draft model is found in 87 of 100 runs, one of 0.08
    always; one of 0.08 in any direction in 89.
    """
    result = check(recipe, SamplingParams(0.8), samples=2000, layout=Layout(3), vocab_size=2, batch=1, seed=5)
    assert result.ok, result


def test_recipes_are_exact_if_every_draft_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft model is the target itself."""

    class SameSeed(ToyTarget):
        def __init__(self, batch_size: int, vocab_size: int, length: int, seed: int, guided: bool = False) -> None:
            super().__init__(batch_size, vocab_size, length, seed % 1000, guided)

    monkeypatch.setattr(mmspec.testing.toys, "ToyTarget", SameSeed)
    result = check("draft:window=3", SamplingParams(temperature=0.7), samples=60_000, layout=LONGER, seed=6)
    assert result.ok and result.tokens_per_call == 5 / 3, result


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["plain", "draft:window=3", "scd:window=3", "tree:branch=2/2/1"])
def test_recipes_are_exact_with_a_million_samples(recipe: str) -> None:
    """Finds a bias of 0.005."""
    sampling = SamplingParams(temperature=0.8, top_p=0.9, guidance_scale=1.5)
    result = check(recipe, sampling, samples=1_000_000, layout=GRID, seed=7)
    assert result.ok, result


@pytest.mark.parametrize("recipe", EXACT[1:])
def test_windows_of_a_deterministic_target_are_accepted(recipe: str) -> None:
    """The target repeats its last token with probability 1, so that every window is accepted up to the end."""

    class Repeater(ToyTarget):
        def forward(self, tokens: Tensor, at: np.ndarray, early_exit: EarlyExit | None = None) -> Logits:
            return Logits(torch.nn.functional.one_hot(tokens, 3).float() * 200, None)

    layout = Layout(length=24, width=4)
    resources = DraftResources(
        NGramTable(torch.arange(3).expand(4, 3)), lambda: Repeater(2, 3, 3, 0), [SamplingParams()] * 2
    )
    parsed = parse(recipe)
    decoded = run(Repeater(2, 3, 3, 0), parsed, layout, [SamplingParams()] * 2, [0, 1], resources)
    assert (decoded.tokens == decoded.tokens[:, :1]).all()
    if "random" not in recipe and "up" not in recipe:
        assert decoded.stats.target_calls == 1 + -(-23 // parsed.window)
        assert set(decoded.stats.acceptance) == {1.0}


def test_plain_decoding_equals_the_loop_with_window_1() -> None:
    sampling = [SamplingParams(temperature=0.8)] * 3
    layout, target, plain = Layout(length=12), *(ToyTarget(3, 4, 12, 5, memory=4) for _ in range(2))
    state = BatchState([1, 2, 3], layout, 1, target.device)
    meter = Meter(target.device, 3)
    drafter = Jacobi(InitDrafter(repeat_left), None, 4)
    sampler = TokenSampler(sampling, None, target.device)
    policy = mmspec.decoding.window_policy.FixedWindow(1)
    decode_to_end(mmspec.decoding.loop.RunningBatch(target, drafter, ratio, sampler, state, policy, meter))
    assert torch.equal(state.result(), run(plain, parse("plain"), layout, sampling, [1, 2, 3]).tokens)


# --- Broken variants of the loop: each has a bias of a published implementation --------------------------------------

Break = Callable[[pytest.MonkeyPatch], None]


def resample_from_p(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mmspec.sampling.rejection, "residual", lambda p, q: p)


def apply_temperature_to_residual(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mmspec.sampling.rejection, "residual", lambda p, q: residual(p, q) ** (1 / 1.6))


def draft_argmax_but_claim_softmax(patch: pytest.MonkeyPatch) -> None:
    def sample_drafts(self: TokenSampler, p: Tensor, draws: WindowRNG, stream: int = RESAMPLE) -> Tensor:
        return p.argmax(-1) if stream == DRAFT else sample(p, draws[stream])

    patch.setattr(TokenSampler, "sample", sample_drafts)


def reuse_above_half(patch: pytest.MonkeyPatch) -> None:
    def coupling(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
        tokens = sample(dense(verdict.p), draws[RESAMPLE])
        if (m := verdict.p.shape[1] - 1) == 0:
            return tokens
        old = verdict.draft.tokens
        keep = ratio(dense(verdict.p)[:, :m], dense(verdict.draft.q), old) > 0.5
        return torch.cat([torch.where(keep, old, tokens[:, :m]), tokens[:, m:]], dim=1)

    patch.setitem(mmspec.drafters.coupling.COUPLINGS, "maximal", coupling)


def share_draft_noise_with_resample(patch: pytest.MonkeyPatch) -> None:
    get = WindowRNG.__getitem__
    patch.setattr(WindowRNG, "__getitem__", lambda self, stream: get(self, RESAMPLE if stream == DRAFT else stream))


def init_by_argmax_but_claim_softmax(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TorchOps, "sample_draft", staticmethod(lambda q, u: q.argmax(-1)))


def stale_q_in_coupling(patch: pytest.MonkeyPatch) -> None:
    def coupling(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
        tokens = mmspec.drafters.coupling.maximal(verdict, state, draws)
        if m := verdict.p.shape[1] - 1:
            p, q = dense(verdict.p)[:, :m], dense(verdict.draft.q)
            kept = draws[ACCEPT][:, :m] < ratio(p, q, verdict.draft.tokens)
            p.copy_(torch.where(kept[..., None], q, p))
        return tokens

    patch.setitem(mmspec.drafters.coupling.COUPLINGS, "maximal", coupling)


def stale_q_in_lock_step(patch: pytest.MonkeyPatch) -> None:
    """Groups of four rows commit as many tokens as the slowest; the others reuse accepted drafts with their old q."""
    accepted: list[np.ndarray] = []

    def lock_step(p: Tensor, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> Verdict:
        verdict = mmspec.sampling.rejection.verify(p, draft, rule, accept_u, resample_u)
        accepted[:] = [verdict.accepted]
        verdict.counts = Numbers(verdict.accepted.reshape(-1, 4).min(1).repeat(4))
        return verdict

    def coupling(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
        tokens = sample(dense(verdict.p), draws[RESAMPLE])
        if m := verdict.p.shape[1] - 1:
            kept = torch.from_numpy(np.arange(m) < accepted[0][:, None])
            p = dense(verdict.p)[:, :m]
            p.copy_(torch.where(kept[..., None], dense(verdict.draft.q), p))
            tokens[:, :m] = torch.where(kept, verdict.draft.tokens, tokens[:, :m])
        return tokens

    patch.setattr(TorchOps, "verify", staticmethod(lock_step))
    patch.setitem(mmspec.drafters.coupling.COUPLINGS, "fresh", coupling)


def share_accept_coin_with_resample(patch: pytest.MonkeyPatch) -> None:
    """Uses the accept coin for the resample too."""

    def verify(p: Tensor, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> Verdict:
        return mmspec.sampling.rejection.verify(p, draft, rule, accept_u, accept_u)

    patch.setattr(TorchOps, "verify", staticmethod(verify))


def skip_roll_back(patch: pytest.MonkeyPatch) -> None:
    forward = ToyTarget.forward

    def without_roll_back(self: ToyTarget, tokens: Tensor, at: np.ndarray) -> Logits:
        number = self._number.clone()
        logits = forward(self, tokens, at)
        self._number = torch.where(number > 0, number, self._number)
        return logits

    patch.setattr(ToyTarget, "forward", without_roll_back)


def stale_q_after_refresh(patch: pytest.MonkeyPatch) -> None:
    refresh = Refresh.refresh

    def with_old_q(
        self: Refresh, state: BatchState, tokens: Tensor, q: Tensor, reused: Numbers, draws: WindowRNG
    ) -> tuple[Tensor, Tensor, Numbers]:
        new_tokens, new_q, known = refresh(self, state, tokens, q, reused, draws)
        old = torch.from_numpy(np.arange(q.shape[1]) < reused.host[:, None])
        return new_tokens, torch.where(old[..., None], q, new_q), known

    patch.setattr(Refresh, "refresh", with_old_q)


def refresh_by_the_test_numbers(patch: pytest.MonkeyPatch) -> None:
    """Refreshes with the accept coin and the resample number of the slot's own test."""

    def uniforms(self: WindowRNG, stream: int, first: int, count: int) -> Tensor:
        return torch.stack([self[ACCEPT], self[RESAMPLE]], dim=-1)

    patch.setattr(WindowRNG, "uniforms", uniforms)


def stale_q_of_outer_layers(patch: pytest.MonkeyPatch) -> None:
    couple = OuterLayers.couple

    def with_old_q(self: OuterLayers, verdict: Verdict, *rest: Any) -> tuple[Tensor, Tensor]:
        return couple(self, verdict, *rest)[0], dense(verdict.p)

    patch.setattr(OuterLayers, "couple", with_old_q)


def outer_layers_that_read_ahead(patch: pytest.MonkeyPatch) -> None:
    """The distribution that a draft is coupled to depends on the draft itself."""
    forward = EarlyExitTarget.forward

    def shifted(self: EarlyExitTarget, tokens: Tensor, at: np.ndarray) -> Logits:
        return forward(self, torch.cat([tokens[:, 1:], tokens[:, -1:]], dim=1), at)

    patch.setattr(EarlyExitTarget, "forward", shifted)


def outer_head_that_reads_old_tokens(patch: pytest.MonkeyPatch) -> None:
    """The head reads the old states of the slot on the right, which saw the very draft that is coupled."""
    forward = OuterHead.forward

    def shifted(self: OuterHead, new: Tensor, before: Tensor, after: Tensor) -> Tensor:
        return forward(self, new, before, torch.cat([after[:, 1:], after[:, -1:]], dim=1))

    patch.setattr(OuterHead, "forward", shifted)


def outer_head_that_attends_ahead(patch: pytest.MonkeyPatch) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    patch.setattr(
        "mmspec.methods.outer.head.F.scaled_dot_product_attention", lambda q, k, v, attn_mask: attend(q, k, v)
    )


def draft_likeliest_but_claim_stored(patch: pytest.MonkeyPatch) -> None:
    sample_stored = StandDrafter._sample

    def likeliest(self: StandDrafter, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        return sample_stored(self, left, up, torch.zeros_like(u))

    patch.setattr(StandDrafter, "_sample", likeliest)


def claim_sampled_guesses(patch: pytest.MonkeyPatch) -> None:
    """The guesses after the stop keep the q of the last draft."""
    propose = StoppingDrafter.propose

    def with_old_q(self: StoppingDrafter, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        draft = propose(self, state, count, draws)
        q = dense(draft.q)
        sampled = q.amax(-1, keepdim=True) < 1
        q[:, 1:] = torch.where(sampled[:, 1:], q[:, 1:], q[:, :1])
        return draft

    patch.setattr(StoppingDrafter, "propose", with_old_q)


def accept_all_inner_drafts(patch: pytest.MonkeyPatch) -> None:
    """The middle model of a cascade vouches for drafts that it has not tested."""
    patch.setattr(mmspec.methods.cascade, "ratio", lambda p, q, x: torch.ones(x.shape))


def claim_frequencies_of_the_datastore(patch: pytest.MonkeyPatch) -> None:
    """The most frequent token is drafted, and q is said to be a distribution that it was sampled from."""

    propose = RetrievalDrafter.propose

    def smoothed(self: RetrievalDrafter, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        draft = propose(self, state, count, draws)
        return Draft(draft.tokens, 0.4 * dense(draft.q) + 0.6 / draft.q.shape[-1])

    patch.setattr(RetrievalDrafter, "propose", smoothed)


def draft_without_other_layers(patch: pytest.MonkeyPatch) -> None:
    """The layers to skip change while a draft is made: it is sampled with some, and its q computed with others."""

    def sample(q: Tensor, u: Tensor) -> Tensor:
        other = q.flip(-1) + q
        return mmspec.sampling.rejection.sample(other / other.sum(-1, keepdim=True), u)

    patch.setattr(TorchOps, "sample_draft", staticmethod(sample))


def commit_the_guess(patch: pytest.MonkeyPatch) -> None:
    """After a fully accepted window the draft model's guess is kept for the token that the target samples."""
    observe = PearlDrafter.observe

    def kept(self: PearlDrafter, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        observe(self, verdict, state, draws)
        count = verdict.tokens.shape[1] - 1
        if self._ahead is not None and count:
            whole = torch.from_numpy(verdict.accepted == count)
            verdict.tokens[:, count] = torch.where(whole, self._ahead.guess.wait()[:, 0], verdict.tokens[:, count])

    patch.setattr(PearlDrafter, "observe", kept)


def fill_in_a_second_step(patch: pytest.MonkeyPatch) -> None:
    """The masked model sees the first draft when it fills the others, whose q are still those of the first step."""
    propose = MaskedDrafter.propose

    def filled(self: MaskedDrafter, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        draft = propose(self, state, count, draws)
        if count > 1:
            seen = 0.5 * dense(draft.q)[:, 1:] + 0.5 * torch.nn.functional.one_hot(
                draft.tokens[:, :1], draft.q.shape[-1]
            )
            draft.tokens[:, 1:] = sample(seen, draws[DRAFT][:, 1:count])
        return draft

    patch.setattr(MaskedDrafter, "propose", filled)


BROKEN: dict[str, tuple[Break, str]] = {
    "resample from p": (resample_from_p, "sjd:window=3,start=left"),
    "temperature applied to the residual": (apply_temperature_to_residual, "sjd:window=3,start=left"),
    "argmax drafts with a softmax q": (draft_argmax_but_claim_softmax, "draft:window=3"),
    "reuse if p/q > 0.5": (reuse_above_half, "scd:window=4,start=left"),
    "stale q in coupling": (stale_q_in_coupling, "scd:window=4,start=left"),
    "stale q in a lock-step batch": (stale_q_in_lock_step, "sjd:window=4,start=left"),
    "initial drafts by argmax with a softmax q": (init_by_argmax_but_claim_softmax, "scd:window=4,start=model"),
    "draft noise shared with the resample": (share_draft_noise_with_resample, "draft:window=3"),
    "accept coin shared with the resample": (share_accept_coin_with_resample, "draft:window=3"),
    "stale q of refreshed drafts": (stale_q_after_refresh, "scd:window=4,start=left,refresh=model"),
    "refresh with the numbers of the test": (refresh_by_the_test_numbers, "scd:window=4,start=left,refresh=model"),
    "stale q after the outer layers": (stale_q_of_outer_layers, "scd:window=4,start=left,refresh=outer"),
    "outer layers that read ahead": (outer_layers_that_read_ahead, "scd:window=4,start=left,refresh=outer"),
    "an outer head that reads old tokens": (outer_head_that_reads_old_tokens, "scd:window=4,start=left,refresh=outer"),
    "an outer head that attends ahead": (outer_head_that_attends_ahead, "scd:window=4,start=left,refresh=outer"),
    "the likeliest stored token with a sampled q": (draft_likeliest_but_claim_stored, "stand:window=4"),
    "retrieved tokens with a sampled q": (claim_frequencies_of_the_datastore, "retrieval:window=3"),
    "guesses with the q of drafts": (claim_sampled_guesses, "draft-stop:window=4,stop=0.9"),
    "untested drafts inside a cascade": (accept_all_inner_drafts, "cascade:window=5,inner=3"),
    "layers that change between draft and q": (draft_without_other_layers, "swift:window=3"),
    "guesses kept as tokens": (commit_the_guess, "pearl:window=2"),
    "masked drafts of a second step": (fill_in_a_second_step, "masked:window=4"),
    "no roll-back": (skip_roll_back, "draft:window=3"),
}


def checked(recipe: str) -> ExactnessResult:
    return check(recipe, SamplingParams(temperature=1.6), samples=60_000, layout=LONGER, seed=1)


unbroken = lru_cache(checked)


@pytest.mark.parametrize("broken", BROKEN)
def test_published_biases_are_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, recipe = BROKEN[broken]
    assert unbroken(recipe).ok
    break_it(monkeypatch)
    result = checked(recipe)
    assert not result.ok, result
    print(f"{broken}: {result}")


def test_the_exact_joint_is_a_product_of_softmaxes() -> None:
    """Compares the reference distribution with one that is computed by hand."""
    toy = ToyTarget(1, 3, 3, seed=2)
    joint = exact_joint(toy, SamplingParams(temperature=0.5), Layout(length=3))
    table = (toy._tables[0][0].double() / 0.5).softmax(-1)
    a, b, c = 2, 0, 1
    by_hand = table[0, a] * table[1 + a, b] * table[4 + 3 * a + b, c]
    assert joint[9 * a + 3 * b + c].item() == pytest.approx(by_hand.item(), rel=1e-5)
    assert joint.sum().item() == pytest.approx(1)
