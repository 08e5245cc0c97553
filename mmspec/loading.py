"""`mmspec.load`: from a name, a folder, a Hub id or a loaded model to a pipeline."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmspec import hub
from mmspec.errors import ArgumentError, ModelError, unknown_name
from mmspec.registry import Info, plugins, resolve

MODELS = {
    "shapes": Info("64x64 images of coloured shapes; ships with mmspec", "mmspec.vision.shapes.model:load"),
    "shapes-latent": Info(
        "the same, generated as vectors by a flow head; ships with mmspec", "mmspec.vision.shapes.latent.model:load"
    ),
    "spoken": Info("speech from a small vocabulary, two voices; ships with mmspec", "mmspec.audio.spoken.model:load"),
}


def models() -> dict[str, Info]:
    """Models that `mmspec.load` takes by name."""
    return MODELS | plugins("mmspec.models")


def check_device(device: Any) -> None:
    """Checks that a device is there.

    Raises:
        ArgumentError: For a device that is not there.
    """
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

    Args:
        model: A name (`mmspec ls models`); a folder that `save_pretrained` wrote, of a pipeline, or of a model of
            transformers and its processor; an original checkpoint, or a folder with one; a Hub id (`owner/repository`,
            or `owner/repository/file` for one file of it); a model of transformers itself.
        processor: For a model of transformers, its processor, or a folder or Hub id with it; None takes the one beside
            the model.
        tokenizer: The file or Hub id of what makes pixels of tokens, where the model comes without: for an original
            checkpoint its tokenizer, for Chameleon its VQGAN; without one a call gives tokens only. For a flat speech
            model its codec.
        config: What the files cannot tell: for an original checkpoint, under the original argument names; for Chameleon
            the `layout`, "anole" or "lumina"; for a flat speech model its `style`, "llasa" or "orpheus"; for CosyVoice
            and Chatterbox a `codec` and a `voice`; for all that speak a `draft_model` of the family, a folder, Hub id
            or "pair".
        drafter: A folder or Hub id of a drafter that was trained for the model (`mmspec train-drafter`).
        device: Where to put what is loaded; None is the CPU. A model that is loaded already stays where it is.
        dtype: A `torch.dtype`; None is float32.

    Raises:
        UnknownNameError: For a model nobody knows.
        ModelError: For files that are not what they claim to be.
        ArgumentError: For a device that is not there, a class of model that has no adapter, or an option the model does
            not have.
    """
    import torch

    if drafter is not None:
        pipe = load(model, processor=processor, tokenizer=tokenizer, config=config, device=device, dtype=dtype)
        add_drafter(pipe, drafter)
        return pipe
    if isinstance(model, torch.nn.Module):
        from mmspec.audio import load as audio
        from mmspec.vision.hf.from_pretrained import from_model

        for name, value in (("device", device), ("dtype", dtype)):
            if value is not None:
                raise ArgumentError(f"{name} was given with a model that is loaded already; move the model")
        if audio.is_speech_model(type(model).__name__):
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
        from mmspec.vision.hf.from_pretrained import from_folder, is_stage

        if audio.is_speech_folder(path):
            return audio.from_folder(path, processor, local_file(tokenizer), config, device, dtype)
        if is_stage(path) or architecture(path) is not None:
            return from_folder(path, processor, local_file(tokenizer), config, device, dtype)
        from mmspec.vision.mar.from_checkpoints import from_checkpoints as from_mar
        from mmspec.vision.mar.from_checkpoints import is_mar

        if is_mar(path):
            refuse_processor(processor, model)
            return from_mar(path, config, local_file(tokenizer), device=device, dtype=dtype)
        from mmspec.vision.llamagen.from_checkpoints import from_checkpoints, is_checkpoint

        if is_checkpoint(path):
            refuse_processor(processor, model)
            return from_checkpoints(path, local_file(tokenizer), config, device, dtype)
    refuse_processor(processor, model)
    for name, value in (("tokenizer", tokenizer), ("config", config)):
        if value is not None:
            raise ArgumentError(f"{name} was given, but {model!r} is complete; it goes with original checkpoints only")
    if model in known:
        make: Callable[..., Any] = resolve(known[model].where)
        return make(device=device, dtype=dtype)
    if not (path / "model_index.json").is_file():
        raise ModelError(f"model {model!r} is neither a saved pipeline (model_index.json) nor an original checkpoint")
    return saved_pipeline(path, model, device, dtype)


def saved_pipeline(path: Path, model: str, device: str, dtype: Any) -> Any:
    """A pipeline that its own `save_pretrained` wrote to the folder `path`, which the user called `model`.

    Raises:
        ModelError: When it is none of ours, or cannot be loaded.
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

    Raises:
        ArgumentError: When there is none, or the pipeline takes none.
        ModelError: When it does not fit.
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
    """A tokenizer's path, fetched from the Hub where it is none.

    Raises:
        ArgumentError: When it is neither.
    """
    if tokenizer is None:
        return None
    path = Path(tokenizer) if Path(tokenizer).exists() else hub.fetch(tokenizer)
    if path is None:
        raise ArgumentError(f"tokenizer={tokenizer!r} does not exist")
    return path


def refuse_processor(processor: Any, model: str) -> None:
    """Checks that no processor is given.

    Raises:
        ArgumentError: When a processor is given with what is no model of transformers.
    """
    if processor is not None:
        raise ArgumentError(f"processor was given, but {model!r} is no model of transformers; leave it out")
