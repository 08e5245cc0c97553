"""Janus and Janus-Pro in the layout of DeepSeek: tensors, configuration and processor as those of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusProcessor,
)

from mmspec.errors import ModelError
from mmspec.files.checkpoint import describe, sizes_of
from mmspec.hf.folder import LOAD_ERRORS, read_json
from mmspec.vision.hf.original_weights import load_renamed, read_folder

# The class in the published config.json.
ORIGINAL = "MultiModalityCausalLM"
# The chat of one turn that `generation_inference.py` writes, with the roles of the model's generation.
TEMPLATE = (
    "{{% for message in messages %}}{user}: {{{{ message['content'][0]['text'] | trim }}}}\n\n{{% endfor %}}"
    "{{% if add_generation_prompt %}}{assistant}:{{% endif %}}"
)
IMAGE, BEGIN, END, PAD = "<image_placeholder>", "<begin_of_image>", "<end_of_image>", "<｜▁pad▁｜>"
# Published names -> those of transformers, in order; a name that becomes empty has no counterpart.
RENAMED = (
    (r"^language_model\.model\.", "model.language_model."),
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^gen_embed\.", "model.generation_embeddings."),
    (r"^gen_head\.output_mlp_projector\.", "model.generation_head.proj_out."),
    (r"^gen_head\.", "model.generation_head."),
    (r"^gen_aligner\.layers\.0\.", "model.generation_aligner.fc1."),
    (r"^gen_aligner\.layers\.2\.", "model.generation_aligner.hidden_layers.0."),
    (r"^aligner\.layers\.0\.", "model.aligner.fc1."),
    (r"^aligner\.layers\.2\.", "model.aligner.hidden_layers.0."),
    (r"^gen_vision_model\.quantize\.codebook_used$", ""),
    (r"^gen_vision_model\.encoder\.conv_blocks\.", "model.vqmodel.encoder.down."),
    (r"^gen_vision_model\.decoder\.conv_blocks\.", "model.vqmodel.decoder.up."),
    (r"^gen_vision_model\.", "model.vqmodel."),
    (r"^(model\.vqmodel\..*\.)res\.", r"\1block."),
    (r"^(model\.vqmodel\.\w+\.)mid\.0\.", r"\1mid.block_1."),
    (r"^(model\.vqmodel\.\w+\.)mid\.1\.", r"\1mid.attn_1."),
    (r"^(model\.vqmodel\.\w+\.)mid\.2\.", r"\1mid.block_2."),
    (r"^vision_model\.vision_tower\.attn_pool\..*", ""),
    (r"^vision_model\.vision_tower\.", "model.vision_model."),
    (r"^model\.vision_model\.pos_embed$", "model.vision_model.embeddings.position_embedding.weight"),
    (r"^model\.vision_model\.patch_embed\.proj\.", "model.vision_model.embeddings.patch_embedding."),
    (r"^model\.vision_model\.norm\.", "model.vision_model.post_layernorm."),
    (r"^model\.vision_model\.blocks\.(\d+)\.norm([12])\.", r"model.vision_model.blocks.\1.layer_norm\2."),
    (r"^model\.vision_model\.blocks\.(\d+)\.attn\.proj\.", r"model.vision_model.blocks.\1.attn.projection_layer."),
    (r"^model\.vision_model\.blocks\.(\d+)\.attn\.", r"model.vision_model.blocks.\1.self_attn."),
    (r"^model\.vision_model\.blocks\.", "model.vision_model.encoder.layers."),
)  # fmt: skip


def load_original_janus(folder: Path, device: str, dtype: torch.dtype | str) -> JanusForConditionalGeneration:
    """The model in a folder of DeepSeek's layout.

    Args:
        folder: With config.json, processor_config.json and the weights.
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the files.

    Raises:
        ModelError: If files are missing or damaged, or tensors do not fit the config.
    """
    what = f"model {str(folder)!r}"
    tensors = split_attention(read_folder(folder, RENAMED))
    with sizes_of(what, "a Janus"):
        config = janus_config(read_json(folder / "config.json"), tensors)
    return load_renamed(JanusForConditionalGeneration, config, tensors, what, device, dtype)


def janus_config(own: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> JanusConfig:
    """The configuration of transformers: DeepSeek's values, and sizes that it does not state, from the tensors."""
    parts = {name: dict(own[f"{name}_config"].get("params", {})) for name in ("gen_aligner", "gen_head", "gen_vision")}
    aligner = tensors["model.aligner.fc1.weight"]
    patches = tensors["model.vision_model.embeddings.position_embedding.weight"]
    patch = tensors["model.vision_model.embeddings.patch_embedding.weight"]
    layers = {key.split(".")[4] for key in tensors if key.startswith("model.vision_model.encoder.layers.")}
    inner = tensors["model.vision_model.encoder.layers.0.mlp.fc1.weight"].shape[0]
    side = round(len(patches) ** 0.5)
    ids = {key: own[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id") if key in own}
    return JanusConfig(
        tie_word_embeddings=False,
        text_config={**own["language_config"], **ids, "model_type": "llama"},
        vision_config={
            "hidden_size": aligner.shape[1],
            "num_hidden_layers": len(layers),
            # Heads of SigLIP have 64 channels; this part is not used to generate.
            "num_attention_heads": max(aligner.shape[1] // 64, 1),
            "mlp_ratio": inner / aligner.shape[1],
            "image_size": side * patch.shape[-1],
            "patch_size": patch.shape[-1],
            "num_image_tokens": len(patches),
            "projection_dim": aligner.shape[0],
            "depth": own["aligner_config"]["params"].get("depth", 1),
        },
        vq_config={
            "embed_dim": parts["gen_vision"]["n_embed"],
            "num_embeddings": parts["gen_vision"]["image_token_size"],
            "projection_dim": parts["gen_aligner"]["n_embed"],
            "image_token_embed_dim": parts["gen_head"]["image_token_embed"],
            **vq_sizes(tensors),
        },
    )


def vq_sizes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The sizes of the VQ model that its tensors state."""
    levels = sorted({int(key.split(".")[4]) for key in tensors if key.startswith("model.vqmodel.encoder.down.")})
    widths = [tensors[f"model.vqmodel.encoder.down.{n}.block.0.conv1.weight"].shape[0] for n in levels]
    base = tensors["model.vqmodel.encoder.conv_in.weight"].shape[0]
    blocks = {key.split(".")[6] for key in tensors if key.startswith("model.vqmodel.encoder.down.0.block.")}
    return {
        "base_channels": base,
        "channel_multiplier": [width // base for width in widths],
        "num_res_blocks": len(blocks),
        "latent_channels": tensors["model.vqmodel.quant_conv.weight"].shape[1],
    }


def split_attention(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with queries, keys and values of the vision tower apart, and its positions without a batch."""
    found = {}
    for key, value in tensors.items():
        if ".qkv." in key:
            for name, part in zip("qkv", value.chunk(3), strict=True):
                found[key.replace("qkv", f"{name}_proj")] = part
        else:
            found[key] = value[0] if key.endswith("position_embedding.weight") and value.ndim == 3 else value
    return found


def read_janus_processor(folder: Path) -> JanusProcessor:
    """The processor: the published tokenizer, and the chat of the original code.

    Raises:
        ModelError: If a file is missing, or the tokenizer lacks a mark.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder,
            trust_remote_code=False,
            extra_special_tokens={"image_token": IMAGE, "boi_token": BEGIN, "eoi_token": END},
        )
    except LOAD_ERRORS as error:
        raise ModelError(f"processor={str(folder)!r} cannot be loaded: {describe(error)}") from None
    vocabulary = tokenizer.get_vocab()
    for mark in (BEGIN, PAD):
        if mark not in vocabulary:
            raise ModelError(f"processor={str(folder)!r} has no token {mark!r}, which images of Janus require")
    tokenizer.pad_token = PAD
    # The first Janus was trained without marks for the roles.
    marked = "<|User|>" in vocabulary
    roles = {"user": "<|User|>", "assistant": "<|Assistant|>"} if marked else {"user": "User", "assistant": "Assistant"}
    own = read_json(folder / "processor_config.json")
    from transformers import JanusImageProcessor  # prints a warning where torchvision is missing

    return JanusProcessor(
        JanusImageProcessor(),
        tokenizer,
        chat_template=TEMPLATE.format(**roles),
        num_image_tokens=int(own.get("num_image_tokens", 576)),
    )


def janus_generation_config(processor: JanusProcessor) -> GenerationConfig:
    """The ids that decoding needs, which transformers keeps in generation_config.json."""
    tokenizer = processor.tokenizer
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        generation_kwargs={"boi_token_id": tokenizer.convert_tokens_to_ids(BEGIN)},
    )
