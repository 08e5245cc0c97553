"""Published repositories whose layout mmspec does not read, answered before their weights are downloaded."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from mmspec.errors import ArgumentError, ModelError
from mmspec.hub.files import DESCRIPTIONS, MARKED, checkpoints, read_description

# Repositories in the layout of the original code -> the repository with the same weights for transformers; of Dia, with
# those of a later version. VibeVoice's names the class of transformers all the same.
CONVERTED = {
    "BAAI/Emu3-Chat": "BAAI/Emu3-Chat-hf",
    "bosonai/higgs-audio-v2-generation-3B-base": "eustlb/higgs-audio-v2-generation-3B-base",
    "HKUSTAudio/xcodec2": "HKUSTAudio/xcodec2-hf",
    "microsoft/VibeVoice-1.5B": "vibevoice/VibeVoice-1.5B-hf",
    "nari-labs/Dia-1.6B": "nari-labs/Dia-1.6B-0626",
}
# In the layout of Meta's Chameleon, which GAIR's Anole has.
META_TOKENIZER = "tokenizer/text_tokenizer.json"
# Beside `compression_state_dict.bin`, as audiocraft publishes MAGNeT.
AUDIOCRAFT = "state_dict.bin"
# Repositories whose models mmspec does not decode, although their files look like those of a family that it does.
UNREAD = {
    "deepseek-ai/JanusFlow-1.3B": "it draws images by rectified flow; use 'deepseek-ai/Janus-Pro-1B'",
}
# An Infinity: the repository, or one of its files of weights by its name.
INFINITY = re.compile(r"FoundationVision/Infinity|(.*[/\\])?infinity_\w+\.pth", re.I)
# Autoregressive models of Cosmos, whatever class their config.json names; others of that name diffuse.
COSMOS = re.compile(r"nvidia/Cosmos-(1\.0-Autoregressive|Predict1)-(4B|5B-Video2World|12B|13B-Video2World)", re.I)


def refuse_infinity(model: str) -> None:
    """Checks that a name, path or Hub id is not that of an Infinity, of which mmspec has only the transformer.

    Raises:
        ModelError: If it is.
    """
    if INFINITY.fullmatch(model):
        raise ModelError(
            f"model {model!r} is an Infinity, which has no pipeline: the decoder of its images is a package of its "
            "authors; mmspec.vision.infinity generates latents from features of texts (docs/models/images.md)"
        )


def refuse_original(repository: str) -> None:
    """Checks that a repository is not one that has been converted under another id, or that mmspec does not decode.

    Raises:
        ModelError: If it is.
    """
    known = {theirs.lower(): ours for theirs, ours in CONVERTED.items()}
    if (converted := known.get(repository.lower())) is not None:
        raise ModelError(
            f"model {repository!r} is in the layout of its original code, which mmspec does not read; use {converted!r}"
        )
    unread = {name.lower(): reason for name, reason in UNREAD.items()}
    if (reason := unread.get(repository.lower())) is not None:
        raise ModelError(f"model {repository!r} is not one that mmspec decodes: {reason}")


def refuse_layout(
    repository: str, files: Sequence[str], folder: Path | None, name: str | None, classes: Collection[str]
) -> None:
    """Checks that mmspec reads the layout of a repository.

    Args:
        repository: The Hub id.
        files: All of its files.
        folder: Contains its descriptions; None if it has none.
        name: The class that it holds, or under which mmspec knows its layout, or None.
        classes: The classes that mmspec has an adapter for.

    Raises:
        ModelError: If it is in the layout of original code, holds several checkpoints, or no model.
        ArgumentError: If mmspec has no adapter for the class of the model.
    """
    if COSMOS.fullmatch(repository):
        return
    if name is not None and name not in classes:
        raise ArgumentError(
            f"model {repository!r} is a {name}, for which mmspec has no adapter; see "
            "docs/models.md for those that it has, and docs/adding-a-model.md for how to add one"
        )
    if name is not None or any(mark in files for mark in ("model_index.json", META_TOKENIZER, AUDIOCRAFT, *MARKED)):
        return
    found = checkpoints(files)
    if len(found) > 1 and "vq_strides" not in read_description(folder, DESCRIPTIONS[0]):
        listed = ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
        raise ModelError(
            f"model {repository!r} holds several checkpoints: {listed}; name one of them, such as "
            f"'{repository}/{first_model(found)}', and the image tokenizer with tokenizer="
        )
    if not found:
        raise ModelError(
            f"model {repository!r} holds no model that mmspec reads: no config.json with its class, no weights"
        )


def first_model(found: Sequence[str]) -> str:
    """The first file whose name is not that of an image tokenizer."""
    return next((file for file in found if not file.startswith(("vq", "kl", "vae"))), found[0])
