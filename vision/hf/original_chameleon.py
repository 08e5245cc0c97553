"""Chameleon and Anole in the layout of Meta, in which GAIR publishes Anole: `models/7b` and `tokenizer`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import ChameleonConfig, ChameleonForConditionalGeneration, ChameleonProcessor, PreTrainedTokenizerFast

from mmspec.errors import ModelError
from mmspec.files.checkpoint import read_tensors, sizes_of
from mmspec.files.documents import read_object
from mmspec.files.inputs import read_text
from mmspec.vision.hf.original_weights import load_renamed, rename

WEIGHTS = ("consolidated.pth", "consolidated.00.pth")
TOKENIZER, VQGAN = Path("tokenizer") / "text_tokenizer.json", Path("tokenizer") / "vqgan.ckpt"
# A token that Meta left unused, which transformers' processor takes for the place of an image.
UNUSED, IMAGE = "<reserved08707>", "<image>"
END_OF_TURN = "<reserved08706>"
RENAMED = (
    (r"^tok_embeddings\.", "model.embed_tokens."),
    (r"^output\.", "lm_head."),
    (r"^norm\.", "model.norm."),
    (r"^layers\.", "model.layers."),
    (r"\.attention\.w([qkvo])\.", r".self_attn.\1_proj."),
    (r"\.attention\.([qk])_normalization\.", r".self_attn.\1_norm."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
)


def is_original_chameleon(folder: Path) -> bool:
    """Whether a folder has Meta's layout."""
    return (folder / TOKENIZER).is_file() and (folder / "models").is_dir()


def load_original_chameleon(
    folder: Path, device: str, dtype: torch.dtype | str
) -> tuple[ChameleonForConditionalGeneration, ChameleonProcessor, Path]:
    """The model in a folder, its processor, and the file of its VQGAN.

    Args:
        folder: With `models/SIZE` (one size, weights in one file) and `tokenizer`.
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the files.

    Raises:
        ModelError: If files are missing or damaged, weights are in several files, or tensors do not fit.
    """
    what = f"model {str(folder)!r}"
    sizes = [path for path in sorted((folder / "models").iterdir()) if (path / "params.json").is_file()]
    files = [path / name for path in sizes for name in WEIGHTS if (path / name).is_file()]
    shards = [file for path in sizes for file in path.glob("consolidated*.pth")]
    if len(sizes) != 1 or len(files) != 1 or len(shards) != 1:
        raise ModelError(f"{what} must have one folder models/SIZE with params.json and one {WEIGHTS[0]}")
    params = read_object(sizes[0] / "params.json")
    params = {**params, **params.get("model", {})}
    text = read_object(folder / TOKENIZER)
    original = read_tensors(files[0], "model")
    vq = {key: value for key, value in read_tensors(folder / VQGAN, "tokenizer", ("state_dict",)).items()}
    with sizes_of(what, "a Chameleon"):
        heads = int(params["n_heads"])
        tensors = converted(original, heads, int(params.get("n_kv_heads") or heads))
        tensors |= {f"model.vqmodel.{key}": value for key, value in vq.items() if not re.match(r"decoder|loss", key)}
        config = chameleon_config(params, tensors, vocabulary(text), resolution(folder))
    model = load_renamed(ChameleonForConditionalGeneration, config, tensors, what, device, dtype)
    return model, processor_of(text), folder / VQGAN


def converted(original: Mapping[str, Tensor], heads: int, kv_heads: int) -> dict[str, Tensor]:
    """The tensors under transformers' names.

    Meta rotates pairs of neighbours, transformers the halves of a head: channels of queries and keys are reordered, and
    the parameters of their norms, which heads share, are repeated for each.
    """
    found = {}
    for key, value in original.items():
        name = rename(key, RENAMED)
        if match := re.search(r"\.self_attn\.([qk])_(proj|norm)\.", name):
            own = heads if match[1] == "q" else kv_heads
            if match[2] == "proj":
                value = value.unflatten(0, (own, -1, 2)).transpose(1, 2).flatten(0, 2)
            else:
                value = value.view(-1, 2).t().reshape(1, -1).repeat(own, 1)
        found[name] = value
    return found


def chameleon_config(
    params: Mapping[str, Any], tensors: Mapping[str, Tensor], names: Mapping[str, int], side: int
) -> ChameleonConfig:
    """The configuration of transformers.

    Args:
        params: Meta's `params.json`.
        tensors: Under transformers' names.
        names: The vocabulary.
        side: Height and width of images, in pixels.
    """
    encoder = "model.vqmodel.encoder."
    levels = sorted({int(key.split(".")[4]) for key in tensors if key.startswith(f"{encoder}down.")})
    base = tensors[f"{encoder}conv_in.weight"].shape[0]
    widths = [tensors[f"{encoder}down.{n}.block.0.conv1.weight"].shape[0] for n in levels]
    codes, code_dim = tensors["model.vqmodel.quantize.embedding.weight"].shape
    blocks = {key.split(".")[6] for key in tensors if key.startswith(f"{encoder}down.0.block.")}
    attentive = [n for n in levels if f"{encoder}down.{n}.attn.0.norm.weight" in tensors]
    return ChameleonConfig(
        vocab_size=tensors["model.embed_tokens.weight"].shape[0],
        hidden_size=int(params["dim"]),
        intermediate_size=tensors["model.layers.0.mlp.gate_proj.weight"].shape[0],
        num_hidden_layers=int(params["n_layers"]),
        num_attention_heads=int(params["n_heads"]),
        num_key_value_heads=int(params.get("n_kv_heads") or params["n_heads"]),
        rms_norm_eps=float(params.get("norm_eps", 1e-5)),
        rope_parameters={"rope_type": "default", "rope_theta": float(params.get("rope_theta", 10000.0))},
        swin_norm=bool(params.get("swin_norm", False)),
        bos_token_id=names.get("<s>", 0),
        pad_token_id=names.get("<pad>", 1),
        eos_token_id=names.get("</s>", 2),
        vocabulary_map=dict(names),
        vq_config={
            "embed_dim": code_dim,
            "num_embeddings": codes,
            "latent_channels": tensors["model.vqmodel.quant_conv.weight"].shape[1],
            "base_channels": base,
            "channel_multiplier": [width // base for width in widths],
            "num_res_blocks": len(blocks),
            "resolution": side,
            "attn_resolutions": [side // 2**n for n in attentive] or None,
        },
    )


def vocabulary(text: Mapping[str, Any]) -> dict[str, int]:
    """Ids by token of a `text_tokenizer.json`, with the place of an image under transformers' name."""
    names = dict(text["model"]["vocab"])
    names[IMAGE] = names.pop(UNUSED, names.get(IMAGE))
    return names


def resolution(folder: Path) -> int:
    """Height and width of images, from `vqgan.yaml`; 512, as published, without the file."""
    path = folder / "tokenizer" / "vqgan.yaml"
    found = re.search(r"resolution:\s*(\d+)", read_text(path, "vqgan.yaml")) if path.is_file() else None
    return int(found[1]) if found else 512


def processor_of(text: Mapping[str, Any]) -> ChameleonProcessor:
    """The processor, from Meta's `text_tokenizer.json`."""
    changed = json.loads(json.dumps(text).replace(UNUSED, IMAGE))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(changed)),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        sep_token=END_OF_TURN,
    )
    from transformers import ChameleonImageProcessor  # prints a warning where torchvision is missing

    return ChameleonProcessor(ChameleonImageProcessor(), tokenizer)
