"""Networks that answer questions about images: a BLIP of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmspec.metrics.extractors.pretrained import PretrainedExtractor, pixel_values


class VisualQuestions(PretrainedExtractor):
    """A `BlipForQuestionAnswering` with its processor."""

    name = "vqa"
    model_class = "BlipForQuestionAnswering"
    reads_text = True

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
