"""Records what the package hpsv3 computes with tiny weights; writes tests/golden/hpsv3.json.

Run with transformers 4.46 and torchvision, and as the only argument the folder that has the package. What it imports
for training stands in here, and so do its instruction and the template of Qwen2-VL's messages.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import tiny_hpsv3 as tiny
import torch
from golden import GOLDEN
from PIL import Image
from transformers import Qwen2TokenizerFast, Qwen2VLConfig, Qwen2VLImageProcessor, Qwen2VLProcessor

TEMPLATE = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% for message in messages %}<|im_start|>"
    "{{ message['role'] }}\n{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STAND_INS = {
    "trl": ["RewardTrainer", "get_kbit_device_map", "get_quantization_config"], "peft": ["PeftModel", "LoraConfig"],
    "matplotlib": [], "matplotlib.pyplot": [], "matplotlib.patches": [], "datasets": [], "pandas": [], "fire": [],
    "torch.utils.tensorboard": ["SummaryWriter"],
    "hpsv3.utils.training_utils": ["get_peft_state_non_lora_maybe_zero_3"],
    "hpsv3.train": ["create_model_and_processor"], "requests": [], "torchvision": ["io"],
    "torchvision.transforms": ["InterpolationMode"], "torchvision.transforms.functional": [],
    "hpsv3.utils.parser": ["ModelConfig", "PEFTLoraConfig", "TrainingConfig", "DataConfig", "parse_args_with_yaml"],
}  # fmt: skip


def stand_in() -> None:
    for name, attributes in STAND_INS.items():
        module: Any = ModuleType(name)
        module.__path__ = []
        for attribute in attributes:
            setattr(module, attribute, type(attribute, (), {}))
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent in STAND_INS:
            setattr(sys.modules[parent], last, module)
    sys.modules["pandas"].DataFrame = object  # type: ignore[attr-defined]
    sys.modules["datasets"].Dataset = object  # type: ignore[attr-defined]


def main(source: Path) -> None:
    sys.path.insert(0, str(source))
    stand_in()
    from hpsv3 import inference
    from hpsv3.model.qwen2vl_trainer import Qwen2VLRewardModelBT

    folder = Path(tempfile.mkdtemp())
    tiny.write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(dict(tiny.CONFIG)), encoding="utf-8")
    tokenizer = Qwen2TokenizerFast.from_pretrained(folder, padding_side="right")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|Reward|>"]})
    ids = tokenizer.convert_tokens_to_ids(["<|Reward|>"])
    config = Qwen2VLConfig.from_pretrained(folder)
    model = Qwen2VLRewardModelBT(
        config, output_dim=2, reward_token="special", special_token_ids=ids, rm_head_type="ranknet"
    )
    model.resize_token_embeddings(len(tokenizer))
    for name, parameter in model.named_parameters():
        parameter.data = tiny.values(name, parameter.shape)
    model.config.pad_token_id = tokenizer.pad_token_id
    whole: Any = inference.HPSv3RewardInferencer.__new__(inference.HPSv3RewardInferencer)
    whole.model, whole.device, whole.use_special_tokens = model.eval(), "cpu", True
    whole.processor = Qwen2VLProcessor(Qwen2VLImageProcessor(), tokenizer, chat_template=TEMPLATE)
    inference.INSTRUCTION, inference.prompt_with_special_token = tiny.INSTRUCTION, tiny.QUESTION
    rewards = whole.reward([Image.fromarray(image) for image in tiny.images()], list(tiny.PROMPTS))[:, 0].tolist()
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    file = GOLDEN / "hpsv3.json"
    file.write_text(json.dumps({"scores": rewards, "shapes": shapes}) + "\n", encoding="utf-8")
    print(rewards)


if __name__ == "__main__":
    with torch.no_grad():
        main(Path(sys.argv[1]))
