"""Models that are saved in diffusers' format and can be loaded without importing diffusers.

The import of diffusers takes longer than an image of an embedded model. Classes that derive from `Component` are
modules of torch; each has a subclass that is also a `diffusers.ModelMixin`, for pipelines of diffusers.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from mmspec.errors import ModelError
from mmspec.files.documents import read_object
from mmspec.files.inputs import check_regular
from mmspec.pipeline import Arguments

WEIGHTS_NAME = "diffusion_pytorch_model.safetensors"

F = TypeVar("F", bound=Callable[..., None])


def stores_arguments(init: F) -> F:
    """Makes a constructor of a `Component` store its arguments, defaults included, in `config`."""
    signature = inspect.signature(init)

    @wraps(init)
    def storing(self: Component, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        self.register_to_config(**dict(list(bound.arguments.items())[1:]))
        init(self, *args, **kwargs)

    return cast(F, storing)


class Component(nn.Module):
    """A module whose `config` has the arguments of its constructor; see `stores_arguments`.

    Attributes:
        saved_as: The class in the config.json of a saved one: its subclass that is a model of diffusers.
    """

    saved_as: ClassVar[str]

    def register_to_config(self, **arguments: Any) -> None:
        """Stores arguments of the constructor; diffusers' `ConfigMixin` has a method of the same name."""
        self._arguments = Arguments(arguments)

    @property
    def config(self) -> Any:
        """The arguments of the constructor, by key and by attribute."""
        return self._arguments

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(chain(self.parameters(), self.buffers())).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the floating-point weights."""
        first = next(chain(self.parameters(), self.buffers())).dtype
        if first.is_floating_point:
            return first
        return next((t.dtype for t in chain(self.parameters(), self.buffers()) if t.is_floating_point()), first)

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Saves the component in the layout of diffusers.

        Args:
            save_directory: The folder, which is created.
        """
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"_class_name": self.saved_as, **self.config}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, folder / WEIGHTS_NAME)

    @classmethod
    def from_folder(cls, folder: str | Path, dtype: torch.dtype = torch.float32) -> Self:
        """Loads a component that `save_pretrained` of diffusers has saved, for inference.

        Args:
            folder: The folder with `config.json` and the weights in one file of safetensors.
            dtype: The type of floating-point weights.

        Raises:
            ModelError: If files are missing or damaged, or do not fit this class.
        """
        folder = Path(folder)
        try:
            config = read_object(folder / "config.json")
            module = cls(**{name: value for name, value in config.items() if not name.startswith("_")}).to(dtype)
            check_regular(folder / WEIGHTS_NAME)
            module.load_state_dict(load_file(folder / WEIGHTS_NAME))
        except (OSError, ValueError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"folder {str(folder)!r} does not contain a {cls.__name__}: {reason}") from None
        return module.eval()
