"""The network of MAR's diffusion head, which denoises one latent given a condition of the backbone."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FREQUENCIES = 256
PERIOD = 10_000


class TimeEmbedding(nn.Module):
    """The embedding of original timesteps, 0 to 999."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        frequencies = torch.exp(-math.log(PERIOD) * torch.arange(half, device=t.device, dtype=torch.float32) / half)
        angles = t[:, None].float() * frequencies
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1).to(next(self.mlp.parameters()).dtype))


class ResBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, dim=-1)
        return x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)


class FinalLayer(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(y).chunk(2, dim=-1)
        return self.linear(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)


class DiffusionHead(nn.Module):
    """Predicts the noise in a noisy latent, and the variance of the next step.

    Args:
        token_dim: D, numbers per latent.
        condition_dim: W, width of the backbone's condition.
        depth: Residual blocks.
        width: Width of the network.
    """

    def __init__(self, token_dim: int, condition_dim: int, depth: int, width: int) -> None:
        super().__init__()
        self.time_embed = TimeEmbedding(width)
        self.cond_embed = nn.Linear(condition_dim, width)
        self.input_proj = nn.Linear(token_dim, width)
        self.res_blocks = nn.ModuleList(ResBlock(width) for _ in range(depth))
        self.final_layer = FinalLayer(width, 2 * token_dim)

    def forward(self, x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """Predicted noise and variance, [n, 2 * D]; see `mmspec.vision.mar.denoising.Schedule.step`.

        Args:
            x: Noisy latents [n, D].
            t: Original timesteps int64 [n].
            condition: [n, W].
        """
        y = self.time_embed(t) + self.cond_embed(condition)
        x = self.input_proj(x)
        for block in self.res_blocks:
            x = block(x, y)
        return self.final_layer(x, y)
