"""Checkpoints of draft heads: folders of `save_pretrained`, and the published LANTERN drafters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec.arguments import shown
from mmspec.environment.importing import resolve
from mmspec.errors import ModelError
from mmspec.files import checkpoint
from mmspec.files.checkpoint import building, check_tensors, sizes_of
from mmspec.files.documents import read_object
from mmspec.heads.eagle import EagleHead
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.heads.head import Head
from mmspec.heads.merged_vocabulary import MergedVocabulary, cut_to_codes
from mmspec.heads.mtp import MTPHead, has_mtp, mtp_arguments, mtp_tensors
from mmspec.heads.speculators import (
    check_vocabulary,
    eagle3_arguments,
    head_tensors,
    is_eagle3,
    is_foreign,
    vocabulary_of,
)
from mmspec.registry import heads

# Of the core, by a key that the configuration of no other head has: the class, "module:attribute".
SAVED_HEADS = (
    ("mtp_qk_norm", "mmspec.heads.mtp:MTPHead"),
    ("norm_output", "mmspec.heads.eagle3:Eagle3Head"),
)
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
# `input_type` of a LANTERN drafter for LlamaGen names the stage, which fixes the tokens per image side. Its features
# are shifted by one against its 120 prompt slots.
_GRID_SIZES = {"t2i": 16, "t2i2": 32}
_LLAMAGEN_PREFIX = 119


def load_head(folder: str | Path, embedding: Tensor | None = None, merged: MergedVocabulary | None = None) -> Any:
    """Loads a draft head from a folder with `config.json` and `model.safetensors` or `pytorch_model.bin`.

    Reads folders written by `save_pretrained`; folders of the package `speculators` and EAGLE-3 heads of AngelSlim, see
    `mmspec.heads.speculators`; whole models with a module for multi-token prediction, see `mmspec.heads.mtp`, of which
    only that module is kept; and the published LANTERN drafters (for LlamaGen, Anole and Lumina-mGPT), whose
    `config.json` is that of a one-layer Llama.

    Args:
        embedding: Embedding [V, D] of the target's tokens, for a file without the one of the head.
        merged: How a verifier that also reads text numbers the target's tokens; a head with such a vocabulary is cut
            to them. Requires `embedding`.

    Raises:
        ModelError: If a file is missing or unreadable, or if the keys or shapes are not those of a head.
    """
    folder = Path(folder)
    config, tensors = read_object(folder / "config.json"), read_tensors(folder)
    if merged is not None and embedding is not None and vocabulary_of(config) not in (None, len(embedding)):
        config, tensors = cut_to_codes(str(folder), config, head_tensors(tensors), merged, embedding)
    what, kind = f"drafter {str(folder)!r}", "a draft head as its config.json describes"
    with sizes_of(what, kind):
        if has_mtp(config):
            tensors = mtp_tensors(config, tensors, embedding)
        head_class, arguments = head_arguments(str(folder), config, tensors)
    foreign = is_foreign(config)
    if foreign:
        tensors = head_tensors(tensors)
        if "embed_tokens.weight" not in tensors and embedding is not None:
            tensors["embed_tokens.weight"] = embedding
    parameters = inspect.signature(head_class.__init__).parameters
    with building(what, kind):
        head = head_class(**{name: value for name, value in arguments.items() if name in parameters})
    if getattr(head, "d2t", None) is not None:
        check_vocabulary(str(folder), tensors, head.vocab_size)
    elif foreign:  # maps of a whole vocabulary say nothing, and a head may share the target's LM head then
        unused = {"d2t", "t2d", *(["lm_head.weight"] if getattr(head, "lm_head", None) is None else [])}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in unused}
    check_tensors(what, tensors, head)
    head.check_saved(str(folder), tensors)
    head.load_state_dict(tensors, assign=True)
    return head.float().eval()


def head_arguments(
    folder: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[type[Any], Mapping[str, Any]]:
    """The class of a head, and its arguments, from its configuration.

    Raises:
        ModelError: If the configuration asks for something that no head does.
    """
    if has_mtp(config):
        return MTPHead, mtp_arguments(folder, config, tensors)
    if is_eagle3(config):
        return Eagle3Head, eagle3_arguments(folder, config)
    known = heads().usable()
    if (algorithm := config.get("speculators_model_type")) is not None:
        for info in known.values():
            if algorithm in info.speculators:
                return resolve(info.head), resolve(info.speculators[algorithm])(folder, config)
        raise ModelError(
            f"drafter {folder!r} is of the kind {shown(algorithm)} of speculators; mmspec reads "
            f"{', '.join(['eagle3', *(name for info in known.values() for name in info.speculators)])}"
        )
    for key, where in (*((info.saved, info.head) for info in known.values() if info.saved), *SAVED_HEADS):
        if key in config:
            return resolve(where), config
    return EagleHead, eagle_arguments(config, tensors)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Reads the weights of a drafter, or of a whole model in several files, without running code from a file.

    Raises:
        ModelError: If there are no weights, or if they cannot be read.
    """
    file = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if file is None and any(folder.glob("model-*.safetensors")):
        return checkpoint.read_model_tensors(folder)
    if file is None:
        raise ModelError(f"drafter {str(folder)!r} has no weights; there must be {' or '.join(WEIGHT_FILES)}")
    return checkpoint.read_tensors(file, "drafter")


def eagle_arguments(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of `EagleHead` for a configuration, completed from the names of the tensors.

    Raises:
        ModelError: If the drafter has several layers, or grouped-query attention.
    """
    arguments = dict(config)
    if (layers := config.get("num_hidden_layers", 1)) != 1:
        raise ModelError(f"drafter has num_hidden_layers={layers}; an EAGLE head has one layer")
    heads = config.get("num_attention_heads")
    if config.get("num_key_value_heads", heads) != heads:
        raise ModelError(
            f"drafter has num_key_value_heads={config['num_key_value_heads']}; it must equal "
            f"num_attention_heads={heads}"
        )
    if (stage := config.get("input_type")) in _GRID_SIZES:
        arguments |= {"grid_size": _GRID_SIZES[stage], "prefix": _LLAMAGEN_PREFIX}
    arguments["input_layernorm"] = "layers.0.input_layernorm.weight" in tensors
    arguments["qk_norm"] = "layers.0.self_attn.q_norm.weight" in tensors
    return arguments


def save_heads(drafters: Mapping[str, Head], folder: Path) -> None:
    """Saves the heads of a pipeline in its folder, each in `drafters/KIND`."""
    for kind, head in drafters.items():
        head.save_pretrained(folder / "drafters" / kind)


def load_heads(folder: Path) -> dict[str, Head]:
    """Loads the heads in a pipeline's folder, by kind.

    Raises:
        ModelError: If one of them cannot be loaded; see `load_head`.
    """
    found = [load_head(file.parent) for file in sorted(folder.glob("drafters/*/config.json"))]
    return {head.kind: head for head in found}


def check_fits_model(folder: str | Path, argument: str, value: int, expected: int) -> None:
    """Checks that a drafter belongs to the model, by one of its configuration values.

    Raises:
        ModelError: If `value`, the drafter's, is not `expected`, the model's.
    """
    if value != expected:
        raise ModelError(
            f"drafter {str(folder)!r} has {argument} {value}, the model {expected}; the drafter is for another model"
        )
