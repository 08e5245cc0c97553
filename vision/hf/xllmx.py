"""Lumina-mGPT, both generations, in the layout of its own code: a Chameleon whose heads share their norms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from transformers import ChameleonConfig, ChameleonForConditionalGeneration, GenerationConfig

from mmspec.files.checkpoint import building, check_depths, sizes_of
from mmspec.files.documents import read_object
from mmspec.vision.hf.original_weights import load_renamed, read_folder

# The class in the published config.json.
XLLMX = "ChameleonXLLMXForConditionalGeneration"
# The vocabulary of the first generation, which is Chameleon's; that of the second is Qwen's with more ids.
FIRST_IDS = 65536
LUMINA2 = "lumina2"  # the layout of the second
# The encoder of images, which decoding does not need and most published files lack.
ENCODER = "model.vqmodel."
_UNUSED = ((rf"^({re.escape(ENCODER)}.*|.*rotary_emb\.inv_freq)$", ""),)


def load_xllmx(folder: Path, device: str, dtype: torch.dtype | str) -> Any:
    """The model in a folder, as transformers' Chameleon; its encoder of images is zero.

    transformers has norms of queries and keys for each head, the published files one for all heads, or one for each of
    the devices that the model was trained on.

    Raises:
        ModelError: If a file cannot be read, or its tensors do not fit the config.
    """
    what = f"model {str(folder)!r}"
    fields = read_object(folder / "config.json")
    tensors = read_folder(folder, _UNUSED)
    check_depths(what, fields, len(tensors))
    with building(what, "a Chameleon"):
        config = ChameleonConfig.from_dict({**fields, "vocabulary_map": fields.get("vocabulary_map") or {}})
        expected = ChameleonForConditionalGeneration(config).state_dict()
    with sizes_of(what, "a Chameleon"):
        for name, value in tensors.items():
            if re.search(r"\.self_attn\.[qk]_norm\.", name) and name in expected:
                tensors[name] = value.repeat_interleave(len(expected[name]) // len(value), 0)
    tensors |= {name: torch.zeros(value.shape) for name, value in expected.items() if name.startswith(ENCODER)}
    model = load_renamed(ChameleonForConditionalGeneration, config, tensors, what, device, dtype)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model
