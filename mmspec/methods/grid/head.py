"""The grid head: drafts of images from the target's features of the row above and from the token to the left.

The idea is that of spatially speculative decoding (arXiv 2606.20543): the features of the row above predict the row
below it, so that a whole row can be drafted at once, and the left neighbor joins its tokens. The head is an MLP without
attention; the target's own LM head turns its output into logits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.heads.head import Head, ToySizes, randomized
from mmspec.heads.layers import check_sizes
from mmspec.heads.rotary import MAX_GRID


class GridHead(Head):
    """A grid head.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's features.
        intermediate_size: Width of the MLP.
        grid_width: Tokens per line.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "grid"

    def __init__(self, vocab_size: int, hidden_size: int, intermediate_size: int, grid_width: int) -> None:
        super().__init__()
        check_sizes([("grid_width", grid_width, 1, MAX_GRID)])
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.grid_width = grid_width
        # The left neighbor, and the number of tokens since the last feature; the last row is for more than two lines.
        self.left = nn.Embedding(vocab_size, hidden_size)
        self.ahead = nn.Embedding(2 * grid_width + 1, hidden_size)
        self.norm = nn.RMSNorm(hidden_size)
        self.up_proj = nn.Linear(5 * hidden_size, intermediate_size)
        self.gate_proj = nn.Linear(5 * hidden_size, intermediate_size)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.mix = nn.Linear(3 * hidden_size, hidden_size, bias=False)

    @property
    def device(self) -> torch.device:
        return self.down_proj.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.down_proj.weight.dtype

    def init_weights(self, std: float = 0.02) -> None:
        """Initializes weights for training; the head starts by predicting the last feature."""
        for name, p in self.named_parameters():
            if name.startswith("down_proj") or name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=std)
        with torch.no_grad():
            self.mix.weight[:, : self.hidden_size] += torch.eye(self.hidden_size)

    def forward(self, last: Tensor, above: Tensor, right: Tensor, left: Tensor, ahead: Tensor) -> Tensor:
        """The predicted features [..., D] of positions.

        Args:
            last: The target's last feature, [..., D].
            above: The feature after the token above the position, [..., D]; 0 where there is none.
            right: The feature after the token to the right of that one, [..., D]; 0 where there is none.
            left: The token before the position, int64 [...].
            ahead: The number of tokens since the last feature, int64 [...], 0 for the next one.
        """
        features = [x.to(self.dtype) for x in (last, above, right)]
        normed = [F.rms_norm(x, x.shape[-1:], self.norm.weight.to(x.dtype), 1e-6) for x in features]
        x = torch.cat([*normed, self.left(left), self.ahead(ahead.clamp(max=len(self.ahead.weight) - 1))], dim=-1)
        return self.mix(torch.cat(features, dim=-1)) + self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    @classmethod
    def toy(cls, sizes: ToySizes) -> GridHead:
        return randomized(cls(sizes.vocab_size, sizes.hidden_size, 24, sizes.width or 1), 0.5)
