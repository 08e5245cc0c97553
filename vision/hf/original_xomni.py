"""X-Omni as published: a folder with its weights, whose encoder and decoder of images lie in files of their own."""

from __future__ import annotations

from pathlib import Path

import torch

from mmspec.files.checkpoint import building, check_depths
from mmspec.files.documents import read_object
from mmspec.vision.hf.original_weights import load_renamed, read_folder
from mmspec.vision.hf.xomni import XOmniConfig, XOmniForCausalLM

XOMNI = XOmniForCausalLM.__name__  # the class in the published config.json
_UNUSED = ((r"^image_tokenizer\..*|.*rotary_emb\.inv_freq$", ""),)


def load_xomni(folder: Path, device: str, dtype: torch.dtype | str) -> XOmniForCausalLM:
    """The model in a published folder, or in one that `save_pretrained` wrote.

    Raises:
        ModelError: If a file cannot be read, or its tensors do not fit the config.
    """
    what, fields = f"model {str(folder)!r}", read_object(folder / "config.json")
    tensors = read_folder(folder, _UNUSED)
    check_depths(what, fields, len(tensors))
    with building(what, "an X-Omni"):
        config = XOmniConfig.from_dict({name: value for name, value in fields.items() if name != "auto_map"})
    model: XOmniForCausalLM = load_renamed(XOmniForCausalLM, config, tensors, what, device, dtype)
    return model
