"""A folder of a tiny MOSS-TTS-Local of the first version in its published form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiny_moss
import torch
from safetensors.torch import save_file
from tiny_moss import BOOKS, IDS, WIDTH, tokenizer
from tiny_xtts import fill

LOCAL_WIDTH = 16
END = 0.4 * (3.1 * torch.arange(WIDTH)).sin()  # what tells the end from a frame


def config(**changed: Any) -> dict[str, Any]:
    """As that of MOSS-TTS with delays, whose class it names, and with the sizes along the depth."""
    local = {
        "local_num_layers": 2, "local_hidden_size": LOCAL_WIDTH, "local_ffn_hidden_size": 24,
        "additional_mlp_ffn_hidden_size": 20,
    }  # fmt: skip
    return tiny_moss.config() | local | changed


def fill_model(model: Any) -> Any:
    """The model with deterministic weights, of which those of the end are such that rows end early."""
    fill(model.named_parameters(), 0.9)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embedding_list" in name or "_mlp" in name:
                p *= 2
        head = model.lm_heads[0].weight
        head[IDS["<|audio_end|>"]] = head[IDS["<|gen_slot|>"]] + END
    return model


def moss_local_v1(folder: Path, **changed: Any) -> Path:
    from mmspec.audio.models.moss_local_v1.model import MossLocalV1, read_config

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(**changed)))
    tokenizer().save_pretrained(folder)
    model = fill_model(MossLocalV1(read_config(config(**changed), "tiny")))
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    return folder


__all__ = ["BOOKS", "config", "fill_model", "moss_local_v1"]
