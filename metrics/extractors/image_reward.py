"""ImageReward (Xu et al. 2023): a BLIP that reads an image and its prompt, and a head that scores both together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, read_tensors, sizes_of
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.pretrained import load_pretrained
from mmspec.metrics.features import Features

FILE = "ImageReward.pt"
TOKENS = 35  # of a prompt; what exceeds them is cut off
HEAD_DIM = 64  # of both transformers
# The mean and the deviation of rewards on the authors' data, by which scores are normalised.
MEAN, STD = 0.16717362830052426, 1.0333394966054072
_PIXEL_MEAN, _PIXEL_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
# Names in the published file -> names in transformers' BLIP.
_RENAMING = (
    (r"^blip\.visual_encoder\.blocks\.", "vision.encoder.layers."),
    (r"^blip\.visual_encoder\.cls_token$", "vision.embeddings.class_embedding"),
    (r"^blip\.visual_encoder\.pos_embed$", "vision.embeddings.position_embedding"),
    (r"^blip\.visual_encoder\.patch_embed\.proj\.", "vision.embeddings.patch_embedding."),
    (r"^blip\.visual_encoder\.norm\.", "vision.post_layernorm."),
    (r"\.attn\.qkv\.", ".self_attn.qkv."),
    (r"\.attn\.proj\.", ".self_attn.projection."),
    (r"\.norm([12])\.", r".layer_norm\1."),
    (r"^blip\.text_encoder\.", "text."),
    (r"^mlp\.layers\.", "head."),
)
_HEAD = re.compile(r"^head\.(\d+)\.weight$")


class RewardNetwork(nn.Module):
    """The network, with sizes that the tensors of a file determine.

    Args:
        tensors: Under the names of this class.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        from transformers import BlipTextConfig, BlipVisionConfig
        from transformers.models.blip.modeling_blip import BlipVisionModel
        from transformers.models.blip.modeling_blip_text import BlipTextModel

        super().__init__()
        patches = tensors["vision.embeddings.patch_embedding.weight"]
        words = tensors["text.embeddings.word_embeddings.weight"]
        self.side = round((tensors["vision.embeddings.position_embedding"].shape[1] - 1) ** 0.5) * patches.shape[2]
        self.vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=patches.shape[0],
                intermediate_size=tensors["vision.encoder.layers.0.mlp.fc1.weight"].shape[0],
                num_hidden_layers=count_blocks(tensors, "vision.encoder.layers"),
                num_attention_heads=patches.shape[0] // HEAD_DIM,
                image_size=self.side,
                patch_size=patches.shape[2],
                layer_norm_eps=1e-6,
            )
        )
        self.text = BlipTextModel(
            BlipTextConfig(
                vocab_size=words.shape[0],
                bos_token_id=None,
                eos_token_id=None,
                sep_token_id=None,
                hidden_size=words.shape[1],
                encoder_hidden_size=patches.shape[0],
                intermediate_size=tensors["text.encoder.layer.0.intermediate.dense.weight"].shape[0],
                num_hidden_layers=count_blocks(tensors, "text.encoder.layer"),
                num_attention_heads=words.shape[1] // HEAD_DIM,
                max_position_embeddings=tensors["text.embeddings.position_embeddings.weight"].shape[0],
            ),
            add_pooling_layer=False,
        )
        layers = {int(match[1]): tensors[name].shape for name in tensors if (match := _HEAD.match(name))}
        # Dropout lies between the layers, which the numbers in the file count.
        self.head = nn.Sequential(
            *(nn.Linear(layers[n][1], layers[n][0]) if n in layers else nn.Identity() for n in range(max(layers) + 1))
        )

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Rewards [B], not normalised, of pixels [B, 3, side, side] and prompts int64 [B, T]."""
        seen = self.vision(pixel_values=pixels).last_hidden_state
        everything = torch.ones(seen.shape[:2], dtype=torch.long, device=seen.device)
        read = self.text(
            input_ids=ids, attention_mask=mask, encoder_hidden_states=seen, encoder_attention_mask=everything
        )
        rewards: Tensor = self.head(read.last_hidden_state[:, 0])[:, 0]
        return rewards


class ImageReward:
    """The published network with its tokenizer.

    Args:
        where: A folder with `ImageReward.pt` and the tokenizer of bert-base-uncased (`vocab.txt`).
        device: Where the network runs.

    Raises:
        ModelError: If one of them cannot be loaded.
    """

    name = "imagereward"

    def __init__(self, where: str, device: str = "cpu") -> None:
        from transformers import BertTokenizer

        file = Path(where) / FILE
        if not file.is_file():
            raise ModelError(f"extractor {self.name!r}: {where!r} has no {FILE}; name a folder with it and vocab.txt")
        what, tensors = f"model {str(file)!r}", {}
        for name, value in read_tensors(file, "model").items():
            for pattern, new in _RENAMING:
                name = re.sub(pattern, new, name)
            if name.startswith(("vision.", "text.", "head.")) and not name.endswith("position_ids"):
                tensors[name] = value.float()
        with sizes_of(what, "an ImageReward"), building(what, "an ImageReward"):
            empty = RewardNetwork(tensors)
        check_tensors(what, tensors, empty)
        self.model = RewardNetwork(tensors)
        self.model.load_state_dict(tensors)
        self.model.eval().to(device)
        self.tokenizer = load_pretrained(BertTokenizer, where, self.name)
        self.device = torch.device(device)
        self.fingerprint = fingerprint_of(self.model)

    @torch.no_grad()
    def rewards(self, images: Images, prompts: Sequence[str]) -> Features:
        """Normalised rewards float64 [B] of images uint8 [B, H, W, 3] and their prompts; 0 is the authors' mean."""
        encoded = self.tokenizer(
            list(prompts), padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt"
        ).to(self.device)
        pixels = torch.stack([self.pixels(image) for image in images]).to(self.device)
        found = self.model(pixels, encoded["input_ids"], encoded["attention_mask"])
        return np.asarray((found.double().cpu().numpy() - MEAN) / STD)

    def pixels(self, image: Any) -> Tensor:
        """The input [3, side, side] of an image uint8 [H, W, 3]: its middle, as the package's preprocessing cuts it."""
        side, whole = self.model.side, Image.fromarray(image)
        scale = side / min(whole.size)
        wide, high = (side if n == min(whole.size) else int(n * scale) for n in whole.size)
        scaled = whole.resize((wide, high), Image.Resampling.BICUBIC)
        left, top = round((wide - side) / 2), round((high - side) / 2)
        cut = np.asarray(scaled.crop((left, top, left + side, top + side)), dtype=np.float32) / 255
        values = (torch.from_numpy(cut) - torch.tensor(_PIXEL_MEAN)) / torch.tensor(_PIXEL_STD)
        return values.permute(2, 0, 1)
