"""Causal layers that continue from chunk to chunk, with a state of fixed size.

What a causal layer reads besides a chunk is what came last before it: a convolution its last inputs, attention with a
sliding window the last keys and values. At the beginning these are zeros, as the padding of the convolutions; attention
does not see them. The state is the same tensors from chunk to chunk, written in place, so that a CUDA graph of a chunk
serves every place in the audio. Streams of causal convolutions with a buffer for each layer: Rybakov et al. 2020, arXiv
2005.06720.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from mmspec.errors import ModelError
from mmspec.hf.cache_name import cache_name


class StreamState:
    """What the layers of a stream have read last; zeros at the beginning.

    Args:
        rows: Rows of the stream, B.
        device: Where its tensors are.
        given: The tensors of an earlier stream of the same layers and rows, which are used again as they are.

    Attributes:
        rows: B.
        tensors: All tensors, in the order in which layers have asked for them.
    """

    def __init__(self, rows: int, device: torch.device, given: Iterable[Tensor] = ()) -> None:
        self.rows, self.device = rows, device
        self.tensors: list[Tensor] = []
        self._given = list(given)

    def zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A new tensor [B, *shape] of the state."""
        if len(self.tensors) < len(self._given):
            made = self._given[len(self.tensors)]
        else:
            made = torch.zeros(self.rows, *shape, dtype=dtype, device=self.device)
        self.tensors.append(made)
        return made

    def clear(self) -> None:
        """Sets all tensors to zeros, as at the beginning."""
        for tensor in self.tensors:
            tensor.zero_()


def after_last(last: Tensor, new: Tensor, dim: int = -1) -> Tensor:
    """The last inputs followed by the new ones; the end of both becomes the last ones, in place."""
    both = torch.cat([last, new], dim=dim)
    last.copy_(both.narrow(dim, new.shape[dim], last.shape[dim]))
    return both


class StreamedConvolution(nn.Module):
    """A causal convolution of stride 1 after the inputs that came last, [B, C, n] to [B, D, n].

    Layers of transformers that have another cache for these pass None as `padding_cache`.
    """

    def __init__(self, conv: nn.Conv1d, state: StreamState) -> None:
        super().__init__()
        self.conv = conv
        before = (conv.kernel_size[0] - 1) * conv.dilation[0]
        self._last = state.zeros(conv.in_channels, before, dtype=conv.weight.dtype)

    def forward(self, x: Tensor, padding_cache: None = None) -> Tensor:
        y: Tensor = self.conv(after_last(self._last, x))
        return y


class StreamedTransposedConvolution(nn.Module):
    """A causal transposed convolution after the inputs that came last, [B, C, n] to [B, D, n * stride]."""

    def __init__(self, conv: nn.ConvTranspose1d, state: StreamState) -> None:
        super().__init__()
        self.conv = conv
        before = -(-conv.kernel_size[0] // conv.stride[0]) - 1
        self._last = state.zeros(conv.in_channels, before, dtype=conv.weight.dtype)

    def forward(self, x: Tensor, padding_cache: None = None) -> Tensor:
        y: Tensor = self.conv(after_last(self._last, x))
        return y.narrow(-1, self._last.shape[-1] * self.conv.stride[0], x.shape[-1] * self.conv.stride[0])


def streamed(module: nn.Module, state: StreamState) -> Any:
    """A module whose causal convolutions continue from call to call; it shares all weights with the original.

    Args:
        module: A convolution is a module with an attribute `conv` or `convtr`, which pads it or cuts it at the end.
        state: Of the stream.

    Raises:
        ModelError: If the original does not pad with zeros on the left alone.
    """
    conv = getattr(module, "conv", getattr(module, "convtr", None))
    if isinstance(conv, (nn.Conv1d, nn.ConvTranspose1d)):
        is_causal = getattr(module, "causal", True) and getattr(module, "pad_mode", "constant") == "constant"
        if not is_causal or getattr(module, "trim_right_ratio", 1.0) != 1.0:
            raise ModelError("the codec cannot be streamed: its convolutions are not causal and padded with zeros")
        if isinstance(conv, nn.ConvTranspose1d):
            return StreamedTransposedConvolution(conv, state)
        return StreamedConvolution(conv, state) if conv.kernel_size[0] > 1 else conv
    twin = copy.copy(module)
    if module._modules:
        vars(twin).pop("forward", None)  # a hook's, such as accelerate's, which runs the original's layers
    twin._modules = {name: child and streamed(child, state) for name, child in module._modules.items()}
    return twin


class SlidingLayer(CacheLayerMixin):
    """The last keys and values of one layer, [B, heads, window - 1, head_dim] both."""

    is_sliding = True

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise AssertionError("is initialized")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Returns the last keys and values and those of a chunk, and keeps the end of both."""
        assert self.keys is not None and self.values is not None
        return after_last(self.keys, key_states, dim=2), after_last(self.values, value_states, dim=2)

    def get_seq_length(self) -> int:
        return 0  # the position is on the device

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.keys is not None
        return self.keys.shape[2] + query_length, 0

    def get_max_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2]


class SlidingKeys(Cache):
    """The last keys and values of a transformer with a sliding window, and its position on the device.

    Args:
        transformer: A model of transformers all of whose layers have a sliding window.
        state: Of the stream.

    Raises:
        ModelError: If it has no sliding window.
    """

    def __init__(self, transformer: nn.Module, state: StreamState) -> None:
        config: Any = transformer.config
        self._name = cache_name(transformer)
        if not config.sliding_window:
            raise ModelError("the codec cannot be streamed: its transformer has no sliding window")
        self._before, dtype = int(config.sliding_window) - 1, next(transformer.parameters()).dtype
        shape = config.num_key_value_heads, self._before, config.head_dim
        self._position = state.zeros(1, dtype=torch.int64)
        count = range(config.num_hidden_layers)
        super().__init__(
            [SlidingLayer(state.zeros(*shape, dtype=dtype), state.zeros(*shape, dtype=dtype)) for _ in count]
        )

    def next(self, x: Tensor) -> dict[str, Any]:
        """The arguments with which the transformer reads the next positions, [B, n, D]."""
        count, at = x.shape[1], self._position
        places = torch.arange(count, device=x.device)
        keys = torch.arange(self._before + count, device=x.device)
        seen = (keys >= places[:, None]) & (keys <= places[:, None] + self._before)
        seen = seen & (keys >= self._before - at[:, :, None])  # the others are before the beginning
        mask = torch.zeros_like(seen, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)
        position_ids = at + places
        at += count
        return {
            "attention_mask": mask[:, None],
            "position_ids": position_ids,
            "use_cache": True,
            self._name: self,
        }
