"""Records what the package image-reward computes with tiny weights; writes tests/golden/image_reward.json.

Run with torchvision, timm and transformers 4.46, and as the only argument the folder that has the package. fairscale,
which the package imports for training, and its download of BERT's tokenizer stand in here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from PIL import Image
from tiny_image_reward import MED, PATCH, PROMPTS, SIDE, TEXT, VISION, images, values, write_vocabulary
from transformers import BertTokenizer


def main(source: Path) -> None:
    sys.path.insert(0, str(source))
    for name in ("ImageReward", "ImageReward.models", "ImageReward.models.BLIP"):
        package = ModuleType(name)
        package.__path__ = [str(source.joinpath(*name.split(".")))]
        sys.modules[name] = package
    for name in (
        "fairscale",
        "fairscale.nn",
        "fairscale.nn.checkpoint",
        "fairscale.nn.checkpoint.checkpoint_activations",
    ):
        module: Any = ModuleType(name)
        module.__path__, module.checkpoint_wrapper = [], None
        sys.modules[name] = module
    from ImageReward.models.BLIP import blip_pretrain

    folder = Path(tempfile.mkdtemp())
    write_vocabulary(folder)
    (folder / "med.json").write_text(json.dumps(dict(MED)))
    from ImageReward.models.BLIP import blip
    from ImageReward.models.BLIP.vit import VisionTransformer

    read = BertTokenizer.from_pretrained
    blip.BertTokenizer.from_pretrained = lambda name: read(str(folder))
    small = VisionTransformer(img_size=SIDE, patch_size=PATCH, embed_dim=VISION, depth=2, num_heads=VISION // 64)
    blip_pretrain.create_vit = lambda *arguments: (small, VISION)
    from ImageReward import ImageReward as original

    original.MLP.__init__.__globals__["_transform"] = original._transform
    head = original.MLP
    original.MLP = lambda size: head(TEXT)
    transform = original._transform
    original._transform = lambda pixels: transform(SIDE)
    model = original.ImageReward(str(folder / "med.json")).eval()
    for name, parameter in model.named_parameters():
        parameter.data = values(name, parameter.shape)
    scores = [model.score(prompt, Image.fromarray(image)) for prompt, image in zip(PROMPTS, images(), strict=True)]
    shapes = {
        name: list(value.shape) for name, value in model.state_dict().items()
        if not name.startswith(("blip.vision_proj", "blip.text_proj"))
    }  # fmt: skip
    file = GOLDEN / "image_reward.json"
    file.write_text(json.dumps({"scores": scores, "shapes": shapes}) + "\n", encoding="utf-8")
    print(scores)


if __name__ == "__main__":
    with torch.no_grad():
        main(Path(sys.argv[1]))
