"""HPSv3 (Ma et al. 2025): a Qwen2-VL that reads an image, its prompt and an instruction, and rates it in one token."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, describe, read_tensors, sizes_of
from mmspec.files.documents import one_line
from mmspec.files.inputs import read_text
from mmspec.hf.folder import LOAD_ERRORS, read_config
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.pretrained import load_pretrained
from mmspec.metrics.features import Features

WEIGHTS = "HPSv3.safetensors"
INSTRUCTIONS = "data_collator_qwen.py"
REWARD = "<|Reward|>"  # the token that is rated, appended to Qwen2-VL's vocabulary
PIXELS = 256 * 28 * 28  # of an image, about
_PIXEL_MEAN, _PIXEL_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"  # of Qwen2-VL
_HEAD, _TEXT, _UNUSED = "rm_head.", "model.", "lm_head."  # beginnings of names in the file; the others are the vision's


class HPSv3:
    """The published network.

    Args:
        where: A folder with `HPSv3.safetensors` of MizzenAI/HPSv3; the configuration and the tokenizer of
            Qwen/Qwen2-VL-7B-Instruct; and `data_collator_qwen.py` of the package hpsv3, which has the instruction and
            is read, not run.
        device: Where the network runs, with weights of the file's type.

    Raises:
        ModelError: If one of them cannot be loaded.
    """

    name = "hpsv3"

    def __init__(self, where: str, device: str = "cpu") -> None:
        from transformers import AutoTokenizer, Qwen2VLModel

        folder = Path(where)
        for file in (WEIGHTS, INSTRUCTIONS):
            if not (folder / file).is_file():
                raise ModelError(
                    f"extractor {self.name!r}: {where!r} has no {file}; name a folder with {WEIGHTS}, "
                    f"{INSTRUCTIONS} of the package hpsv3 and the files of Qwen2-VL-7B-Instruct without its weights"
                )
        self.instruction, self.question = read_instruction(folder / INSTRUCTIONS)
        self.tokenizer = load_pretrained(AutoTokenizer, where, self.name)
        self.tokenizer.add_special_tokens({"additional_special_tokens": [REWARD]})
        what, tensors, head = f"model {str(folder / WEIGHTS)!r}", {}, {}
        config = read_config(Qwen2VLModel, folder, what)
        for name, value in read_tensors(folder / WEIGHTS, "model").items():
            if name.startswith(_HEAD):
                head[name.removeprefix(_HEAD)] = value.float()
            elif not name.startswith(_UNUSED):
                tensors[name.replace(_TEXT, "language_model.", 1) if name.startswith(_TEXT) else name] = value
        with sizes_of(what, "an HPSv3"):
            config.text_config.vocab_size = len(tensors["language_model.embed_tokens.weight"])
        with building(what, "an HPSv3"):
            check_tensors(what, tensors, Qwen2VLModel(config))
        dtype = tensors["language_model.embed_tokens.weight"].dtype
        try:
            model = Qwen2VLModel.from_pretrained(None, config=config, state_dict=tensors, dtype=dtype)
        except LOAD_ERRORS as error:
            raise ModelError(f"{what} cannot be loaded: {describe(error)}") from None
        self.model = model.to(device).eval()
        self.head = _head(head, what).to(device)
        self.device = torch.device(device)
        self.fingerprint = fingerprint_of(nn.ModuleList([self.model, self.head]))

    @torch.no_grad()
    def rewards(self, images: Images, prompts: Sequence[str]) -> Features:
        """Rewards float64 [B] of images uint8 [B, H, W, 3] and their prompts; each pair is read alone."""
        return np.array([self._reward(image, prompt) for image, prompt in zip(images, prompts, strict=True)])

    def _reward(self, image: Any, prompt: str) -> float:
        vision = self.model.config.vision_config
        patches, grid = self.patches(image)
        count = math.prod(grid) // vision.spatial_merge_size**2
        pads = "<|image_pad|>" * count
        # A special token that a prompt spells out would otherwise become one, such as a second reward.
        text = self.instruction.format(text_prompt=prompt.replace("<|", "< |")) + self.question
        ids = self.tokenizer(
            f"{_SYSTEM}<|im_start|>user\n<|vision_start|>{pads}<|vision_end|>{text}<|im_end|>\n<|im_start|>assistant\n",
            return_tensors="pt",
        ).input_ids.to(self.device)
        seen = self.model.visual(
            patches.to(self.device, self.model.dtype), grid_thw=torch.tensor([grid]).to(self.device)
        )
        embedded = self.model.get_input_embeddings()(ids)
        patches_read = getattr(seen, "pooler_output", seen).to(embedded)
        embedded[ids == self.tokenizer.convert_tokens_to_ids("<|image_pad|>")] = patches_read
        # Positions count all tokens alike: the original calls the language model without those of rows and columns.
        places = torch.arange(ids.shape[1], device=self.device).expand(3, 1, -1)
        read = self.model.language_model(inputs_embeds=embedded, position_ids=places, use_cache=False)
        rated = read.last_hidden_state[ids == self.tokenizer.convert_tokens_to_ids(REWARD)]
        return float(self.head(rated.float())[0, 0])  # the second number is its uncertainty

    def patches(self, image: Any) -> tuple[Tensor, tuple[int, int, int]]:
        """The patches [rows * columns, D] of an image uint8 [H, W, 3] at about `PIXELS`, and (1, rows, columns)."""
        vision = self.model.config.vision_config
        size, merge, frames = vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
        whole = Image.fromarray(image)
        height, width = fitted(whole.height, whole.width, size * merge)
        scaled = np.asarray(whole.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) / 255
        values = (torch.from_numpy(scaled) - torch.tensor(_PIXEL_MEAN)) / torch.tensor(_PIXEL_STD)
        rows, columns = height // size, width // size
        cut = values.reshape(rows // merge, merge, size, columns // merge, merge, size, 3)
        cut = cut.permute(0, 3, 1, 4, 6, 2, 5)  # patches of one merged token follow each other
        cut = cut.reshape(rows * columns, 3, 1, size, size).expand(-1, -1, frames, -1, -1)
        return cut.reshape(rows * columns, -1), (1, rows, columns)


def fitted(height: int, width: int, factor: int) -> tuple[int, int]:
    """The sides of about `PIXELS` pixels, multiples of `factor`, with nearly the ratio of `height` to `width`."""
    high, wide = (max(factor, round(side / factor) * factor) for side in (height, width))
    if high * wide == PIXELS:
        return high, wide
    scale = math.sqrt(PIXELS / (height * width))
    rounded = math.floor if high * wide > PIXELS else math.ceil
    return tuple(max(factor, rounded(side * scale / factor) * factor) for side in (height, width))  # type: ignore[return-value]


def read_instruction(file: Path) -> tuple[str, str]:
    """The instruction, with a place `{text_prompt}`, and the question after it, from the constants of a Python file.

    Raises:
        ModelError: If the file does not have them as plain texts.
    """
    found: dict[str, str] = {}
    try:
        for line in ast.parse(read_text(file, "file")).body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                value = line.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[line.targets[0].id] = value.value
        instruction, question = found["INSTRUCTION"], found["prompt_with_special_token"]
        places = {place[1:] for place in Formatter().parse(instruction) if place[1] is not None}
        if REWARD not in question or places != {("text_prompt", "", None)}:
            raise ValueError(f"there is no {REWARD}, or {{text_prompt}} is not the one place")
    except (OSError, ValueError, SyntaxError, KeyError, RecursionError, MemoryError) as error:
        raise ModelError(
            f"'{file}' has no INSTRUCTION and prompt_with_special_token of HPSv3: {one_line(error)}"
        ) from None
    return instruction, question


def _head(tensors: dict[str, Tensor], what: str) -> nn.Sequential:
    """The layers that rate a token, in float32 as published: their numbers count activations and dropout."""
    with sizes_of(what, "an HPSv3"), torch.no_grad():
        numbers = sorted({int(name.split(".")[0]) for name in tensors})
        head = nn.Sequential()
        for n in numbers:
            weight = tensors[f"{n}.weight"]
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": weight, "bias": tensors[f"{n}.bias"]})
            head.append(layer)
            if n != numbers[-1]:
                head.append(nn.ReLU())
        if not numbers or len(tensors[f"{numbers[-1]}.weight"]) != 2:
            raise ModelError(f"{what} is not an HPSv3: its head must have two outputs")
    return head.eval()
