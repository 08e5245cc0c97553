"""A learned filter on a masked model's confidences decides which tokens stay (Learning to Parallel, arXiv 2509.25188).

The original trains a small MLP to tell which of the tokens that a step would sample are the ones that plain decoding
ends with. Here it reads the confidences of a place and of the eight around it, and how much of the image is missing.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmspec.arguments import check_integer, check_number
from mmspec.errors import ModelError
from mmspec.files.inputs import check_regular
from mmspec.masked.keeping import Sampled

FEATURES = 20  # of 3 x 3 places the log-odds of their confidences and whether they are missing; entropy; share left
_HIDDEN = 32


def features_of(sampled: Sampled) -> Tensor:
    """The features of all places, float32 [R, N, FEATURES]."""
    odds = torch.logit(sampled.confidence.clamp(1e-4, 1 - 1e-4)).masked_fill(~sampled.missing, 0.0)
    maps = torch.stack([odds, sampled.missing.float()], dim=1).unflatten(2, sampled.grid)
    around = F.unfold(maps, 3, padding=1).transpose(1, 2)  # [R, N, 18]
    entropy = torch.special.entr(sampled.p).sum(-1)
    left = sampled.missing.float().mean(1, keepdim=True).expand_as(entropy)
    return torch.cat([around, entropy[..., None], left[..., None]], dim=-1)


class LearnedFilter(nn.Module):
    """Keeps the tokens that a small MLP takes for final ones; see `train_filter` and `load_filter`.

    Args:
        sure: Tokens that are final with a larger probability, by the filter, are kept.
    """

    remembers = False

    def __init__(self, sure: float = 0.9) -> None:
        check_number("sure", sure, 0, 1)
        super().__init__()
        self.sure = sure
        self.layers = nn.Sequential(nn.Linear(FEATURES, _HIDDEN), nn.SiLU(), nn.Linear(_HIDDEN, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Logits float32 [..., N] that tokens are final, of their features."""
        logits: Tensor = self.layers(features)[..., 0]
        return logits

    def start(self, rows: int) -> LearnedFilter:
        return self

    @torch.no_grad()
    def keep(self, sampled: Sampled) -> Tensor:
        features = features_of(sampled).to(next(self.parameters()))
        return sampled.missing & (self(features).sigmoid() > self.sure).to(sampled.missing.device)

    def save(self, path: str | Path) -> None:
        """Writes the weights to a file of safetensors."""
        save_file(self.state_dict(), path)


def load_filter(path: str | Path, sure: float = 0.9) -> LearnedFilter:
    """A filter that `LearnedFilter.save` has written.

    Raises:
        ModelError: If the file is missing, or is no filter.
    """
    found = LearnedFilter(sure)
    try:
        check_regular(Path(path))
        found.load_state_dict(load_file(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"file {str(path)!r} is not a filter: {' '.join(str(error).split())[:200]}") from None
    return found.eval()


class Watch:
    """A keeper that keeps nothing, and remembers the features and tokens of a call's steps to train a filter on."""

    remembers = True

    def __init__(self) -> None:
        self.start(0)

    def start(self, rows: int) -> Watch:
        self.features: list[Tensor] = []
        self.tokens: list[Tensor] = []
        self.missing: list[Tensor] = []
        self.rows: list[Tensor] = []
        return self

    def keep(self, sampled: Sampled) -> Tensor:
        self.features.append(features_of(sampled))
        self.tokens.append(sampled.tokens)
        self.missing.append(sampled.missing)
        self.rows.append(torch.from_numpy(sampled.rows))
        return torch.zeros_like(sampled.missing)

    def pairs(self, final: Tensor) -> tuple[Tensor, Tensor]:
        """Features float32 [n, FEATURES] of the last call's sampled tokens, and whether each is final, float32 [n].

        Args:
            final: The tokens that the call ended with, int64 [B, N].
        """
        right = [tokens == final[rows] for tokens, rows in zip(self.tokens, self.rows, strict=True)]
        missing = torch.cat(self.missing)
        return torch.cat(self.features)[missing], torch.cat(right)[missing].float()


def train_filter(features: Tensor, right: Tensor, steps: int = 400, seed: int = 0) -> LearnedFilter:
    """Trains a filter in seconds.

    Args:
        features: float32 [n, FEATURES]; see `Watch.pairs`.
        right: float32 [n].
        steps: Steps of 1024 pairs.
        seed: Of the weights and of the order.
    """
    check_integer("steps", steps, 1, 10**6)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        found = LearnedFilter()
        optimizer = torch.optim.AdamW(found.parameters(), lr=5e-3)
        for _ in range(steps):
            index = torch.randint(len(features), (1024,), generator=generator)
            loss = F.binary_cross_entropy_with_logits(found(features[index].cpu()), right[index].cpu())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return found.eval()
