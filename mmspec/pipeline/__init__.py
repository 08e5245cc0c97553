"""What pipelines that are not of diffusers have in common with those that are: outputs, a device, and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch import Tensor, nn

from mmspec.arguments import check_device, shown
from mmspec.errors import ArgumentError

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(eq=False)
class Output(Mapping[str, Any]):
    """A data class that is also a mapping and a tuple: `output.seeds`, `output["seeds"]` and `output[2]` are the same.

    diffusers' `BaseOutput` and transformers' `ModelOutput` are used in the same ways.
    """

    def __getitem__(self, key: str | int | slice) -> Any:
        if not isinstance(key, str):
            return self.to_tuple()[key]
        if key not in list(self):
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (field.name for field in fields(self))

    def __len__(self) -> int:
        return len(fields(self))

    def to_tuple(self) -> tuple[Any, ...]:
        """The values, in the order of the attributes."""
        return tuple(getattr(self, name) for name in self)


class Arguments(dict[str, Any]):
    """Arguments by key and by attribute, like the configuration of a diffusers model."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def makes_audio(pipe: Any) -> bool:
    """Whether a pipeline generates audio: its `output_kind` is "audio"; without that attribute it makes images."""
    return getattr(pipe, "output_kind", "image") == "audio"


def has_classes(pipe: Any) -> bool:
    """Whether a pipeline generates from classes. A LlamaGen has either classes or texts, and the same call for both."""
    config = getattr(getattr(pipe, "transformer", None), "config", None)
    return "class_labels" in signature(pipe.__call__).parameters and getattr(config, "model_type", "c2i") == "c2i"


class ModelPipeline:
    """A pipeline whose attributes hold its modules, at any depth."""

    _elsewhere = (
        "it is not a pipeline of diffusers: device and dtype are arguments of mmspec.load, which also takes a model "
        "of transformers that has been changed"
    )

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(_weights(self)).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the floating-point weights of the model."""
        return next(each.dtype for each in _weights(self) if each.is_floating_point())

    def to(self, device: str | torch.device | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Moves the pipeline to a device, or converts its weights, or both; returns the pipeline itself.

        Args:
            device: Such as "cuda"; or the dtype, as for a module of torch.
            dtype: The type of floating-point weights, such as `torch.bfloat16`.

        Raises:
            ArgumentError: If the device cannot be used, or the weights cannot be converted.
        """
        if isinstance(device, torch.dtype) and dtype is None:
            return self.to(dtype=device)
        if device is not None:
            check_device(device)
        if dtype is not None and dtype not in DTYPES:
            names = ", ".join(map(str, DTYPES))
            raise ArgumentError(f"dtype={shown(dtype)} is not allowed; it is one of {names}")
        if dtype not in (None, self.dtype):
            self._convert(dtype)
        if device is not None and not isinstance(device, torch.dtype):
            move(self, torch.device(device))
        return self

    def _convert(self, dtype: torch.dtype) -> None:
        """Refused: some parts, such as codecs, keep their type."""
        raise ArgumentError(
            f"dtype={dtype} is not possible for a {type(self).__name__} that is loaded; pass it to mmspec.load"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{type(self).__name__} has no {name!r}; {self._elsewhere}", name=name, obj=self)

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Refused: these pipelines are loaded from the files that their models were published in."""
        raise ArgumentError(
            f"save_pretrained is not possible for a {type(self).__name__}: keep the files that mmspec.load read it from"
        )


def move(owner: object, device: torch.device) -> None:
    """Moves the modules and tensors that an object of mmspec holds, at any depth, to a device."""
    seen: set[int] = set()

    def moved(value: Any) -> Any:
        if isinstance(value, nn.Module | Tensor):
            return value.to(device)
        if isinstance(value, dict):
            value.update({key: moved(each) for key, each in value.items()})
        elif isinstance(value, list):
            value[:] = [moved(each) for each in value]
        elif _is_own(value) and id(value) not in seen:
            seen.add(id(value))
            for name, each in vars(value).items():
                object.__setattr__(value, name, moved(each))
        return value

    moved(owner)


def _weights(owner: object) -> Iterator[Tensor]:
    """The weights of the modules that an object holds, the first attribute first."""
    values = owner.values() if isinstance(owner, dict) else vars(owner).values()
    for value in values:
        if isinstance(value, nn.Module):
            yield from chain(value.parameters(), value.buffers())
        elif isinstance(value, dict) or _is_own(value):
            yield from _weights(value)


def _is_own(value: object) -> bool:
    return type(value).__module__.startswith("mmspec.") and hasattr(value, "__dict__") and not isinstance(value, type)
