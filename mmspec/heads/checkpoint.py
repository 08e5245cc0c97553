"""Heads from files: our own folders, and the published LANTERN drafters."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.heads.eagle import EagleHead
from mmspec.heads.medusa import MedusaHeads

Head = EagleHead | MedusaHeads

FILES = ("model.safetensors", "pytorch_model.bin")
# A LANTERN drafter for LlamaGen says which stage it is for; an image of that has so many tokens per side. Its features
# are shifted by one against its 120 prompt slots.
_GRIDS = {"t2i": 16, "t2i2": 32}
_PREFIX = 119


def load_head(folder: str | Path) -> Head:
    """A head from a folder with `config.json` and `model.safetensors` or `pytorch_model.bin`.

    Folders are those of `save_pretrained`, and those of the published LANTERN drafters (for LlamaGen, Anole and
    Lumina-mGPT), which keep the configuration of a Llama of one layer beside the weights.

    Raises:
        ModelError: When files are missing or unreadable, and when keys or shapes are not those of a head.
    """
    folder = Path(folder)
    config, tensors = read_config(folder), read_tensors(folder)
    kind: type[Head] = MedusaHeads if "medusa_num_heads" in config else EagleHead
    arguments = config if kind is MedusaHeads else eagle_arguments(config, tensors)
    known = inspect.signature(kind.__init__).parameters
    try:
        with torch.device("meta"):
            head = kind(**{name: value for name, value in arguments.items() if name in known})
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"drafter {str(folder)!r}: config.json does not describe one: {error}") from None
    check_tensors(folder, tensors, head)
    head.load_state_dict(tensors, assign=True)
    return head.float().eval()


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json`.

    Raises:
        ModelError: When it is missing or no JSON object.
    """
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"drafter {str(folder)!r}: config.json cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"drafter {str(folder)!r}: config.json holds no object")
    return found


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights, without running code from them.

    Raises:
        ModelError: When they cannot be read.
    """
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        raise ModelError(f"drafter {str(folder)!r} has no weights; there must be {' or '.join(FILES)}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"drafter {str(file)!r} cannot be read: {error}") from None
    except Exception as error:  # what a file that is no pickle at all makes the unpickler do is anybody's guess
        raise ModelError(f"drafter {str(file)!r} cannot be read: {type(error).__name__}: {error}") from None
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def eagle_arguments(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What `EagleHead` needs.

    Raises:
        ModelError: For layers and heads that it cannot have.
    """
    found = dict(config)
    if (layers := config.get("num_hidden_layers", 1)) != 1:
        raise ModelError(f"drafter has num_hidden_layers={layers}; an EAGLE head has one")
    heads = config.get("num_attention_heads")
    if config.get("num_key_value_heads", heads) != heads:
        raise ModelError(
            f"drafter has num_key_value_heads={config['num_key_value_heads']}, other than its {heads} heads"
        )
    if (kind := config.get("input_type")) in _GRIDS:
        found |= {"grid_size": _GRIDS[kind], "prefix": _PREFIX}
    found["input_layernorm"] = "layers.0.input_layernorm.weight" in tensors
    found["qk_norm"] = "layers.0.self_attn.q_norm.weight" in tensors
    return found


def check_tensors(folder: Path, tensors: Mapping[str, Tensor], head: Head) -> None:
    """Compares the names and shapes of tensors with those of a module.

    Raises:
        ModelError: With a list of missing keys, unknown keys and wrong shapes, when there are any.
    """
    expected = head.state_dict()
    shapes = [
        f"{key} {list(tensors[key].shape)} instead of {list(value.shape)}"
        for key, value in expected.items()
        if key in tensors and tensors[key].shape != value.shape
    ]
    missing, unknown = [k for k in expected if k not in tensors], [k for k in tensors if k not in expected]
    named = (("missing", missing), ("unknown", unknown), ("wrong shape", shapes))
    problems = [f"{name}: {', '.join(keys)}" for name, keys in named if keys]
    if problems:
        raise ModelError(f"drafter {str(folder)!r} is not what its config.json says; {'; '.join(problems)}")


def save_heads(heads: Mapping[str, Head], folder: Path) -> None:
    """Writes the heads of a pipeline into its folder, `drafters/KIND` each."""
    for kind, head in heads.items():
        head.save_pretrained(folder / "drafters" / kind)


def load_heads(folder: Path) -> dict[str, Head]:
    """The heads in a pipeline's folder.

    Raises:
        ModelError: When they are not what they claim to be.
    """
    found = [load_head(file.parent) for file in sorted(folder.glob("drafters/*/config.json"))]
    return {head.kind: head for head in found}


def refuse_stranger(folder: str | Path, what: str, found: int, wanted: int) -> None:
    """Checks that a drafter is for this model.

    Raises:
        ModelError: When a drafter is for another model.
    """
    if found != wanted:
        raise ModelError(f"drafter {str(folder)!r} has {what} {found}, the model {wanted}; they do not belong together")
