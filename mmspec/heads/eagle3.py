"""The EAGLE-3 head (Li et al. 2025, arXiv 2503.01840): one decoder layer on features of several layers of the target.

The hidden states of a low, a middle and a high layer are fused into one feature per token. The input of a slot is its
token and the fused feature that the token was sampled from; at draft tokens the head's own output takes the place of
the fused feature. Unlike the head of EAGLE-1, it has its own norm and LM head, over all tokens of the target or over a
smaller draft vocabulary. Tokens outside of it are never drafted: their probability is 0 in the draft distribution.

Parameter names and shapes are those of the class `Eagle3DraftModel` of the package `speculators`, which vLLM runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.attention import Attention, KeysValues, unroll
from mmspec.heads.draft_vocabulary import expand, register_vocabulary
from mmspec.heads.head import Head
from mmspec.heads.layers import MLP, attention_sizes, check_sizes, norm
from mmspec.heads.rotary import MAX_POSITIONS, Rotary, rotary_sizes


class Eagle3Layer(nn.Module):
    def __init__(
        self,
        dim: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        bias: bool,
        qk_norm: bool,
        norm_before_residual: bool,
    ) -> None:
        super().__init__()
        self.self_attn = Attention(2 * dim, dim, heads, kv_heads, head_dim, eps, bias, bias, qk_norm=qk_norm)
        self.mlp = MLP(dim, hidden)
        self.hidden_norm = nn.RMSNorm(dim, eps=eps)
        self.input_layernorm = nn.RMSNorm(dim, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(dim, eps=eps)
        self.norm_before_residual = norm_before_residual

    def project(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The residual [R, W, D], and queries, keys and values, each [R, heads, W, head_dim]."""
        normed = norm(self.hidden_norm, features)
        x = torch.cat([norm(self.input_layernorm, embedded), normed], dim=-1)
        residual = normed if self.norm_before_residual else features
        return residual, self.self_attn.queries(x), *self.self_attn.keys_values(x)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer after attention; `attended` [R, heads, W, head_dim] is the attention output."""
        x = x + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(norm(self.post_attention_layernorm, x))


class Eagle3Head(Head):
    """An EAGLE-3 head. Recipes that draft with an EAGLE head, such as `eagle` and `eagle-2`, run it too.

    Token i of the sequence has slot `prefix + i`, as in `mmspec.heads.eagle.EagleHead`.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's features and of the layer.
        intermediate_size: Width of the MLP.
        num_attention_heads: Number of attention heads.
        num_key_value_heads: Number of heads of keys and values; None for `num_attention_heads`.
        head_dim: Width of a head; None for D divided by the number of heads.
        layer_ids: The target's layers whose hidden states are fused: n is the output of its first n layers. None for
            three that depend on the target's depth, see `layers_of`.
        draft_vocab_size: Size of the draft vocabulary; None for V.
        qk_norm: Whether queries and keys are normalized, as in Qwen3.
        norm_before_residual: Whether the residual is the normalized feature.
        norm_before_fc: Whether the concatenated hidden states are normalized before they are fused.
        fc_norm: Whether the hidden states of each layer are normalized before they are fused.
        norm_output: Whether draft tokens read the normalized output.
        rms_norm_eps: Epsilon of the RMS norms.
        rope_theta: Base of the rotary embedding.
        attention_bias: Whether the projections of the attention have biases.
        grid_size: Tokens per image side, for a 2-D rotary embedding; None for a 1-D one.
        prefix: Number of prompt slots that the head reads before the one that token 0 was sampled from.
        max_position_embeddings: Number of slots of a 1-D rotary embedding; unused with `grid_size`.
        sliding_window: Slots that a committed token attends to, its own included. A draft token attends to those of the
            last committed one, and to the drafts on its path. None for all.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "eagle"

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_attention_heads: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        layer_ids: Sequence[int] | None = None,
        draft_vocab_size: int | None = None,
        qk_norm: bool = False,
        norm_before_residual: bool = False,
        norm_before_fc: bool = False,
        fc_norm: bool = False,
        norm_output: bool = False,
        rms_norm_eps: float = 1e-6,
        rope_theta: float = 10000.0,
        attention_bias: bool = False,
        grid_size: int | None = None,
        prefix: int = 0,
        max_position_embeddings: int = 2048,
        sliding_window: int | None = None,
    ) -> None:
        super().__init__()
        kv_heads, head_dim = attention_sizes(hidden_size, num_attention_heads, num_key_value_heads, head_dim)
        drafted = vocab_size if draft_vocab_size is None else draft_vocab_size
        check_sizes(
            [
                ("draft_vocab_size", drafted, 1, vocab_size),
                ("sliding_window", 1 if sliding_window is None else sliding_window, 1, MAX_POSITIONS),
                *rotary_sizes(grid_size, prefix, max_position_embeddings),
            ]
        )
        if norm_before_fc and fc_norm:
            raise ArgumentError("norm_before_fc and fc_norm exclude each other")
        self.vocab_size = vocab_size
        self.draft_vocab_size = drafted
        self.hidden_size = hidden_size
        self.layer_ids = None if layer_ids is None else tuple(layer_ids)
        self.heads = kv_heads
        self.head_dim = head_dim
        self.prefix = prefix
        count = 3 if self.layer_ids is None else len(self.layer_ids)
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.fc = nn.Linear(count * hidden_size, hidden_size, bias=False)
        layer = Eagle3Layer(
            hidden_size,
            intermediate_size,
            num_attention_heads,
            kv_heads,
            self.head_dim,
            rms_norm_eps,
            attention_bias,
            qk_norm,
            norm_before_residual,
        )
        self.layers = nn.ModuleList([layer])
        self.norm = nn.RMSNorm(hidden_size, eps=rms_norm_eps)
        self.lm_head = nn.Linear(hidden_size, drafted, bias=False)
        self.input_norm = nn.RMSNorm(count * hidden_size, eps=rms_norm_eps) if norm_before_fc else None
        norms = [nn.RMSNorm(hidden_size, eps=rms_norm_eps) for _ in range(count)]
        self.fc_norm = nn.ModuleList(norms) if fc_norm else None
        self.d2t: Tensor | None
        self.t2d: Tensor | None
        register_vocabulary(self, vocab_size, drafted)
        self.norm_output = norm_output
        self.sliding_window = sliding_window
        self.grid_size, self.max_position_embeddings, self.rope_theta = grid_size, max_position_embeddings, rope_theta
        self.rotary = Rotary(self.head_dim, rope_theta, grid_size, prefix, max_position_embeddings, before="identity")

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def layer(self) -> Eagle3Layer:
        """The decoder layer."""
        layer = self.layers[0]
        assert isinstance(layer, Eagle3Layer)
        return layer

    def layers_of(self, layers: int, last: int | None = None) -> tuple[int, ...]:
        """The layers whose hidden states are fused, for a target of `layers` layers.

        Args:
            layers: The number of layers.
            last: The last layer that the target can collect, where it has more than its decoder's; None: `layers`.

        Raises:
            ModelError: If the target is not as deep.
        """
        # The default of vLLM and of `speculators`, for targets deep enough.
        low, high = min(2, layers), max(layers - 3, 0)
        found = (low, layers // 2, high) if self.layer_ids is None else self.layer_ids
        if max(found) > (layers if last is None else last) or min(found) < 0:
            raise ModelError(f"drafter reads layers {list(found)}, and the model has {layers}; it is for another model")
        return found

    def init_weights(self, std: float = 0.02) -> None:
        """Initializes weights for training; the layer starts as the identity."""
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=std)

    def fuse(self, hidden: Tensor) -> Tensor:
        """Fused features [R, W, D] of the hidden states of `layer_ids`, concatenated, [R, W, layers * D]."""
        hidden = hidden.to(self.dtype)
        if self.input_norm is not None:
            hidden = norm(self.input_norm, hidden)
        if self.fc_norm is not None:
            norms = [layer for layer in self.fc_norm if isinstance(layer, nn.RMSNorm)]
            chunks = hidden.chunk(len(norms), dim=-1)
            hidden = torch.cat([norm(layer, chunk) for layer, chunk in zip(norms, chunks, strict=True)], dim=-1)
        return self.fc(hidden)

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits [R, W, V] of outputs [R, W, D]; -inf for tokens that are not in the draft vocabulary."""
        z = self.lm_head(outputs if self.norm_output else norm(self.norm, outputs))
        return expand(z, self.d2t, self.vocab_size)

    def project(self, tokens: Tensor, features: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, KeysValues]:
        """The residual [R, W, D], the rotated queries, and keys with values, each [R, heads, W, head_dim].

        Args:
            tokens: int64 [R, W].
            features: Fused features that the tokens were sampled from, or outputs of the head, [R, W, D].
            slots: Slots of the tokens, int64 [R, W].
        """
        x, q, k, v = self.layer.project(self.embed_tokens(tokens), features.to(self.dtype))
        angles = self.rotary.at(slots)
        return x, self.rotary.rotate(q, angles).to(v.dtype), (self.rotary.rotate(k, angles).to(v.dtype), v)

    def finish(self, x: Tensor, q: Tensor, cache: KeysValues, bias: Tensor | None) -> Tensor:
        """The output after each token, [R, W, D], which draft tokens read and `logits` takes.

        Args:
            x: From `project`.
            q: From `project`.
            cache: Keys and values of all slots that are attended to.
            bias: Attention bias, 0 or -inf; None to attend to all of `cache`.
        """
        gqa = q.shape[1] != cache[0].shape[1]
        return self._output(x, F.scaled_dot_product_attention(q, *cache, attn_mask=bias, enable_gqa=gqa))

    def _output(self, x: Tensor, attended: Tensor) -> Tensor:
        out = self.layer.finish(x, attended)
        return norm(self.norm, out) if self.norm_output else out

    def unroll(self, tokens: Tensor, hidden: Tensor, depth: int) -> list[Tensor]:
        """Outputs at each depth of drafts that begin at every slot, for training; see `EagleHead.unroll`.

        The head is trained on its own outputs, as the paper's training-time test does.

        Args:
            tokens: Tokens of all slots from the first on, int64 [R, S].
            hidden: Hidden states of `layer_ids` that the tokens were sampled from, [R, S, layers * D].
            depth: Number of depths.

        Returns:
            `depth` tensors [R, S, D]. At depth d the first d slots have no draft; their values are meaningless.
        """
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        fused = self.fuse(hidden)
        return unroll(
            lambda features: self.project(tokens, features, slots), self._output, fused, depth, self.sliding_window
        )
