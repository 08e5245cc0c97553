"""A tiny MAR with an analytic head: chains of a random head diverge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmspec.vision.mar.denoising import cosine_alpha_bars
from mmspec.vision.mar.transformer import MARTransformer

SIZES: dict[str, Any] = {
    "grid_size": 4, "token_dim": 4, "encoder_dim": 16, "encoder_depth": 2, "encoder_heads": 2, "decoder_dim": 16,
    "decoder_depth": 2, "decoder_heads": 2, "class_num": 7, "buffer_size": 3, "head_depth": 1, "head_width": 16,
}  # fmt: skip
BARS = torch.from_numpy(cosine_alpha_bars()).float()


class Analytic(nn.Module):
    """Predicts the noise in a latent with the distribution N(tanh(A * z), 0.3 ** 2), and the lowest variance."""

    def __init__(self, dim: int, condition: int, lean: float = 0.0) -> None:
        super().__init__()
        self.means = nn.Linear(condition, dim)
        self.lean = lean
        for p in self.means.parameters():
            nn.init.normal_(p, std=0.5, generator=torch.Generator().manual_seed(5))

    def forward(self, x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        bar = BARS[t][:, None]
        mean = self.means(condition).tanh() + self.lean
        noise = (x - bar.sqrt() * mean) * (1 - bar).sqrt() / (bar * 0.3**2 + 1 - bar)
        return torch.cat([noise, torch.full_like(x, -1.0)], dim=-1)


def tiny(lean: float = 0.0, seed: int = 0, **sizes: Any) -> MARTransformer:
    torch.manual_seed(seed)
    model = MARTransformer(**{**SIZES, **sizes}).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    model.diffloss.net = Analytic(SIZES["token_dim"], SIZES["decoder_dim"], lean)
    return model
