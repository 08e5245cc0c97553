"""The first layers of transformers decoders, and decoders whose layers are called one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

# A layer and hidden states [R, W, D] to hidden states [R, W, D].
RunLayer = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class DecoderOutput:
    """The output of a decoder, with the field name of transformers.

    Attributes:
        last_hidden_state: [R, W, D], after the final norm.
    """

    last_hidden_state: Tensor


class DecoderLayers(ABC):
    """A decoder whose layers are called one by one; it is called as a transformers decoder is.

    For models whose `forward` does not take an attention mask [R, 1, W, end], or gives all rows the same positions.

    Args:
        layers: The layers, in order.
        norm: The final norm.

    Attributes:
        count: The number of layers.
        module: The module that they are part of, for decoders whose calls may be captured in CUDA graphs; or None. A
            call of them reads nothing else than that module, its arguments, and what their target has in `tensors`.
        plain_states: Whether hidden states between layers have the width D of features.
    """

    module: nn.Module | None = None
    plain_states = True

    def __init__(self, layers: Iterable[nn.Module], norm: Callable[[Tensor], Tensor]) -> None:
        self._layers = list(layers)
        self._norm = norm
        self.count = len(self._layers)
        self._inputs: dict[int, Callable[[Tensor], Tensor]] = {}  # by place in `_layers`

    @abstractmethod
    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        """The hidden states [R, W, D] that enter the first layer, and a function that runs a layer on them.

        Args:
            embeds: [R, W, D].
            mask: [R or 1, 1, W, end], added to attention scores.
            positions: int64 [R, W].
            cache: The KV cache, with the interface of transformers.
        """

    def only(self, layers: Iterable[int]) -> Self:
        """A decoder of some of the layers, by index, with the same weights."""
        part = copy(self)
        part._layers = [self._layers[n] for n in layers]
        part.count = len(part._layers)
        return part

    def hooked(self, layers: Sequence[int], inputs: Mapping[int, Callable[[Tensor], Tensor]]) -> Self:
        """As `only`, with functions that the inputs of some layers pass through; see `hooked_layers`."""
        part = self.only(layers)
        part._inputs = {layers.index(layer): of_input for layer, of_input in inputs.items()}
        return part

    def __call__(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        cache: Any = None,
        use_cache: bool = True,
        past_key_values: Any = None,
    ) -> DecoderOutput:
        cache = past_key_values if cache is None else cache  # the name before transformers 5.24
        hidden, run = self.enter(inputs_embeds, attention_mask, position_ids, cache)
        for place, layer in enumerate(self._layers):
            of_input = self._inputs.get(place)
            hidden = run(layer, hidden if of_input is None else of_input(hidden))
        return DecoderOutput(self._norm(hidden))


def count_layers(decoder: Any) -> int:
    """The number of a decoder's layers; 0 if its first layers cannot be run alone.

    They can for a `DecoderLayers` and for a module whose `layers` (GPT-2: `h`) run one after the other. A module whose
    `forward` accelerate has replaced runs all its layers in any case, as does one around a decoder, such as PEFT's.
    """
    if isinstance(decoder, DecoderLayers):
        return decoder.count
    hooked, name = "forward" in getattr(decoder, "__dict__", {}), _name_of_layers(decoder)
    return 0 if hooked or name is None else len(getattr(decoder, name))


def first_layers(decoder: Any, count: int) -> Callable[..., Any]:
    """The decoder without the layers after the first `count`; it shares the weights."""
    return chosen_layers(decoder, range(count))


def chosen_layers(decoder: Any, layers: Iterable[int]) -> Callable[..., Any]:
    """The decoder with some of its layers, by index, ascending; it shares the weights."""
    if isinstance(decoder, DecoderLayers):
        return decoder.only(layers)
    part: Any = copy(decoder)
    name = _name_of_layers(decoder)
    assert name is not None, "count_layers is 0"
    part._modules = {**decoder._modules, name: nn.ModuleList([getattr(decoder, name)[n] for n in layers])}
    part._compiled_call_impl = None  # the compiled call runs all layers
    return part


def hooked_layers(
    decoder: Any, layers: Sequence[int], inputs: Mapping[int, Callable[[Tensor], Tensor]]
) -> Callable[..., Any]:
    """As `chosen_layers`, with functions that the inputs of some layers pass through.

    Only this decoder calls them, through layers of its own: other threads may run the layers that it shares, and hooks
    that transformers installs to return hidden states stay in the model.

    Args:
        layers: The layers that run, by index, ascending.
        inputs: By layer that runs: its input [R, W, D] to what it reads instead.
    """
    if isinstance(decoder, DecoderLayers):
        return decoder.hooked(layers, inputs)
    part: Any = chosen_layers(decoder, layers)
    name = _name_of_layers(part)
    assert name is not None, "count_layers is 0"
    own = list(getattr(part, name))
    for layer, of_input in inputs.items():
        place = list(layers).index(layer)
        own[place] = _hooked(own[place], of_input)
    part._modules[name] = nn.ModuleList(own)
    return part


def _hooked(layer: nn.Module, of_input: Callable[[Tensor], Tensor]) -> nn.Module:
    def before(
        layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = of_input(args[0] if args else kwargs["hidden_states"])
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

    found: Any = copy(layer)
    for hooks in ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"):
        setattr(found, hooks, copy(getattr(found, hooks)))
    found.register_forward_pre_hook(before, with_kwargs=True)
    found._compiled_call_impl = None  # the compiled call has no hook
    return found


def _name_of_layers(decoder: Any) -> str | None:
    """The submodule of a decoder that has its layers; None if there is none, as in a module that wraps a decoder."""
    own = decoder._modules if isinstance(decoder, nn.Module) else {}
    return next((name for name in ("layers", "h") if isinstance(own.get(name), nn.ModuleList)), None)
