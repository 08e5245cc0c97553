"""What a quantized KV cache keeps besides its codes: outliers, and a matrix of low rank for the rest of the error.

GEAR (Kang et al. 2024, arXiv 2403.05527) takes the largest and the smallest numbers out before it quantizes, and adds a
matrix of low rank that approximates the error. There the matrix is that of many tokens in a head, so that a token that
is rolled back changes what others are read as. Here it is that of all heads of one token: what is written depends on
the token alone, as in `mmspec.decoding.quantized_cache`, and recipes stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.errors import ArgumentError

MOST = 64


@dataclass(frozen=True)
class Gear:
    """The correction of a quantized KV cache.

    Attributes:
        outliers: Numbers of each vector, half of them the largest and half the smallest, that are kept in 16 bits;
            even, 0 to 64, and fewer than the vector has.
        rank: Rank of the matrix [heads, head_dim] that approximates a token's error, 0 to 64; one above the number of
            heads keeps the error whole.

    Raises:
        ArgumentError: If a number is not allowed.
    """

    outliers: int = 2
    rank: int = 1

    def __post_init__(self) -> None:
        whole = all(isinstance(number, int) for number in (self.outliers, self.rank))
        if not whole or self.outliers not in range(0, MOST + 1, 2) or self.rank not in range(MOST + 1):
            raise ArgumentError(
                f"outliers={self.outliers}, rank={self.rank} is not allowed; outliers must be even, and both 0 to "
                f"{MOST}"
            )

    def zeros(self, shape: Sequence[int], device: torch.device | None) -> tuple[Tensor, ...]:
        """The empty parts for vectors [..., heads, capacity, head_dim].

        They are the outliers float16 and their places int16, [..., heads, capacity, outliers] each, and the factors of
        the matrix, float16 [..., heads, capacity, rank] and [..., 1, capacity, rank * head_dim].

        Raises:
            ArgumentError: If vectors have fewer numbers than are outliers.
        """
        *most, heads, capacity, width = shape
        if self.outliers >= width:
            raise ArgumentError(f"outliers={self.outliers} is not allowed; this model's heads have {width} numbers")
        parts = (heads, self.outliers, torch.float16), (heads, self.outliers, torch.int16)
        factors = (heads, self.rank, torch.float16), (1, self.rank * width, torch.float16)
        return tuple(
            torch.zeros(*most, count, capacity, numbers, dtype=dtype, device=device)
            for count, numbers, dtype in (*parts, *factors)
        )

    def without_outliers(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors [..., head_dim] with their mean in place of outliers; the outliers, and their places."""
        half = self.outliers // 2
        if not half:
            return states, states[..., :0], torch.zeros_like(states[..., :0], dtype=torch.int64)
        places = torch.cat([states.topk(half).indices, states.topk(half, largest=False).indices], dim=-1)
        mean = states.mean(-1, keepdim=True).expand(*states.shape[:-1], self.outliers)
        return states.scatter(-1, places, mean), _as_half(states.gather(-1, places)), places

    def factors(self, error: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of the best matrix of `rank` for each token's error, [R, heads, W, head_dim].

        Returns:
            [R, heads, W, rank] and [R, 1, W, rank * head_dim].
        """
        by_token = error.transpose(1, 2)  # [R, W, heads, head_dim]
        rank = min(self.rank, by_token.shape[2])
        left = torch.linalg.eigh(by_token @ by_token.mT).eigenvectors[..., by_token.shape[2] - rank :]
        right = left.mT @ by_token
        pad = self.rank - rank
        left, right = torch.nn.functional.pad(left, (0, pad)), torch.nn.functional.pad(right, (0, 0, 0, pad))
        return left.transpose(1, 2), right.flatten(2)[:, None]

    def restore(self, states: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """Adds the matrix to dequantized vectors float32 [R, heads, S, head_dim], and puts the outliers back."""
        values, places, left, right = parts
        if self.rank:
            matrix = right.float().unflatten(-1, (self.rank, -1))
            states = states + (left.float()[..., None] * matrix).sum(-2)
        return states.scatter(-1, places.long(), values.float()) if self.outliers else states


def _as_half(states: Tensor) -> Tensor:
    """Numbers within the range of float16, beyond which they would become infinite."""
    most = torch.finfo(torch.float16).max
    return states.clamp(-most, most)
