"""Windows of drafts and columns where the Triton kernels run: they are verified from lazy probabilities.

`mmspec.sampling.sampler`, which makes lazy probabilities, imports this module with them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.kernels import columns as columns_kernel
from mmspec.kernels.accept import BROKEN_DRAFT, Verified, verify_window
from mmspec.kernels.rule import KernelRule
from mmspec.kernels.softmax_stats import TOTAL, at
from mmspec.sampling.acceptance import Accept, SupportsKernels
from mmspec.sampling.lazy_probs import FUNCTIONS, LazyProbs, checked, dense_of, rows_of, stats_of
from mmspec.sampling.mirrored import Download, mirrored, on_device
from mmspec.sampling.multi_codebook import MAX_SAMPLES, couple_columns, entries, verify_columns, with_resampled
from mmspec.sampling.rejection import INVALID, Draft, Verdict, ratio, sample, sampled, verify
from mmspec.sampling.rng import WindowRNG


class PendingVerdict:
    """The verdict of a window whose counts the host does not have yet.

    Whether all distributions are valid is known with them; what samples from p before takes them to be valid. Where a
    CUDA graph makes the verdict anew (`mmspec.decoding.captured`), it is sent and read anew.

    Attributes:
        verdict: The verdict; on the host, `accepted` is a lower bound of 0.
    """

    def __init__(self, verified: Verified, p: LazyProbs, draft: Draft, rule: KernelRule, exact: bool) -> None:
        self._exact, self._there, self._p = exact, verified.found, p
        self._rule = rule  # a CUDA graph reads its tensors, which `_kernel_form` may forget
        self._found: Download | None = None
        p._valid = True
        self._accepted = verified.accepted
        accepted = mirrored(np.zeros(len(verified.accepted), dtype=np.int64), verified.accepted)
        self.verdict = Verdict(verified.tokens, accepted, p, draft)

    def send(self) -> Self:
        """Begins to copy the counts to the host."""
        self._p._valid, self._p._dense = True, None
        self._found = Download(self._there)
        return self

    def read(self) -> Verdict:
        """The verdict with its counts; waits for them.

        Raises:
            ModelError: If a row's next token or a draft has no distribution.
        """
        assert self._found is not None, "send() comes first"
        known, found = self.verdict, self._found.wait()
        m, host = known.tokens.shape[1] - 1, found.numpy()
        first, invalid = host[:, 0].astype(np.int64), host[:, 1]
        self._p._valid = not invalid.any()
        if not self._p._valid and (invalid & (1 | BROKEN_DRAFT)).any():
            raise ModelError(INVALID)
        excess = None if self._exact else found[:, 3 + m :].contiguous().view(torch.float32)
        accepted, tokens_on_host = mirrored(first, self._accepted), host[:, 2 : 3 + m].astype(np.int64)
        return Verdict(
            known.tokens, accepted, known.p, known.draft, excess, tokens_on_host, known.coupled, known.coupled_p
        )


class PendingTokens:
    """Sampled tokens on their way to the host, which then learns whether their distributions are valid.

    Attributes:
        tokens: int64 [B, W], on the device.
    """

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self._found: Download | None = None

    def send(self) -> Self:
        """Begins to copy the tokens to the host."""
        self._found = Download(self.tokens)
        return self

    def read(self) -> NDArray[np.int64]:
        """The tokens on the host, int64 [B, W]; waits for them.

        Raises:
            ModelError: If a token has no distribution.
        """
        assert self._found is not None, "send() comes first"
        return sampled(self._found.wait().numpy())


def launch_sampling(p: Tensor, u: Tensor) -> PendingTokens | None:
    """`mmspec.sampling.rejection.sample`, in one launch; None where the kernels do not sample."""
    return PendingTokens(p.sample(u)) if isinstance(p, LazyProbs) else None


def launch_verification(
    p: Tensor, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor
) -> PendingVerdict | None:
    """`mmspec.sampling.rejection.verify`, in two launches; None where the kernels cannot verify such a window."""
    known = kernel_rule(rule, p.device) if isinstance(p, LazyProbs) and accept_u.shape[1] > 1 else None
    if not isinstance(p, LazyProbs) or known is None:
        return None
    x, q = rows_of(draft.tokens), stats_of(draft.q)
    chance = p.fused_sample(resample_u, x)
    if chance is None:
        chance = F.pad(at(*p.stats[:, :-1].source(), x), (0, 1))
    verified = verify_window(p.stats, q, x, chance, p.sample(resample_u), accept_u, resample_u, known)
    return PendingVerdict(verified, p, draft, known, rule is ratio)


def _verify(p: LazyProbs, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> Verdict:
    """`mmspec.sampling.rejection.verify`, in two launches and one wait for the device."""
    if accept_u.shape[1] == 1:
        return Verdict(sample(p, resample_u), np.zeros(len(accept_u), dtype=np.int64), p, draft)
    pending = launch_verification(p, draft, rule, accept_u, resample_u)
    if pending is not None:
        return pending.send().read()
    verdict = verify(p.dense(), draft, rule, accept_u, resample_u)
    verdict.p = p
    return verdict


def kernel_rule(rule: Accept, device: torch.device) -> KernelRule | None:
    """A rule in the form that the kernel reads; None if the kernel does not support it."""
    if rule is ratio:
        return KernelRule()
    return _kernel_form(rule, device) if isinstance(rule, SupportsKernels) else None


@lru_cache(maxsize=2)
def _kernel_form(rule: SupportsKernels, device: torch.device) -> KernelRule:
    """`SupportsKernels.kernel_rule`, whose tensors are copied to the device once and not in each window."""
    return rule.kernel_rule(device)


def _verify_columns(p: LazyProbs, draft: Draft, rule: Accept, rng: WindowRNG, forced: Tensor | None) -> Verdict:
    """`mmspec.sampling.multi_codebook.verify_columns`, in one kernel and one wait for the device."""
    if rule is not ratio:
        verdict = verify_columns(p.dense(), Draft(draft.tokens, dense_of(draft.q)), rule, rng, forced)
        return Verdict(verdict.tokens, verdict.accepted, p, draft, verdict.excess)
    device, (batch, width, cells) = p.device, p.shape[:3]
    free = _all_free(batch, width, cells, device) if forced is None else forced < 0
    numbers = rng.source.device_seeds(), on_device(rng.positions, device), on_device(rng.iteration, device)
    p_stats, q_stats = p.stats.view(batch, width * cells), stats_of(draft.q).view(batch, (width - 1) * cells)
    x = entries(draft.tokens, p.shape[-1])
    first, resampled = columns_kernel.verify_columns(p_stats, q_stats, x, free, *numbers, MAX_SAMPLES)
    tokens = with_resampled(draft.tokens, first, resampled, forced)
    # The row's next column has no distribution; a draft or any slot has none.
    invalid = [(resampled < 0).any(1), *(stats.floats[..., TOTAL].isnan().any(1) for stats in (q_stats, p_stats))]
    host = torch.cat([torch.stack([first, *invalid], dim=1), tokens.flatten(1)], dim=1).cpu().numpy()
    if host[:, 1:3].any():
        raise ModelError(INVALID)
    p._valid = not host[:, 3].any()
    on_host = np.ascontiguousarray(host[:, 4:]).reshape(batch, width, cells)
    return Verdict(tokens, mirrored(host[:, 0].copy(), first), p, draft, on_host=on_host)


def _couple_columns(p: LazyProbs, draft: Draft, rng: WindowRNG) -> Tensor:
    """`mmspec.sampling.multi_codebook.couple_columns`, in one kernel: each slot is a window of one draft.

    The column after it, which the kernel samples where the draft is accepted, is not used. In place of the last slot's
    draft is one that is always accepted, and the column after that one is the last slot's.
    """
    device, (batch, width, cells) = p.device, p.shape[:3]
    slots, drafts, free, last = _slots_alone(batch, width, cells, device)
    p_stats, q_stats = p.stats[:, slots].view(batch * width, 2 * cells), stats_of(draft.q).view(batch, width - 1, cells)
    q_stats = q_stats[:, drafts].view(batch * width, cells)
    x = entries(draft.tokens, p.shape[-1])[:, drafts]
    positions, iteration = (on_device(n, device)[:, slots].view(-1, 2) for n in (rng.positions, rng.iteration))
    seeds = rng.source.device_seeds()[:, None].expand(batch, width).reshape(-1)
    kept, resampled = columns_kernel.verify_columns(
        p_stats, q_stats, x.view(-1, 1, cells), free, seeds, positions, iteration, MAX_SAMPLES
    )
    keep = (kept.view(batch, width, 1) > 0) & ~last
    return checked(p, torch.where(keep, draft.tokens[:, drafts], resampled.view(batch, width, cells)))


@lru_cache(maxsize=16)
def _all_free(batch: int, width: int, cells: int, device: torch.device) -> Tensor:
    return torch.ones(batch, width, cells, dtype=torch.bool, device=device)


@lru_cache(maxsize=16)
def _slots_alone(batch: int, width: int, cells: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How the slots of a window are windows of one draft each.

    Returns:
        int64 [W, 2], the slot of each draft and the slot after it; int64 [W], the drafts; bool [B * W, 2, K], the free
        cells; bool [W, 1], which slot is the last.
    """
    slot = torch.arange(width, device=device)
    after = (slot + 1).clamp(max=width - 1)
    last = slot == width - 1
    free = torch.stack([~last, torch.ones_like(last)], dim=1)[:, :, None].expand(width, 2, cells)
    return torch.stack([slot, after], dim=1), slot.clamp(max=width - 2), free.repeat(batch, 1, 1), last[:, None]


FUNCTIONS.update({verify: _verify, verify_columns: _verify_columns, couple_columns: _couple_columns})
