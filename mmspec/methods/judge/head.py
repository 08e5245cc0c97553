"""A judge: a linear classifier on the target's feature at a draft, for the acceptance rule `judge`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.heads.head import Head, ToySizes, randomized


class Judge(Head):
    """The probability that a draft leads to an output that a metric calls equal.

    Args:
        vocab_size: Size V of the target's vocabulary, by which a judge of another model is refused.
        hidden_size: Width D of the target's features.
        judge_metric: The metric that the training pairs were compared by, such as "shapes".
    """

    kind = "judge"

    def __init__(self, vocab_size: int, hidden_size: int, judge_metric: str) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.metric = judge_metric
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        """Scores float32 [...] in 0..1 of features [..., D]."""
        return (features.float() @ self.weight.float() + self.bias.float()).sigmoid()

    @classmethod
    def toy(cls, sizes: ToySizes) -> Judge:
        return randomized(cls(sizes.vocab_size, sizes.hidden_size, "toy"), 1.0)
