"""The sequential head of DSpark: a logit bias by the token before, for tokens that were predicted in the same pass.

Names and shapes are those of the DSpark classes of the package `speculators`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.errors import ArgumentError

TYPES = ("vanilla", "gated", "rnn")


class MarkovHead(nn.Module):
    """Adds to the logits of a slot a bias of low rank that depends on the token before it.

    Args:
        vocab_size: V.
        rank: Rank r of the bias.
        hidden_size: Width D of the hidden states of the block.
        head_type: "vanilla": W2 W1[token]; "gated": the hidden state of the slot gates W1[token]; "rnn": a recurrent
            state runs over the block.
        draft_vocab_size: Size of the draft vocabulary; None for V.

    Raises:
        ArgumentError: If the type is unknown.
    """

    def __init__(
        self, vocab_size: int, rank: int, hidden_size: int, head_type: str, draft_vocab_size: int | None = None
    ) -> None:
        super().__init__()
        if head_type not in TYPES:
            raise ArgumentError(f"markov_head_type={head_type!r} is not allowed; it must be one of {', '.join(TYPES)}")
        self.rank = rank
        self.head_type = head_type
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size or vocab_size, bias=False)
        if head_type == "gated":
            self.gate_proj = nn.Linear(hidden_size + rank, rank)
        elif head_type == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def forward(self, tokens: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The bias [..., drafted] and the next state [..., r] of one slot of each block.

        Args:
            tokens: The token before the slot, int64 [...].
            hidden: The hidden state of the slot, [..., D].
            state: The state after the slot before, [..., r]; zeros at the first slot, and unless the type is "rnn".
        """
        embedded = self.markov_w1(tokens)
        if self.head_type == "rnn":
            joint = self.joint_proj(torch.cat([state, embedded, hidden.to(embedded.dtype)], dim=-1))
            gate, candidate, out = joint.chunk(3, dim=-1)
            gate = gate.sigmoid()
            return self.markov_w2(out.tanh()), gate * state + (1 - gate) * candidate.tanh()
        if self.head_type == "gated":
            gate = self.gate_proj(torch.cat([hidden.to(embedded.dtype), embedded], dim=-1)).sigmoid()
            embedded = gate * embedded
        return self.markov_w2(embedded), state
