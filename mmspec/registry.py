"""What can be named: models, drafters and acceptance rules, our own and those of installed plug-ins.

A plug-in declares entry points in the groups `mmspec.adapters`, `mmspec.drafters` and `mmspec.acceptance`. Nothing is
imported before it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mmspec import hub
from mmspec.errors import ArgumentError, ModelError, unknown_name


@dataclass(frozen=True)
class Info:
    """A named part: `summary` in one line, `exact` when the outcome keeps the target's law, `module:attribute`."""

    summary: str
    exact: bool
    where: str


_MODELS = {
    "shapes": Info("64x64 pictures of coloured shapes; ships with mmspec", True, "mmspec.vision.shapes.model:load")
}
_DRAFTERS = {
    "model": Info("a smaller model of the same vocabulary", True, "mmspec.drafters.model:ModelDrafter"),
    "table": Info("an n-gram table over left and upper neighbour", True, "mmspec.drafters.start:NGramTable"),
    "jacobi": Info("the window's own leftovers and start tokens", True, "mmspec.drafters.jacobi:Jacobi"),
}
_RULES = {"exact": Info("min(1, p/q) with the residual redraw", True, "mmspec.verify:exact")}


def models() -> dict[str, Info]:
    """Models that `mmspec.load` knows by name."""
    return _MODELS | _plugins("mmspec.adapters")


def drafters() -> dict[str, Info]:
    """Drafters; any of them is exact under an exact rule."""
    return _DRAFTERS | _plugins("mmspec.drafters")


def rules() -> dict[str, Info]:
    """Acceptance rules."""
    return _RULES | _plugins("mmspec.acceptance")


@cache
def _plugins(group: str) -> dict[str, Info]:
    return {e.name: Info(f"plug-in {e.value}", False, e.value) for e in entry_points(group=group)}


def resolve(info: Info) -> Any:
    """Imports what an entry points to."""
    module, _, attribute = info.where.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load(
    model: str = "shapes",
    *,
    tokenizer: str | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: Any = None,
) -> Any:
    """A pipeline by name, from the Hub, or from local files.

    **Arguments:**

    - `model`: a name (`mmspec ls models`); a folder that `save_pretrained` wrote; an original checkpoint, or a folder
      with one; a Hub id (`owner/repository`, or `owner/repository/file` for one file of it).
    - `tokenizer`: for an original checkpoint, its tokenizer's file or Hub id; without one a call gives tokens only.
    - `config`: for an original checkpoint, what its tensors cannot tell, under the original argument names.
    - `device`: where to put it.
    - `dtype`: a `torch.dtype`; None is float32.

    **Raises:** `UnknownNameError` for a model nobody knows, `ModelError` for files that are not what they claim to be,
    `ArgumentError` for a device that is not there or an option the model does not have.
    """
    import torch

    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch built without CUDA asserts
        raise ArgumentError(f"device={device!r} cannot be used: {str(error).splitlines()[0]}") from error
    dtype = dtype or torch.float32
    model = str(model)
    known = models()
    path = Path(model)
    if model not in known and not path.exists():
        fetched = hub.fetch(model)
        if fetched is None:
            raise unknown_name("model", model, known)
        path = fetched
    if model not in known:
        from mmspec.vision.llamagen.load import from_checkpoints, is_checkpoint

        if is_checkpoint(path):
            vq = None if tokenizer is None else (Path(tokenizer) if Path(tokenizer).exists() else hub.fetch(tokenizer))
            if tokenizer is not None and vq is None:
                raise ArgumentError(f"tokenizer={tokenizer!r} does not exist")
            return from_checkpoints(path, vq, config, device, dtype)
    for name, value in (("tokenizer", tokenizer), ("config", config)):
        if value is not None:
            raise ArgumentError(f"{name} was given, but {model!r} is complete; it goes with original checkpoints only")
    if model in known:
        make: Callable[..., Any] = resolve(known[model])
        return make(device=device, dtype=dtype)
    if not (path / "model_index.json").is_file():
        raise ModelError(f"model {model!r} is neither a saved pipeline (model_index.json) nor an original checkpoint")
    from safetensors import SafetensorError

    from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

    importlib.import_module("mmspec.vision.shapes.model")
    try:
        return LlamaGenPipeline.from_pretrained(path, dtype=dtype, low_cpu_mem_usage=False).to(device)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"model {model!r} is no pipeline that mmspec can load: {type(error).__name__}: {reason}"
        ) from None
