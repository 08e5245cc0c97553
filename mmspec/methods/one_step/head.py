"""A one-step generator: from noise at every place it predicts all of the remaining sequence in one pass.

Distilled Decoding (Liu et al. 2024, arXiv 2412.17153; version 2, arXiv 2510.21003): sampling with fixed noise maps the
noise to a sequence, and a network learns that map, for noise alone or after the first tokens of the sequence. The paper
makes the map by flow matching between codebook vectors; here it is the Gumbel-max trick, so that the noise of a place
picks its token from any distribution. A place reads the noise of the places before it and never its own: its
prediction is then the distribution that its own noise draws the draft from, and verification is exact.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.heads.head import Head, ToySizes, randomized
from mmspec.heads.layers import MLP, attention_sizes, check_sizes
from mmspec.heads.layers import norm as normed

MAX_PLACES = 2**20


class OneStepLayer(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.mlp = MLP(dim, hidden)
        self.input_layernorm = nn.RMSNorm(dim, eps=1e-6)
        self.post_attention_layernorm = nn.RMSNorm(dim, eps=1e-6)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """[R, S, D] for the same, with bool [R, 1, S, S]: what each slot attends to."""
        projected = self.qkv_proj(normed(self.input_layernorm, x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = projected.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(normed(self.post_attention_layernorm, x))
        return out


class OneStepHead(Head):
    """A one-step generator on the target's last feature.

    The noise of a place becomes the mean embedding of the tokens that it may pick, softmax(prior + noise), where the
    prior is a distribution that is predicted from the feature.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's features and of the layers.
        intermediate_size: Width of the MLPs.
        num_attention_heads: Number of attention heads.
        one_step_layers: Number of layers.
        max_position_embeddings: Tokens of a sequence.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "one-step"

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_attention_heads: int,
        one_step_layers: int = 2,
        max_position_embeddings: int = 2048,
    ) -> None:
        super().__init__()
        heads = num_attention_heads
        check_sizes(
            [
                ("num_attention_heads", heads, 1, 4096),
                ("one_step_layers", one_step_layers, 1, 256),
                ("max_position_embeddings", max_position_embeddings, 1, MAX_PLACES),
            ]
        )
        attention_sizes(hidden_size, heads, None, None)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.embed_positions = nn.Embedding(max_position_embeddings, hidden_size)
        self.fc = nn.Linear(hidden_size, hidden_size, bias=False)
        self.prior = nn.Linear(hidden_size, vocab_size)
        layers = [OneStepLayer(hidden_size, intermediate_size, heads) for _ in range(one_step_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    def init_weights(self, std: float = 0.02) -> None:
        """Initializes weights for training: the prediction is the feature itself, and the prior is even."""
        for name, p in self.named_parameters():
            residual = ("o_proj.weight", "down_proj.weight", "bias", "prior.weight")
            if name.endswith(residual) or p is self.out.weight:
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=std)

    def forward(self, tokens: Tensor, positions: Tensor, noise: Tensor, feature: Tensor) -> Tensor:
        """Features of the next places, [R, W + 1, D]; the target's LM head turns them into logits.

        Args:
            tokens: The sequence, int64 [R, S]; -1 in places whose noise is read.
            positions: Of the tokens, int64 [R, S]; negative for padding, which only precedes a sequence.
            noise: Standard Gumbel noise of the last W of them, float32 [R, W, V].
            feature: What the last token before these W was sampled from, [R, D].
        """
        feature, width = feature.to(self.dtype), noise.shape[1]
        chances = (self.prior(feature)[:, None].float() + noise).softmax(-1).to(self.dtype)
        guessed = F.pad(chances @ self.embed_tokens.weight, (0, 0, tokens.shape[1] - width, 0))
        x = torch.where((tokens < 0)[..., None], guessed, self.embed_tokens(tokens.clamp(0, self.vocab_size - 1)))
        x = x + self.embed_positions(positions.clamp(0, self.embed_positions.num_embeddings - 1))
        x = x + self.fc(feature)[:, None]
        slot = torch.arange(tokens.shape[1], device=tokens.device)
        # A slot sees itself even if it is padding: a softmax over nothing is no number.
        visible = ((slot <= slot[:, None]) & (positions >= 0)[:, None]) | (slot == slot[:, None])
        for layer in self.layers:
            x = layer(x, visible[:, None])
        change: Tensor = self.out(normed(self.norm, x[:, tokens.shape[1] - width - 1 :]))
        return feature[:, None] + change

    @classmethod
    def toy(cls, sizes: ToySizes) -> OneStepHead:
        return randomized(cls(sizes.vocab_size, sizes.hidden_size, 24, 2, max_position_embeddings=64), 0.5)
