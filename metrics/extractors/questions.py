"""Networks that answer questions about images: a BLIP of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.pretrained import load_pretrained, pixel_values


class VisualQuestions:
    """A `BlipForQuestionAnswering` with its processor.

    Args:
        where: A folder or Hub id with model, image processor and tokenizer.
        device: Where the network runs.

    Raises:
        ModelError: If one of them cannot be loaded.
    """

    name = "vqa"

    def __init__(self, where: str, device: str = "cpu") -> None:
        from transformers import AutoImageProcessor, AutoTokenizer, BlipForQuestionAnswering

        self.model = load_pretrained(BlipForQuestionAnswering, where, self.name).float().eval().to(device)
        self.processor = load_pretrained(AutoImageProcessor, where, self.name)
        self.tokenizer = load_pretrained(AutoTokenizer, where, self.name)
        self.fingerprint = fingerprint_of(self.model)

    @torch.no_grad()
    def answer(self, image: Any, questions: Sequence[str]) -> list[str]:
        """The most likely answer to each question about an image uint8 [H, W, 3], in lower case."""
        device = self.model.device
        pixels = pixel_values(self.processor, image[None], device).expand(len(questions), -1, -1, -1)
        asked = self.tokenizer(list(questions), padding=True, truncation=True, max_length=512, return_tensors="pt")
        ids = self.model.generate(
            input_ids=asked["input_ids"].to(device), attention_mask=asked["attention_mask"].to(device),
            pixel_values=pixels, do_sample=False, max_new_tokens=10,
        )  # fmt: skip
        return [text.strip().lower() for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]
