"""The block head: one pass of a small transformer over the last token and mask tokens drafts a whole block.

DFlash (Chen et al. 2026, arXiv 2602.06036): a block is the last token, the anchor, followed by mask tokens. Its slots
attend to each other in both directions and to the target's features of all tokens before the anchor. In layers with a
sliding window they attend to the last of these features, and to the slots of the block up to their own. The features of
several layers are fused into one vector per token, and every layer projects it to keys and values ("KV injection").
The target's own LM head turns the output of a slot into logits. DSpark adds a sequential head (in
`mmspec.methods.block.markov`), which lets a token depend on the one before it although all of them were predicted in
the same pass.

Parameter names and shapes are those of the DFlash and DSpark classes of the package `speculators`. Two arguments are
not: `grid_size` replaces the rotary embedding by a 2-D one, and known tokens may follow the anchor, so that the head
continues drafts that exist already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.decoding.attention_masks import additive_mask
from mmspec.errors import ArgumentError
from mmspec.heads.attention import Attention, KeysValues, repeat_kv
from mmspec.heads.draft_vocabulary import register_vocabulary
from mmspec.heads.head import ToySizes, randomized
from mmspec.heads.layers import MLP, attention_sizes, check_sizes
from mmspec.heads.layers import norm as normed
from mmspec.heads.rotary import MAX_POSITIONS, Rotary, rotary_sizes
from mmspec.heads.speculators import SpeculatorsHead, attention_config, layer_config
from mmspec.methods.block.markov import MarkovHead


class BlockLayer(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int, kv_heads: int, head_dim: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.self_attn = Attention(dim, dim, heads, kv_heads, head_dim, eps, bias, bias, qk_norm=True)
        self.mlp = MLP(dim, hidden)
        self.input_layernorm = nn.RMSNorm(dim, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(dim, eps=eps)


class BlockHead(SpeculatorsHead):
    """A block head.

    The feature that token i was sampled from has slot `prefix + i`, token i itself slot `prefix + i + 1`.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's last features and of the layers.
        intermediate_size: Width of the MLPs.
        num_attention_heads: Number of attention heads.
        num_hidden_layers: Number of layers.
        num_key_value_heads: Number of heads of keys and values; None for `num_attention_heads`.
        head_dim: Width of a head; None for D divided by the number of heads.
        layer_ids: The target's layers whose hidden states are fused: n is the output of its first n layers, 0 the
            embeddings. Empty fuses the target's last features, after the final norm.
        block_size: Slots of a block in training, the anchor included.
        sample_from_anchor: Whether a slot predicts the token after its own, so that the anchor predicts too (DSpark);
            else a slot predicts its own token (DFlash).
        mask_token_id: Id of the mask token; None for V, an embedding of its own.
        markov_rank: Rank of the sequential head; 0 for none.
        markov_head_type: "vanilla", "gated" or "rnn".
        rms_norm_eps: Epsilon of the RMS norms.
        rope_theta: Base of the rotary embedding.
        attention_bias: Whether the projections of the attention have biases.
        grid_size: Tokens per image side, for a 2-D rotary embedding; None for a 1-D one.
        prefix: Number of prompt slots that the head reads before the one that token 0 was sampled from.
        max_position_embeddings: Number of slots of a 1-D rotary embedding; unused with `grid_size`.
        draft_vocab_size: Size of the draft vocabulary, for which it has an LM head; None for V, with the target's.
        sliding_layers: The layers that have a sliding window, counted from 0.
        sliding_window: Features before the anchor that these layers attend to.
        sliding_window_non_causal: Whether the slots of a block attend to each other in both directions there too.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "block"

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_attention_heads: int,
        num_hidden_layers: int = 2,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        layer_ids: Sequence[int] = (),
        block_size: int = 16,
        sample_from_anchor: bool = False,
        mask_token_id: int | None = None,
        markov_rank: int = 0,
        markov_head_type: str = "vanilla",
        rms_norm_eps: float = 1e-6,
        rope_theta: float = 10000.0,
        attention_bias: bool = False,
        grid_size: int | None = None,
        prefix: int = 0,
        max_position_embeddings: int = 2048,
        draft_vocab_size: int | None = None,
        sliding_layers: Sequence[int] = (),
        sliding_window: int = 2048,
        sliding_window_non_causal: bool = False,
    ) -> None:
        super().__init__()
        drafted = vocab_size if draft_vocab_size is None else draft_vocab_size
        kv_heads, head_dim = attention_sizes(hidden_size, num_attention_heads, num_key_value_heads, head_dim)
        check_sizes(
            [
                ("num_hidden_layers", num_hidden_layers, 1, 256),
                ("block_size", block_size, 2, 1024),
                ("markov_rank", markov_rank, 0, 2**16),
                ("draft_vocab_size", drafted, 1, vocab_size),
                *(("sliding_layers", layer, 0, num_hidden_layers - 1) for layer in sliding_layers),
                ("sliding_window", sliding_window, 1, MAX_POSITIONS),
                *rotary_sizes(grid_size, prefix, max_position_embeddings),
            ]
        )
        mask = vocab_size if mask_token_id is None else mask_token_id
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.layer_ids = tuple(layer_ids)
        self.block_size = block_size
        self.sample_from_anchor = sample_from_anchor
        self.mask_token_id = mask
        self.sliding_layers = frozenset(sliding_layers)
        self.sliding_window = sliding_window
        self.sliding_window_non_causal = sliding_window_non_causal
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.prefix = prefix
        self.embed_tokens = nn.Embedding(max(vocab_size, mask + 1), hidden_size)
        self.fc = nn.Linear(max(len(self.layer_ids), 1) * hidden_size, hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden_size, eps=rms_norm_eps)
        self.layers = nn.ModuleList(
            BlockLayer(
                hidden_size,
                intermediate_size,
                num_attention_heads,
                kv_heads,
                head_dim,
                rms_norm_eps,
                attention_bias,
            )
            for _ in range(num_hidden_layers)
        )
        self.norm = nn.RMSNorm(hidden_size, eps=rms_norm_eps)
        self.markov_head: MarkovHead | None = None
        if markov_rank:
            self.markov_head = MarkovHead(vocab_size, markov_rank, hidden_size, markov_head_type, drafted)
        self.lm_head = nn.Linear(hidden_size, drafted, bias=False) if drafted < vocab_size else None
        self.d2t: Tensor | None
        self.t2d: Tensor | None
        register_vocabulary(self, vocab_size, drafted)
        self.grid_size, self.max_position_embeddings, self.rope_theta = grid_size, max_position_embeddings, rope_theta
        self.rotary = Rotary(head_dim, rope_theta, grid_size, prefix + 1, max_position_embeddings, before="identity")

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def count(self) -> int:
        """Tokens that a block of the trained size drafts."""
        return self.block_size - (not self.sample_from_anchor)

    @property
    def block_layers(self) -> list[BlockLayer]:
        """The layers."""
        return [layer for layer in self.layers if isinstance(layer, BlockLayer)]

    def init_weights(self, std: float = 0.02) -> None:
        """Initializes weights for training; residual branches and the sequential head start at zero."""
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "markov_w2.weight", "bias")):
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=std)

    def context(self, features: Tensor, slots: Tensor) -> list[KeysValues]:
        """Keys and values of the target's features in every layer, each [R, kv_heads, W, head_dim].

        Args:
            features: Hidden states of the layers `layer_ids`, concatenated, [R, W, layers * D].
            slots: Slots of the features, int64 [R, W].
        """
        fused = normed(self.hidden_norm, self.fc(features.to(self.dtype)))
        angles = self.rotary.at(slots)
        found = [layer.self_attn.keys_values(fused) for layer in self.block_layers]
        return [(self.rotary.rotate(k, angles).to(v.dtype), v) for k, v in found]

    def forward(
        self,
        tokens: Tensor,
        slots: Tensor,
        context: Sequence[KeysValues],
        visible: Tensor,
        own: Tensor | None = None,
    ) -> Tensor:
        """Runs blocks; returns the last hidden states [R, A, T, D].

        Args:
            tokens: int64 [R, A, T], A blocks in each row: the anchor, known tokens, then mask tokens.
            slots: Slots of the tokens, int64 [R, A, T].
            context: From `context`, of each layer, over S slots.
            visible: bool [R, A, S], the slots of the context that a block attends to: one after another, up to the one
                before the anchor.
            own: bool [R, A, T], the slots of a block that its slots attend to; None for all.
        """
        blocks = tokens.shape[:3]
        x = self.embed_tokens(tokens.flatten(1))
        angles = self.rotary.at(slots.flatten(1))
        # Scores of the context are computed for all blocks of a row at once, those of a block for each block alone.
        whole = additive_mask(visible, torch.float32, -torch.inf).repeat_interleave(blocks[2], dim=2), None
        sliding = self._sliding_masks(visible, blocks[2]) if self.sliding_layers else whole
        beyond = None if own is None else additive_mask(own, torch.float32, -torch.inf)[..., None, :]
        for number, (layer, (keys, values)) in enumerate(zip(self.block_layers, context, strict=True)):
            hidden, later = sliding if number in self.sliding_layers else whole
            y = normed(layer.input_layernorm, x)
            q, (k, v) = layer.self_attn.queries(y), layer.self_attn.keys_values(y)
            q, k = self.rotary.rotate(q, angles).to(v.dtype), self.rotary.rotate(k, angles).to(v.dtype)
            k, v, keys, values = (repeat_kv(t, q.shape[1]) for t in (k, v, keys, values))
            q = q / self.head_dim**0.5
            far = (q @ keys.transpose(-1, -2)).float() + hidden
            q, k, v = (t.unflatten(2, blocks[1:]) for t in (q, k, v))
            near = (q @ k.transpose(-1, -2)).float()
            near = near if later is None else near + later
            near = (near if beyond is None else near + beyond).flatten(2, 3)
            weights = torch.cat([far, near], dim=-1).softmax(-1)
            far, near = weights.to(v.dtype).split([keys.shape[2], blocks[2]], dim=-1)
            out = far @ values + (near.unflatten(2, blocks[1:]) @ v).flatten(2, 3)
            x = x + layer.self_attn.o_proj(out.transpose(1, 2).flatten(2))
            x = x + layer.mlp(normed(layer.post_attention_layernorm, x))
        return normed(self.norm, x).unflatten(1, blocks[1:])

    def _sliding_masks(self, visible: Tensor, size: int) -> tuple[Tensor, Tensor | None]:
        """The masks of layers with a sliding window: of the context [R, 1, A * T, S], and in a block [1, 1, T, T]."""
        if visible.shape[-1] > self.sliding_window:
            place = visible.cumsum(-1)  # from 1, among the visible slots
            visible = visible & (place > place[..., -1:] - self.sliding_window)
        far = additive_mask(visible, torch.float32, -torch.inf).repeat_interleave(size, dim=2)
        ones = torch.ones(1, size, size, dtype=torch.bool, device=visible.device)
        return far, None if self.sliding_window_non_causal else additive_mask(ones.tril(), torch.float32, -torch.inf)

    def speculators_config(self) -> dict[str, Any]:
        return block_config(self)

    @classmethod
    def toy(cls, sizes: ToySizes) -> BlockHead:
        head = cls(
            sizes.vocab_size,
            sizes.hidden_size,
            24,
            2,
            block_size=4,
            markov_rank=4,
            markov_head_type="rnn",
            grid_size=sizes.width,
            prefix=1,
        )
        return randomized(head, 0.5)


def block_config(head: BlockHead) -> dict[str, Any]:
    """The part of `config.json` that depends on a block head.

    Raises:
        ArgumentError: If the head has an embedding of the mask of its own, or reads the target's last features.
    """
    if head.mask_token_id >= head.vocab_size:
        raise ArgumentError(
            f"the drafter's mask token {head.mask_token_id} is not one of the target's {head.vocab_size} tokens, as "
            "vLLM requires; train one with --mask-token"
        )
    if not head.layer_ids:
        raise ArgumentError("the drafter reads the target's last features; vLLM needs one that fuses several layers")
    markov, layer = head.markov_head, head.block_layers[0]
    # The sequential head is all that the two algorithms differ in here.
    sequential = {} if markov is None else {"markov_rank": markov.rank, "markov_head_type": markov.head_type}
    confidence = {"enable_confidence_head": False, "confidence_head_with_markov": False}
    return {
        "architectures": ["DFlashDraftModel" if markov is None else "DSparkDraftModel"],
        "speculators_model_type": "dflash" if markov is None else "dspark",
        "draft_vocab_size": head.vocab_size if head.d2t is None else len(head.d2t),
        "aux_hidden_state_layer_ids": list(head.layer_ids),
        "block_size": head.block_size,
        "mask_token_id": head.mask_token_id,
        "sample_from_anchor": head.sample_from_anchor,
        "sliding_window_non_causal": head.sliding_window_non_causal,
        **sequential,
        **(confidence if sequential else {}),
        "transformer_layer_config": {
            "model_type": "qwen3",
            "num_hidden_layers": len(head.block_layers),
            "num_key_value_heads": head.kv_heads,
            **layer_config(head, layer.mlp.gate_proj.out_features, layer.self_attn.q_proj),
            **attention_config(
                [number in head.sliding_layers for number in range(len(head.block_layers))], head.sliding_window
            ),
        },
    }
