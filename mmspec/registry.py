"""What can be named: models, drafters and acceptance rules, our own and those of installed plug-ins.

A plug-in declares entry points in the groups `mmspec.adapters`, `mmspec.families`, `mmspec.drafters` and
`mmspec.acceptance`. Nothing is imported before it is used.
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
from mmspec.rules import RULES, Rule


@dataclass(frozen=True)
class Info:
    """A named part: `summary` in one line, `exact` when the outcome keeps the target's law, `module:attribute`."""

    summary: str
    exact: bool
    where: str


_MODELS = {
    "shapes": Info("64x64 pictures of coloured shapes; ships with mmspec", True, "mmspec.vision.shapes.model:load"),
    "shapes-latent": Info(
        "the same, drawn as vectors by a flow head; ships with mmspec", True, "mmspec.vision.shapes.latent.model:load"
    ),
    "spoken": Info(
        "speech from a small vocabulary, two voices; ships with mmspec", True, "mmspec.audio.spoken.model:load"
    ),
}
_DRAFTERS = {
    "model": Info("a smaller model of the same vocabulary", True, "mmspec.drafters.model:ModelDrafter"),
    "first-layers": Info("the target's own first layers", True, "mmspec.drafters.first_layers:FirstLayers"),
    "table": Info("an n-gram table over left and upper neighbour", True, "mmspec.drafters.start:NGramTable"),
    "followers": Info(
        "such a table of what was seen, with several guesses",
        True,
        "mmspec.drafters.follower_table:FollowerTable",
    ),
    "recycle": Info("such a table, made from the target's own laws", True, "mmspec.drafters.recycle:Recycle"),
    "eagle": Info("an EAGLE head on the target's features", True, "mmspec.drafters.eagle:EagleReader"),
    "medusa": Info("Medusa heads on the target's features", True, "mmspec.drafters.medusa:MedusaReader"),
    "jacobi": Info("the window's own leftovers and start tokens", True, "mmspec.drafters.jacobi:Jacobi"),
    "tree-model": Info("such a model, for trees of one shape", True, "mmspec.drafters.tree_model:TreeModelDrafter"),
    "tree-dynamic": Info(
        "such a model, for trees of its likeliest drafts", True, "mmspec.drafters.tree_dynamic:TreeDynamicDrafter"
    ),
    "tree-sampled": Info(
        "such a model, drawing nodes where they are worth most", True, "mmspec.drafters.tree_sampled:TreeSampledDrafter"
    ),
    "tree-table": Info(
        "several guesses of an n-gram table as a tree", True, "mmspec.drafters.tree_table:TreeTableDrafter"
    ),
}


def models() -> dict[str, Info]:
    """Models that `mmspec.load` knows by name."""
    return _MODELS | _plugins("mmspec.adapters")


def drafters() -> dict[str, Info]:
    """Drafters; any of them is exact under an exact rule."""
    return _DRAFTERS | _plugins("mmspec.drafters")


@cache
def rules() -> dict[str, Rule]:
    """Acceptance rules; a plug-in's entry point names a `mmspec.rules.Rule`."""
    return {**RULES, **{e.name: e.load() for e in entry_points(group="mmspec.acceptance")}}


def families() -> dict[str, Info]:
    """Classes of transformers, by name, that plug-ins teach `mmspec.generate`."""
    return _plugins("mmspec.families")


@cache
def _plugins(group: str) -> dict[str, Info]:
    return {e.name: Info(f"plug-in {e.value}", False, e.value) for e in entry_points(group=group)}


def resolve(info: Info) -> Any:
    """Imports what an entry points to: an attribute of a module, or the module itself."""
    module, _, attribute = info.where.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def check_device(device: Any) -> None:
    """**Raises:** `ArgumentError` for a device that is not there."""
    import torch

    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch built without CUDA asserts
        raise ArgumentError(f"device={device!r} cannot be used: {str(error).splitlines()[0]}") from error


def load(
    model: Any = "shapes",
    *,
    processor: Any = None,
    tokenizer: str | None = None,
    config: Mapping[str, Any] | None = None,
    drafter: str | Path | None = None,
    device: str | None = None,
    dtype: Any = None,
) -> Any:
    """A pipeline by name, from the Hub, from local files, or around a model that is loaded already.

    **Arguments:**

    - `model`: a name (`mmspec ls models`); a folder that `save_pretrained` wrote, of a pipeline, or of a model of
      transformers and its processor; an original checkpoint, or a folder with one; a Hub id (`owner/repository`, or
      `owner/repository/file` for one file of it); a model of transformers itself.
    - `processor`: for a model of transformers, its processor, or a folder or Hub id with it; None takes the one beside
      the model.
    - `tokenizer`: the file or Hub id of what makes pixels of tokens, where the model comes without: for an original
      checkpoint its tokenizer, for Chameleon its VQGAN; without one a call gives tokens only. For a flat speech model
      its codec.
    - `config`: what the files cannot tell: for an original checkpoint, under the original argument names; for Chameleon
      the `layout`, "anole" or "lumina"; for a flat speech model its `style`, "llasa" or "orpheus"; for CosyVoice and
      Chatterbox a `codec` and a `voice`; for all that speak a `draft_model` of the family, a folder, Hub id or "pair".
    - `drafter`: a folder or Hub id of a drafter that was trained for the model (`mmspec train-drafter`).
    - `device`: where to put what is loaded; None is the CPU. A model that is loaded already stays where it is.
    - `dtype`: a `torch.dtype`; None is float32.

    **Raises:** `UnknownNameError` for a model nobody knows, `ModelError` for files that are not what they claim to be,
    `ArgumentError` for a device that is not there, a class of model that has no adapter, or an option the model does
    not have.
    """
    import torch

    if drafter is not None:
        pipe = load(model, processor=processor, tokenizer=tokenizer, config=config, device=device, dtype=dtype)
        add_drafter(pipe, drafter)
        return pipe
    if isinstance(model, torch.nn.Module):
        from mmspec.audio import load as audio
        from mmspec.vision.hf.load import from_model

        for name, value in (("device", device), ("dtype", dtype)):
            if value is not None:
                raise ArgumentError(f"{name} was given with a model that is loaded already; move the model")
        if audio.speaks(type(model).__name__):
            return audio.from_model(model, processor, local_file(tokenizer), config)
        return from_model(model, processor, local_file(tokenizer), config)
    device = "cpu" if device is None else device
    check_device(device)
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
        from mmspec.audio import load as audio
        from mmspec.hf.folder import architecture
        from mmspec.vision.hf.load import from_folder, is_stage

        if audio.speaks_from(path):
            return audio.from_folder(path, processor, local_file(tokenizer), config, device, dtype)
        if is_stage(path) or architecture(path) is not None:
            return from_folder(path, processor, local_file(tokenizer), config, device, dtype)
        from mmspec.vision.mar import load as mar

        if mar.is_mar(path):
            refuse_processor(processor, model)
            return mar.from_checkpoints(path, config, local_file(tokenizer), device=device, dtype=dtype)
        from mmspec.vision.llamagen.load import from_checkpoints, is_checkpoint

        if is_checkpoint(path):
            refuse_processor(processor, model)
            return from_checkpoints(path, local_file(tokenizer), config, device, dtype)
    refuse_processor(processor, model)
    for name, value in (("tokenizer", tokenizer), ("config", config)):
        if value is not None:
            raise ArgumentError(f"{name} was given, but {model!r} is complete; it goes with original checkpoints only")
    if model in known:
        make: Callable[..., Any] = resolve(known[model])
        return make(device=device, dtype=dtype)
    if not (path / "model_index.json").is_file():
        raise ModelError(f"model {model!r} is neither a saved pipeline (model_index.json) nor an original checkpoint")
    return saved_pipeline(path, model, device, dtype)


def saved_pipeline(path: Path, model: str, device: str, dtype: Any) -> Any:
    """A pipeline that its own `save_pretrained` wrote to the folder `path`, which the user called `model`.

    **Raises:** `ModelError` when it is none of ours, or cannot be loaded.
    """
    from safetensors import SafetensorError

    from mmspec.hf.folder import read_json
    from mmspec.vision.hf.pipeline import TransformersPipeline
    from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

    importlib.import_module("mmspec.vision.shapes.model")
    from mmspec.vision.mar.pipeline import MARPipeline

    name = read_json(path / "model_index.json").get("_class_name")
    kind = {each.__name__: each for each in (TransformersPipeline, MARPipeline)}.get(name, LlamaGenPipeline)
    try:
        return kind.from_pretrained(path, dtype=dtype, low_cpu_mem_usage=False).to(device)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"model {model!r} is no pipeline that mmspec can load: {type(error).__name__}: {reason}"
        ) from None


def add_drafter(pipe: Any, drafter: str | Path) -> None:
    """Gives a pipeline a trained drafter, from a folder or the Hub.

    **Raises:** `ArgumentError` when there is none, or the pipeline takes none; `ModelError` when it does not fit.
    """
    path: Path | None = Path(drafter)
    if not Path(drafter).is_dir():
        path = hub.fetch(str(drafter))
    if path is None:
        raise ArgumentError(f"drafter={str(drafter)!r} is no folder; name one that `mmspec train-drafter` wrote")
    if not hasattr(pipe, "add_drafter"):
        raise ArgumentError(f"drafter={str(drafter)!r} was given, but a {type(pipe).__name__} takes none")
    pipe.add_drafter(path)


def local_file(tokenizer: str | None) -> Path | None:
    """A tokenizer's path, fetched from the Hub where it is none. **Raises:** `ArgumentError` when it is neither."""
    if tokenizer is None:
        return None
    path = Path(tokenizer) if Path(tokenizer).exists() else hub.fetch(tokenizer)
    if path is None:
        raise ArgumentError(f"tokenizer={tokenizer!r} does not exist")
    return path


def refuse_processor(processor: Any, model: str) -> None:
    """**Raises:** `ArgumentError` when a processor is given with what is no model of transformers."""
    if processor is not None:
        raise ArgumentError(f"processor was given, but {model!r} is no model of transformers; leave it out")
