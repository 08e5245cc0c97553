"""What all trained drafters have in common."""

from __future__ import annotations

from huggingface_hub import PyTorchModelHubMixin
from torch import nn


class Head(nn.Module, PyTorchModelHubMixin):
    """A trained drafter of one target: a network on its features, or what else is loaded beside it.

    Attributes:
        kind: Its name among the drafters of a model, such as "eagle".
        vocab_size: V of the target.
        hidden_size: Width of the target's features.
    """

    kind: str
    vocab_size: int
    hidden_size: int
