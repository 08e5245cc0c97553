"""Layers of aMUSEd that reuse what they computed in earlier steps (dKV-Cache, arXiv 2505.15781; ReCAP, 2505.19089).

Between two whole steps the layers run at the places without a token, and at those that got theirs in the last step;
all other places keep their keys, values and features. The delay of one step is dKV-Cache's: a place changes most when
its token comes. The convolutions before and after the layers are cheap and always run at all places. What is reused
belongs to an earlier state, so that the distributions differ from the model's own; with `refresh=1` they do not.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers import UVit2DModel
from diffusers.models.embeddings import get_timestep_embedding
from torch import Tensor

from mmspec.errors import ModelError


class StepCache:
    """What the layers of one batch computed, for R rows (with guidance, those of both kinds) of N places.

    Args:
        rows: R.
        refresh: Every this many steps all places are computed.

    Attributes:
        computed: Places that the layers have run at.
        places: Places that they would have run at without reuse.

    Raises:
        ModelError: If the model joins several tokens to one place.
    """

    def __init__(self, model: UVit2DModel, rows: int, refresh: int) -> None:
        if model.config.downsample:
            raise ModelError(
                "this aMUSEd joins 2 x 2 tokens to a place, whose features cannot be reused; use refresh=1"
            )
        self._model, self._rows, self._refresh = model, rows, refresh
        self._features: Tensor | None = None  # [R, N, D], the output of the last layer
        self._keys: dict[int, tuple[Tensor, ...]] = {}  # [R, N, D] of each layer's keys and values
        self._before: Tensor | None = None  # bool [R, N], places without a token at the last call
        self.computed = self.places = 0

    def logits(
        self, index: Tensor, step: int, states: Tensor, missing: Tensor, hidden: Tensor, pooled: Tensor, micro: Tensor
    ) -> Tensor:
        """The model's output [r, V, height, width], as of `UVit2DModel.forward`.

        Args:
            index: int64 [r], the rows of the cache, all at the same step.
            step: The step, from 0.
            states: int64 [r, height, width].
            missing: bool [r, N], the places without a token.
            hidden: [r, T, C], the texts.
            pooled: [r, C].
            micro: [r, 5].
        """
        model: Any = self._model
        text = model.encoder_proj_layer_norm(model.encoder_proj(hidden))
        numbers = get_timestep_embedding(
            micro.flatten(), model.config.micro_cond_encode_dim, flip_sin_to_cos=True, downscale_freq_shift=0
        )
        given = torch.cat([pooled, numbers.reshape(len(states), -1)], dim=1).to(model.dtype)
        condition = model.cond_embed(given).to(text.dtype)
        call = {"pooled_text_emb": condition, "encoder_hidden_states": text, "cross_attention_kwargs": None}
        x = model.down_block(model.embed(states), **call)
        height, width = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2)
        x = model.project_to_hidden(model.project_to_hidden_norm(x))
        x = self._layers(index, step, missing, x, text, condition)
        x = model.project_from_hidden(model.project_from_hidden_norm(x))
        x = x.transpose(1, 2).unflatten(2, (height, width))
        out: Tensor = model.mlm_layer(model.up_block(x, **call))
        return out

    def _layers(self, index: Tensor, step: int, missing: Tensor, x: Tensor, text: Tensor, condition: Tensor) -> Tensor:
        """Features [r, N, D] after all layers, of features [r, N, D] before them."""
        count, places = x.shape[:2]
        if self._before is None or self._features is None:
            self._before = missing.new_ones(self._rows, places)
            self._features = x.new_zeros(self._rows, places, x.shape[2])
        active = missing | self._before[index]
        if step % self._refresh == 0:
            active = torch.ones_like(active)
        self._before[index] = missing
        counts = active.sum(1, keepdim=True)
        most = int(counts.max())
        chosen = active.float().sort(dim=1, descending=True, stable=True).indices[:, :most]
        # Rows with fewer active places repeat one of them, so that no row depends on the others.
        chosen = torch.where(torch.arange(most, device=x.device) < counts, chosen, chosen[:, :1])
        self.computed += int(counts.sum())
        self.places += count * places
        rows = index[:, None]
        h = x.gather(1, chosen[..., None].expand(-1, -1, x.shape[2]))
        # The sums of diffusers' block are written out here: a processor set on the layer would be one for all threads.
        layers: Any = self._model.transformer_layers
        for number, layer in enumerate(layers):
            h = h + self._attend(number, layer.attn1, layer.norm1(h, condition), rows, chosen, places)
            h = h + layer.attn2(layer.norm2(h, condition), encoder_hidden_states=text)
            h = h + layer.ff(layer.norm3(h, condition))
        self._features[rows, chosen] = h
        return self._features[index]

    def _attend(self, number: int, attn: Any, x: Tensor, rows: Tensor, chosen: Tensor, places: int) -> Tensor:
        """Self-attention [r, n, D] of layer `number`: queries of the chosen places, keys and values of all `places`."""
        k, v = attn.to_k(x), attn.to_v(x)
        if number not in self._keys:
            self._keys[number] = tuple(part.new_zeros(self._rows, places, part.shape[2]) for part in (k, v))
        for kept, fresh in zip(self._keys[number], (k, v), strict=True):
            kept[rows, chosen] = fresh
        known = (kept[rows[:, 0]] for kept in self._keys[number])
        q, k, v = (part.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for part in (attn.to_q(x), *known))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        result: Tensor = attn.to_out[1](attn.to_out[0](out.to(q.dtype)))
        return result
