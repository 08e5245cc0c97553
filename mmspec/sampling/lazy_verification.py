"""Windows of drafts and columns where the Triton kernels run: they are verified from lazy probabilities.

`mmspec.sampling.sampler`, which makes lazy probabilities, imports this module with them.
"""

from __future__ import annotations

from dataclasses import replace
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
from mmspec.kernels.softmax_stats import at
from mmspec.sampling.acceptance import Accept, SupportsKernels
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.lazy_probs import FUNCTIONS, LazyProbs, checked, rows_of, stats_of
from mmspec.sampling.mirrored import Download, mirrored, on_device
from mmspec.sampling.multi_codebook import MAX_SAMPLES, couple_columns, sample_columns, verify_columns
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
        count, host = known.tokens[0].numel(), found.numpy()
        first, invalid = host[:, 0].astype(np.int64), host[:, 1]
        self._p._valid = not invalid.any()
        if not self._p._valid and (invalid & (1 | BROKEN_DRAFT)).any():
            raise ModelError(INVALID)
        excess = None if self._exact else found[:, 2 + count :].contiguous().view(torch.float32)
        accepted = mirrored(first, self._accepted)
        tokens_on_host = host[:, 2 : 2 + count].astype(np.int64).reshape(known.tokens.shape)
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
    return replace(verdict, p=p, draft=draft)


def kernel_rule(rule: Accept, device: torch.device) -> KernelRule | None:
    """A rule in the form that the kernel reads; None if the kernel does not support it."""
    if rule is ratio:
        return KernelRule()
    return _kernel_form(rule, device) if isinstance(rule, SupportsKernels) else None


@lru_cache(maxsize=2)
def _kernel_form(rule: SupportsKernels, device: torch.device) -> KernelRule:
    """`SupportsKernels.kernel_rule`, whose tensors are copied to the device once and not in each window."""
    return rule.kernel_rule(device)


def column_numbers(rng: WindowRNG, device: torch.device) -> columns_kernel.ColumnNumbers:
    """What a kernel computes the random numbers of a window from."""
    there = (on_device(numbers, device) for numbers in (rng.positions, rng.iteration))
    return columns_kernel.ColumnNumbers(rng.source.device_seeds(), *there)


def launch_columns(p: Tensor, draft: Draft, rule: Accept, rng: WindowRNG) -> PendingVerdict | None:
    """`mmspec.sampling.multi_codebook.verify_columns`, in one launch; None where the kernel cannot verify."""
    if not isinstance(p, LazyProbs) or rule is not ratio or p.shape[1] == 1:
        return None
    batch, width, cells = p.shape[:3]
    p_stats, q_stats = p.stats.view(batch, width * cells), stats_of(draft.q).view(batch, (width - 1) * cells)
    known, numbers = p.forced_table(), column_numbers(rng, p.device)
    table = None if known is None else known[0]
    verified = columns_kernel.verify_columns(p_stats, q_stats, draft.tokens, table, numbers, MAX_SAMPLES)
    return PendingVerdict(verified, p, draft, KernelRule(), True)


def _verify_columns(p: LazyProbs, draft: Draft, rule: Accept, rng: WindowRNG, cells: ForcedCells | None) -> Verdict:
    """`mmspec.sampling.multi_codebook.verify_columns`, in one launch and one wait for the device."""
    pending = launch_columns(p, draft, rule, rng)
    if pending is not None:
        return pending.send().read()
    verdict = verify_columns(p.dense(), draft, rule, rng, cells)
    return replace(verdict, p=p, draft=draft)


def _couple_columns(p: LazyProbs, draft: Draft, rng: WindowRNG, accepted: NDArray[np.int64] | None = None) -> Tensor:
    """`mmspec.sampling.multi_codebook.couple_columns`, in one launch."""
    (batch, width, cells), known = p.shape[:3], p.forced_table()
    return checked(p, columns_kernel.couple_columns(
        p.stats.view(batch, width * cells), stats_of(draft.q).view(batch, (width - 1) * cells), draft.tokens,
        None if known is None else known[0], column_numbers(rng, p.device), MAX_SAMPLES,
        None if accepted is None else on_device(accepted, p.device),
    ))  # fmt: skip


def _sample_columns(p: LazyProbs, rng: WindowRNG) -> Tensor:
    """`mmspec.sampling.multi_codebook.sample_columns`, in one launch."""
    (batch, width, cells), known = p.shape[:3], p.forced_table()
    table, numbers = None if known is None else known[0], column_numbers(rng, p.device)
    stats = p.stats.view(batch, width * cells)
    return checked(p, columns_kernel.couple_columns(stats, None, None, table, numbers, MAX_SAMPLES))


FUNCTIONS.update(
    {
        verify: _verify,
        verify_columns: _verify_columns,
        couple_columns: _couple_columns,
        sample_columns: _sample_columns,
    }
)
