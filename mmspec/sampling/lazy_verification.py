"""What the Triton kernels verify and sample, on its way to the host, and the form in which they read rules."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.kernels import columns as columns_kernel
from mmspec.kernels.accept import BROKEN_DRAFT, Verified
from mmspec.kernels.rule import KernelRule
from mmspec.sampling.acceptance import Accept, SupportsKernels
from mmspec.sampling.lazy_probs import LazyProbs
from mmspec.sampling.numbers import Download, Numbers
from mmspec.sampling.rejection import INVALID, Draft, Verdict, ratio, sampled
from mmspec.sampling.rng import WindowRNG


class PendingVerdict:
    """The verdict of a window whose counts the host does not have yet.

    Whether all distributions are valid is known with them; what samples from p before takes them to be valid.

    Attributes:
        verdict: The verdict; on the host, `accepted` is a lower bound of 0.
    """

    def __init__(self, verified: Verified, p: LazyProbs, draft: Draft, exact: bool) -> None:
        self._exact, self._p = exact, p
        p.is_valid = True
        self._found = Download(verified.found)
        self._accepted = verified.accepted
        counts = Numbers(np.zeros(len(verified.accepted), dtype=np.int64), verified.accepted)
        self.verdict = Verdict(verified.tokens, counts, p, draft)

    def read(self) -> Verdict:
        """The verdict with its counts; waits for them.

        Raises:
            ModelError: If a row's next token or a draft has no distribution.
        """
        known, found = self.verdict, self._found.wait()
        count, host = known.tokens[0].numel(), found.numpy()
        counts, invalid = Numbers(host[:, 0].astype(np.int64), self._accepted), host[:, 1]
        self._p.is_valid = not invalid.any()
        if not self._p.is_valid and (invalid & (1 | BROKEN_DRAFT)).any():
            raise ModelError(INVALID)
        excess = None if self._exact else found[:, 2 + count :].contiguous().view(torch.float32)
        tokens_on_host = host[:, 2 : 2 + count].astype(np.int64).reshape(known.tokens.shape)
        return Verdict(
            known.tokens, counts, known.p, known.draft, excess, tokens_on_host, known.coupled, known.coupled_p
        )


class PendingTokens:
    """Sampled tokens on their way to the host, which then learns whether their distributions are valid.

    Attributes:
        tokens: int64 [B, W], on the device.
    """

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self._found = Download(tokens)

    def read(self) -> NDArray[np.int64]:
        """The tokens on the host, int64 [B, W]; waits for them.

        Raises:
            ModelError: If a token has no distribution.
        """
        return sampled(self._found.wait().numpy())


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
    return columns_kernel.ColumnNumbers(rng.source.device_seeds(), rng.positions.on(device), rng.iteration.on(device))
