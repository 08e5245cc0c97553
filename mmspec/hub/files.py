"""The files of a published repository that mmspec reads, of those that it holds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from mmspec.errors import ModelError
from mmspec.files.documents import read_object

# Files that say what a repository holds, downloaded before all others.
DESCRIPTIONS = ("config.json", "model_index.json")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
# Formats of other libraries, states of training runs, classifiers of outputs, and demonstrations.
_FOREIGN = re.compile(
    r".*\.(onnx|onnx_data|gguf|h5|msgpack|ot|tflite|mlmodel|engine|distcp|zip|tar|gz|mp4|gif|jpe?g|png|pdf|ipynb|py)"
    r"|dist\.tgz"  # web pages
    r"|(optimizer|scheduler|training_args|rng_state)\S*\.(pt|pth|bin|safetensors)|trainer_state\.json|events\.out\..*"
)
_TRAINING = re.compile(r"(checkpoint-\d+|global_step\d+|runs|logs|guardrail|\.git.*)")
# Weights as transformers and diffusers name them, whole or in parts; a variant such as "fp16" is not among them.
_SAFE = re.compile(r"(diffusion_pytorch_)?model(-\d+-of-\d+)?\.safetensors")
_TORCH = re.compile(r"(diffusion_)?pytorch_model(-\d+-of-\d+)?\.bin")
_INDEX = re.compile(r"(diffusion_)?(pytorch_)?model\.(bin|safetensors)(\.index\.json)")
# The folders of diffusers' pipelines of which mmspec loads only some, by the pipeline's class.
PARTS = {"GlmImagePipeline": ("vision_language_encoder", "processor")}
# Published layouts with weights of other names: a file that marks each, and the weights that mmspec reads.
MARKED = {
    "t3_cfg.safetensors": ("t3_cfg.safetensors", "conds.pt"),
    "t3_turbo_v1.safetensors": ("t3_turbo_v1.safetensors", "conds.pt"),
    "t3_nano_v1.safetensors": ("t3_nano_v1.safetensors", "conds.pt"),
    "t3_mtl23ls_v3.safetensors": ("t3_mtl23ls_v3.safetensors", "conds.pt"),
    "t3_mtl23ls_v2.safetensors": ("t3_mtl23ls_v2.safetensors", "conds.pt"),
    "llm.pt": ("llm.pt",),
}

# Weights of codecs and speakers beside those of a model, under names of their own.
BESIDE = ("codec.pth", "decoder.pth", "spk_dict.pt")


def read_description(folder: Path | None, file: str) -> dict[str, Any]:
    """The JSON object in a description; {} if there is none."""
    if folder is None:
        return {}
    try:
        return read_object(folder / file)
    except ModelError:
        return {}


def needed_files(files: Sequence[str], folder: Path | None, preferred: Sequence[str] = ()) -> list[str]:
    """The files to download.

    One format of the weights is enough: `.safetensors` where it is whole, else PyTorch's. Of a pipeline whose parts
    mmspec does not all use, those it does.

    Args:
        files: All files of the repository.
        folder: Contains the descriptions of the repository; None if it has none.
        preferred: Keys of `MARKED`, the model to choose where the repository holds several.
    """
    kept = [file for file in files if not is_foreign(file)]
    parts = PARTS.get(str(read_description(folder, "model_index.json").get("_class_name")))
    if parts is not None:
        kept = [file for file in kept if file == "model_index.json" or file.split("/")[0] in parts]
    by_folder: defaultdict[str, list[str]] = defaultdict(list)
    for file in kept:
        by_folder[str(PurePosixPath(file).parent)].append(file)
    config = read_description(folder, "config.json")
    # That of a Kyutai TTS names its weights, beside which lie those of the original's codec.
    named = config.get("moshi_name" if "tts_config" in config else "transformers_weights")
    return [
        file
        for where, group in by_folder.items()
        for file in one_format(group, named if where == "." and isinstance(named, str) else None, preferred)
    ]


def is_foreign(file: str) -> bool:
    """Whether a file is of no use to mmspec, whatever else the repository holds."""
    *folders, name = file.split("/")
    return bool(_FOREIGN.fullmatch(name)) or any(_TRAINING.fullmatch(folder) for folder in folders)


def one_format(files: Sequence[str], named: str | None = None, preferred: Sequence[str] = ()) -> list[str]:
    """The files of one folder without the weights that hold the same in another format or precision.

    Args:
        named: The file of weights, or their index, that the config names beside those of another library; or None.
        preferred: Keys of `MARKED` that come before the others.
    """
    names = {file: PurePosixPath(file).name for file in files}
    marked = next((MARKED[mark] for mark in (*preferred, *MARKED) if mark in names.values()), None)
    chosen: set[str] | None = None
    if named is not None:
        own = re.escape(named.removesuffix(".index.json").removesuffix(".safetensors"))
        chosen = {file for file, name in names.items() if re.fullmatch(rf"{own}(-\d+-of-\d+)?\.safetensors", name)}
    elif marked is not None:
        chosen = {file for file, name in names.items() if name in marked}
    else:
        for pattern in (_SAFE, _TORCH):
            chosen = chosen or {file for file, name in names.items() if pattern.fullmatch(name)}
    if not chosen:
        return list(files)
    suffix = PurePosixPath(min(chosen)).suffix
    kept = []
    for file, name in names.items():
        index = _INDEX.fullmatch(name)
        other_index = index is not None and f".{index.group(3)}" != suffix
        if file in chosen or name in BESIDE or not (PurePosixPath(name).suffix in WEIGHTS or other_index):
            kept.append(file)
    return kept


def checkpoints(files: Sequence[str]) -> list[str]:
    """The weights at the top of a repository."""
    return [file for file in files if "/" not in file and PurePosixPath(file).suffix in WEIGHTS]
