"""Cross-attention to encoded text, with its keys and values cached."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache, CacheLayerMixin

from mmspec.sampling.rows import PerRow


class TextLayer(CacheLayerMixin):
    """Keys and values of encoded text in one layer, [R, heads, S, head_dim], written once.

    Args:
        keys: Where the keys are written; None for new memory.
        values: Where the values are written.
    """

    ROWS = ("keys", "values")

    is_sliding = False

    def __init__(self, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        super().__init__()
        self.keys, self.values = keys, values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        if self.keys is None or self.values is None:
            shapes = torch.contiguous_format
            self.keys, self.values = (torch.empty_like(t, memory_format=shapes) for t in (key_states, value_states))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes the keys and values of a text, [R, heads, S, head_dim], and returns them."""
        self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        return self.keys.copy_(key_states), self.values.copy_(value_states)

    def get_seq_length(self) -> int:
        return self.keys.shape[2] if self.is_initialized and self.keys is not None else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1


class CrossAttention:
    """Encoded text, whose keys and values are computed once per layer and cached.

    Args:
        states: The encoder's hidden states [R, S, D].
        mask: [R, S], 0 or False on padding.

    Attributes:
        bias: [R, 1, 1, S], added to attention scores: 0, or the lowest number of the dtype on padding.
    """

    ROWS = ("states", PerRow("bias", fill=-torch.inf), "layers")  # a row does not see the slots of longer texts

    def __init__(self, states: Tensor, mask: Tensor) -> None:
        self.states = states
        self.bias = torch.zeros(mask.shape, dtype=states.dtype, device=states.device)
        self.bias = self.bias.masked_fill_(~mask.bool(), torch.finfo(states.dtype).min)[:, None, None]
        self._text = Cache(layer_class_to_replicate=TextLayer)
        self._cache: EncoderDecoderCache | None = None

    def with_self_attention(self, own: Any, batch_size: int) -> EncoderDecoderCache:
        """The KV cache of an encoder-decoder for the first `batch_size` rows; `own` is that of its self-attention."""
        if self._cache is None:
            self._cache = EncoderDecoderCache(own, self._text)
        if batch_size == len(self.states):
            return self._cache
        some = Cache(layer_class_to_replicate=TextLayer)
        for layer in self._text.layers:
            cut = copy(layer)
            cut.keys, cut.values = layer.keys[:batch_size], layer.values[:batch_size]
            some.layers.append(cut)
        return EncoderDecoderCache(own, some)

    @property
    def layers(self) -> tuple[TextLayer, ...]:
        """Keys and values of each layer."""
        return tuple(self._text.layers)

    def round_length(self, multiple: int) -> None:
        """Rounds S up to a multiple, by slots that no row attends to; called before the first call of the decoder.

        A row whose whole text is padding attends to all of it alike, so that these slots are hidden more than padding.
        """
        more = -self.states.shape[1] % multiple
        self.states = F.pad(self.states, (0, 0, 0, more))
        self.bias = F.pad(self.bias, (0, more), value=-torch.inf)

    def tensors(self) -> list[Tensor]:
        """What the decoder reads: states, bias, and the keys and values of each layer, once they are computed."""
        return [self.states, self.bias, *(store for layer in self._text.layers for store in (layer.keys, layer.values))]

    def take_over(self, tensors: list[Tensor], layers: int) -> int:
        """Moves to the tensors of an earlier text of the same shape; called before the first call of the decoder.

        Args:
            tensors: Begin with its `tensors`. States and bias are overwritten, keys and values by that call.
            layers: Of the decoder.

        Returns:
            How many of them there are.
        """
        states, bias, *stored = tensors[: 2 + 2 * layers]
        with torch.inference_mode():  # the tensors were made in it
            self.states, self.bias = states.copy_(self.states), bias.copy_(self.bias)
        self._text.layers[:] = map(TextLayer, stored[::2], stored[1::2])
        return 2 + 2 * layers
