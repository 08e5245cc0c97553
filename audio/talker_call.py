"""Questions to an Omni model of Qwen up to the call of its talker, as the model's own `generate` prepares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.files.checkpoint import describe


@dataclass(frozen=True)
class Question:
    """A question in text.

    Attributes:
        text: The question.
        system: A system prompt, or None.
        speaker: The name of the voice that answers.
        answer_tokens: Tokens of the answer's text, at most.
    """

    text: str
    system: str | None
    speaker: str
    answer_tokens: int


@dataclass(frozen=True)
class TalkerCall:
    """What a talker is called with.

    Attributes:
        input_ids: The ids of its prompt, int64 [1, T]; T may be 0.
        inputs: Its other inputs.
        processors: Its logits processors.
        answer: The text that it speaks.
    """

    input_ids: Tensor
    inputs: Mapping[str, Any]
    processors: Any
    answer: str


class _TalkerCalledError(Exception):
    """Ends a call of `generate` where it calls the talker."""

    def __init__(self, input_ids: Tensor, processors: Any, inputs: Mapping[str, Any]) -> None:
        super().__init__("the talker was called")
        self.input_ids, self.processors, self.inputs = input_ids, processors, inputs


class _Answer(BaseStreamer):
    """Collects the ids that a thinker generates."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._prompt = True

    def put(self, value: Tensor) -> None:
        if not self._prompt:
            self.ids += value.flatten().tolist()
        self._prompt = False

    def end(self) -> None:
        pass


def call_talker(model: Any, processor: Any, question: Question, **arguments: Any) -> TalkerCall:
    """Lets the thinker answer a question, with the most likely tokens, and returns how the talker is called then.

    Args:
        model: A `Qwen3OmniMoeForConditionalGeneration` or a `Qwen2_5OmniForConditionalGeneration`.
        processor: Its processor, or its tokenizer with the chat template.
        **arguments: Other arguments of the model's `generate`.

    Raises:
        ArgumentError: If the processor has no chat template.
        PromptError: If the question and the answer do not fit into the thinker's positions.
        ModelError: If the talker is not called.
    """
    roles = [("system", question.system), ("user", question.text)]
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in roles if text is not None]
    try:
        chat = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except (AttributeError, ImportError, ValueError) as error:
        name = type(processor).__name__
        raise ArgumentError(
            f"processor is a {name} that writes no chat, which Omni models read: {describe(error)}"
        ) from None
    tokenizer = getattr(processor, "tokenizer", processor)
    ids, answer = tokenizer(chat, return_tensors="pt")["input_ids"].to(model.device), _Answer()
    positions = int(model.thinker.config.get_text_config().max_position_embeddings)
    if ids.shape[1] + question.answer_tokens > positions:
        raise PromptError(
            f"text of {ids.shape[1]} tokens is too long; of the model's {positions} positions, "
            f"{question.answer_tokens} are for its answer"
        )

    def stop(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **inputs: Any,
    ) -> None:
        raise _TalkerCalledError(input_ids, logits_processor, inputs)

    try:
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            speaker=question.speaker,
            thinker_max_new_tokens=question.answer_tokens,
            thinker_do_sample=False,
            thinker_streamer=answer,
            talker_do_sample=False,
            talker_custom_generate=stop,
            **arguments,
        )
    except _TalkerCalledError as call:
        text = tokenizer.decode(answer.ids, skip_special_tokens=True)
        return TalkerCall(call.input_ids, call.inputs, call.processors, text)
    raise ModelError("the model answered without its talker; enable it with enable_talker")
