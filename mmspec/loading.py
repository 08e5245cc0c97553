"""`mmspec.load`: returns a pipeline for a model name, a folder, a Hub id or a loaded model."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from mmspec import hub
from mmspec.arguments import check_device, refused, shown
from mmspec.errors import ArgumentError, ModelError, UnknownNameError, did_you_mean, unknown_name
from mmspec.files.inputs import check_files
from mmspec.registry import Info, by_name, component
from mmspec.versions import warn_untested

log = logging.getLogger(__name__)

MODELS = {
    "shapes": Info("64x64 images of colored shapes; ships with mmspec", "mmspec.vision.shapes.model:load"),
    "shapes-latent": Info(
        "the same images, generated as vectors by a flow head; ships with mmspec",
        "mmspec.vision.shapes.latent.model:load",
    ),
    "scenes": Info(
        "96x96 images of up to four shapes and digits on textures; ships with mmspec", "mmspec.vision.scenes.model:load"
    ),
    "spoken": Info("speech from a small vocabulary, two voices; ships with mmspec", "mmspec.audio.spoken.model:load"),
}
DTYPES = ("float32", "float16", "bfloat16", "float64")
SHORT_DTYPES = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}


def models() -> dict[str, Info]:
    """The models that `mmspec.load` accepts by name."""
    return by_name(MODELS, "mmspec.models")


# Arguments of other libraries' loaders -> what to do instead.
ELSEWHERE = {
    "torch_dtype": "use dtype=",
    "device_map": "use device=, or load the model with transformers and pass it: mmspec.load(model, processor=...)",
    "use_auth_token": "use token=",
    "cache_folder": "use cache_dir=",
    "local_files_only": "set the environment variable HF_HUB_OFFLINE=1",
    "force_download": "delete the repository from the cache with `hf cache delete`",
    "draft_model": "use config={'draft_model': ...}, or pass draft_model to the pipeline's class",
    "trust_remote_code": "mmspec runs no code from repositories; leave it out",
    "recipe": "pass it to the call: pipe(prompt, recipe=...)",
    "seed": "pass it to the call: pipe(prompt, seed=...)",
    "generator": "pass it to the call: pipe(prompt, generator=...)",
    "subfolder": "pass the local path of the folder as model",
    "variant": "files without a variant are loaded; convert with dtype=",
    "vae": "use tokenizer=",
    "vqvae": "use tokenizer=",
    "codec": "use tokenizer=, or config={'codec': ...}",
    "style": "use config={'style': ...}",
    "layout": "use config={'layout': ...}",
    "voice": "use config={'voice': ...}",
}
# Arguments of `from_pretrained` that change the model that transformers builds.
OF_TRANSFORMERS = (
    "attn_implementation", "quantization_config", "load_in_8bit", "load_in_4bit", "low_cpu_mem_usage", "max_memory",
    "offload_folder", "tp_plan", "use_safetensors", "adapter_kwargs",
)  # fmt: skip


def refuse_unknown(unknown: Mapping[str, object]) -> None:
    """Checks that there are no unknown arguments.

    Raises:
        ArgumentError: If there is one; it names what to use instead.
    """
    for name in unknown:
        if name in ELSEWHERE:
            hint = f"; {ELSEWHERE[name]}"
        elif name in OF_TRANSFORMERS:
            hint = "; load the model with transformers and pass it: mmspec.load(model, processor=...)"
        else:
            own = [each for each in inspect.signature(load).parameters if each != "unknown"]
            hint = f"{did_you_mean(name, own)}; its arguments are {', '.join(own)}"
        raise ArgumentError(f"mmspec.load has no argument {name!r}{hint}")


def check_layout(repository: str, folder: Path | None, files: Sequence[str]) -> None:
    """Checks that mmspec reads a repository, before its weights are downloaded; see `refuse_layout`."""
    from mmspec.audio.load import PUBLISHED, SPEECH_ADAPTERS, published
    from mmspec.hf.adapters import adapters
    from mmspec.hf.folder import architecture
    from mmspec.hub.published import refuse_layout
    from mmspec.vision.hf.from_pretrained import ALIASES

    classes = {*adapters(), *SPEECH_ADAPTERS, *PUBLISHED, *ALIASES}
    name = None if folder is None else published(folder) or architecture(folder)
    refuse_layout(repository, files, folder, name, classes)


def preferred_weights(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    if not config or "language" not in config:
        return ()
    from mmspec.audio.load import preferred_weights

    return preferred_weights(config)


def read_dtype(dtype: Any) -> Any:
    """A dtype of weights, by name, as a `torch.dtype`; None, "auto" and a `torch.dtype` as they are.

    Raises:
        ArgumentError: If it is not a dtype that models can compute in.
    """
    import torch

    if dtype is None or (isinstance(dtype, torch.dtype) and str(dtype).removeprefix("torch.") in DTYPES):
        return dtype
    near = ""
    if isinstance(dtype, str):
        name = dtype.strip().lower().removeprefix("torch.")
        name = SHORT_DTYPES.get(name, name)
        if name == "auto" or name in DTYPES:
            return name if name == "auto" else getattr(torch, name)
        near = did_you_mean(name, DTYPES)
    raise ArgumentError(f"dtype={shown(dtype)} is not allowed{near}; it is one of auto, {', '.join(DTYPES)}")


def load(
    model: Any = "shapes",
    *,
    processor: Any = None,
    tokenizer: str | None = None,
    config: Mapping[str, Any] | None = None,
    drafter: str | Path | None = None,
    device: str | None = None,
    dtype: Any = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    **unknown: object,
) -> Any:
    """Returns a pipeline for a named model, a Hub repository, local files or a loaded model.

    Of a Hub repository, its description is downloaded first: one that mmspec cannot read is refused before its weights
    are downloaded, and only the files that are used are.

    Args:
        model: A name (see `mmspec ls models`); a folder written by `save_pretrained`, of a pipeline or of a
            transformers model with its processor; an original checkpoint, or a folder with one; a Hub id
            (`owner/repository`, or `owner/repository/file` for one file); a loaded transformers model.
        processor: The processor of a transformers model, or a folder or Hub id with it; None for the one stored with
            the model.
        tokenizer: The file or Hub id of the image tokenizer, if the model comes without: the tokenizer of an original
            checkpoint, the VQGAN of Chameleon, or the folder of the video tokenizer of Cosmos. Without it a call
            returns tokens only. For a flat speech model, its codec.
        config: Settings that the files do not contain. For an original checkpoint: the original arguments, by name. For
            Chameleon: `layout`, "anole" or "lumina"; for a flat image model: `layout`, such as "simplear" or "liquid".
            For a flat speech model: `style`, such as "llasa" or "kani" (docs/models/speech.md lists them).
            For CosyVoice and Chatterbox: `codec` and `voice`; for Chatterbox Multilingual: `language`, such as "fr".
            For all speech models: `draft_model`, a folder or Hub id with a model of the same family, or "pair"; for
            Cosmos: `draft_model`.
        drafter: A folder or Hub id of a drafter that was trained for the model (`mmspec train-drafter`).
        device: The device to load to; None for the CPU. Not allowed with a loaded model.
        dtype: A `torch.dtype` or its name; "auto" for that of the files; None for float32. Not allowed with a loaded
            model.
        revision: The branch, tag or commit of the model's Hub repository; None for the main branch.
        cache_dir: The folder that downloads are cached in; None for the Hub client's.
        token: An access token for private and gated repositories; None for the one that `hf auth login` has stored,
            False for none.
        **unknown: Refused, with the argument that does what was meant.

    Raises:
        UnknownNameError: If the model is unknown.
        ModelError: If files are missing, damaged or of another model.
        ArgumentError: If the device cannot be used, the model class has no adapter, the model does not have an option,
            or an argument is unknown.
    """
    warn_untested()
    refuse_unknown(unknown)
    check_arguments(model, tokenizer, config, drafter)
    start = time.perf_counter()
    with hub.hub_access(hub.HubAccess(cache_dir, token, preferred_weights(config))):
        pipe = load_model(model, processor, tokenizer, config, device, read_dtype(dtype), revision)
        if drafter is not None:
            add_drafter(pipe, drafter)
    named = model if isinstance(model, str | PathLike) else type(model).__name__
    log.info("loaded %s as %s in %.1f s", named, type(pipe).__name__, time.perf_counter() - start)
    return pipe


def load_model(
    model: Any,
    processor: Any,
    tokenizer: str | None,
    config: Mapping[str, Any] | None,
    device: str | None,
    dtype: Any,
    revision: str | None,
) -> Any:
    """A pipeline without a trained drafter; the arguments are those of `load`."""
    import torch

    if isinstance(model, torch.nn.Module):
        from mmspec.audio import load as audio
        from mmspec.hf.adapters import is_plugin
        from mmspec.vision.hf.from_pretrained import from_model, processor_of_model

        for name, value in (("device", device), ("dtype", dtype)):
            if value is not None:
                raise ArgumentError(f"{name} was given with a loaded model; move or convert the model instead")
        if revision is not None:
            raise ArgumentError(f"revision={revision!r} was given with a loaded model; leave it out")
        kind = type(model).__name__
        processor = processor_of_model(processor, kind, config)
        of_speech = audio.is_speech_model(kind) and not is_plugin(model)
        if of_speech and not is_flat_image_model(kind, config, published=False):
            return audio.from_model(model, processor, local_file(tokenizer), config)
        return from_model(model, processor, local_file(tokenizer), config)
    device = "cpu" if device is None else device
    check_device(device)
    dtype = dtype or torch.float32
    model = str(model)
    known = models()
    path = Path(model)
    if model not in known:
        from mmspec.hub.published import refuse_infinity, refuse_original

        refuse_infinity(model)
    if model not in known and not exists(path):
        refuse_original(model)
        fetched = hub.fetch(model, revision, check_layout)
        if fetched is None:
            raise missing_path(model, known) if "/" in model else unknown_name("model", model, known)
        path = fetched
    elif revision is not None:
        raise ArgumentError(f"revision={revision!r} was given, but {model!r} is not a Hub id; leave it out")
    if model not in known:
        check_files(path, f"model={model!r}")
        from mmspec.audio import load as audio
        from mmspec.hf.folder import architecture
        from mmspec.vision.cosmos_ar.checkpoint import from_checkpoints as from_cosmos
        from mmspec.vision.cosmos_ar.checkpoint import is_cosmos_ar
        from mmspec.vision.hf.from_pretrained import from_folder, is_glm_pipeline
        from mmspec.vision.hf.original_chameleon import is_original_chameleon

        if is_cosmos_ar(path):
            refuse_processor(processor, model)
            return from_cosmos(path, local_file(tokenizer), config, device, dtype)
        if audio.is_speech_folder(path) and not is_flat_image_model(architecture(path), config, published=True):
            return audio.from_folder(path, processor, local_file(tokenizer), config, device, dtype)
        if is_glm_pipeline(path) or is_original_chameleon(path) or architecture(path) is not None:
            return from_folder(path, processor, local_file(tokenizer), config, device, dtype)
        from mmspec.vision.mar.from_checkpoints import from_checkpoints as from_mar
        from mmspec.vision.mar.from_checkpoints import is_mar

        if is_mar(path):
            refuse_processor(processor, model)
            return from_mar(path, config, local_file(tokenizer), device=device, dtype=dtype)
        from mmspec.vision.var.from_checkpoints import from_checkpoints as from_var
        from mmspec.vision.var.from_checkpoints import is_var

        if is_var(path):
            refuse_processor(processor, model)
            return from_var(path, config, local_file(tokenizer), device=device, dtype=dtype)
        from mmspec.vision.llamagen.from_checkpoints import from_checkpoints, is_checkpoint

        if is_checkpoint(path):
            refuse_processor(processor, model)
            return from_checkpoints(path, local_file(tokenizer), config, device, dtype)
    refuse_processor(processor, model)
    saved = model not in known and (path / "model_index.json").is_file()
    given = {"tokenizer": None if saved else tokenizer, **(config or {})}
    names = ", ".join(name for name, value in given.items() if value is not None)
    if names:
        raise ArgumentError(f"{names} was given, but {model!r} does not take it; it is for original checkpoints")
    if model in known:
        if dtype == "auto":
            raise ArgumentError(f"dtype='auto' was given, but {model!r} is not a model of transformers; name a dtype")
        load_named = component(known[model], "mmspec.models")
        pipe = load_named(device=device, dtype=dtype)
        if not callable(pipe):
            raise refused(f"the model {model!r}", "a pipeline", pipe)
        return pipe
    if not saved:
        raise ModelError(f"model {model!r} is neither a saved pipeline (model_index.json) nor an original checkpoint")
    from mmspec.vision.saved_pipeline import load_pipeline

    return load_pipeline(path, device, dtype, local_file(tokenizer))


def is_flat_image_model(name: str | None, config: Mapping[str, Any] | None, *, published: bool) -> bool:
    """Whether a decoder of a class that also generates speech generates images.

    Args:
        name: The class.
        config: The options of `load`: a `layout` is that of images, a `style` and a `codec` are of speech.
        published: Whether the class stands in the config.json of a folder. Without options, those of published image
            models are taken for them.
    """
    from mmspec.vision.hf.from_pretrained import ALIASES
    from mmspec.vision.hf.registry import IMAGE_ADAPTERS

    options = config or {}
    if "layout" in options:
        return name in IMAGE_ADAPTERS
    return published and name in ALIASES and "style" not in options and "codec" not in options


def missing_path(model: str, known: Iterable[str]) -> UnknownNameError:
    """The exception for a path that does not exist, and cannot be a Hub id either."""
    return UnknownNameError(
        f"unknown model {model!r}: there is no such file or folder, and a Hub id is OWNER/REPOSITORY; known names: "
        f"{', '.join(sorted(known))}"
    )


def check_arguments(model: Any, tokenizer: Any, config: Any, drafter: Any) -> None:
    """Checks the types of arguments of `load`.

    Raises:
        ArgumentError: If an argument is of a type that is not allowed, or an empty string.
    """
    import torch

    if not isinstance(model, (str, Path, torch.nn.Module)):
        raise ArgumentError(f"model={shown(model)} is not allowed; give a name, a path, a Hub id or a loaded model")
    for name, value in (("model", model), ("tokenizer", tokenizer), ("drafter", drafter)):
        if value is not None and not isinstance(value, (str, Path)) and name != "model":
            raise ArgumentError(f"{name}={shown(value)} is not allowed; give a path or a Hub id")
        if isinstance(value, str) and (not value.strip() or "\0" in value):
            raise ArgumentError(f"{name}={value!r} is not allowed; give a name, a path or a Hub id")
    if config is not None and not (isinstance(config, Mapping) and all(isinstance(key, str) for key in config)):
        raise ArgumentError(f"config={shown(config)} is not allowed; it must be a mapping with names as keys")


def add_drafter(pipe: Any, drafter: str | Path) -> None:
    """Adds a trained drafter to a pipeline, from a folder or the Hub.

    Raises:
        ArgumentError: If the drafter does not exist, or the pipeline does not take drafters.
        ModelError: If the drafter does not fit the model.
    """
    path: Path | None = Path(drafter)
    if not (exists(Path(drafter)) and Path(drafter).is_dir()):
        path = hub.fetch(str(drafter))
    if path is None:
        raise ArgumentError(
            f"drafter={str(drafter)!r} is not a folder or Hub id; name a folder that `mmspec train-drafter` wrote"
        )
    check_files(path, f"drafter={str(drafter)!r}")
    if not hasattr(pipe, "add_drafter"):
        raise ArgumentError(f"drafter={str(drafter)!r} was given, but a {type(pipe).__name__} does not take drafters")
    pipe.add_drafter(path)
    log.info("added the drafter %s", drafter)


def exists(path: Path) -> bool:
    """Whether there is a file or folder; names that a file system does not allow have none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def local_file(tokenizer: str | None) -> Path | None:
    """The local path of a tokenizer, downloaded from the Hub if it is not a path.

    Raises:
        ArgumentError: If it is neither a path nor a Hub id.
    """
    if tokenizer is None:
        return None
    path = Path(tokenizer) if exists(Path(tokenizer)) else hub.fetch(tokenizer)
    if path is None:
        raise ArgumentError(f"tokenizer={tokenizer!r} does not exist")
    check_files(path, f"tokenizer={tokenizer!r}")
    return path


def refuse_processor(processor: Any, model: str) -> None:
    """Checks that no processor is given.

    Raises:
        ArgumentError: If a processor is given with a model that is not one of transformers.
    """
    if processor is not None:
        raise ArgumentError(f"processor was given, but {model!r} is not a transformers model; leave it out")
