"""Class ids of a call, given as labels or as prompts that are numbers; and which pipelines have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import shown, text_list
from mmspec.errors import ArgumentError, PromptError
from mmspec.pipeline import has_classes


def class_count(pipe: Any) -> int | None:
    """The number of classes of a model that generates classes; None for another model."""
    config = pipe.transformer.config if has_classes(pipe) and hasattr(pipe, "transformer") else None
    names = ("num_classes", "class_num")
    return next((int(getattr(config, name)) for name in names if hasattr(config, name)), None)


def read_classes(
    prompt: str | Sequence[str] | None, class_labels: int | Sequence[int] | Tensor | None, count: int
) -> Tensor:
    """Class ids, int64 [n] in 0..count - 1.

    Args:
        prompt: Class ids as text, such as "207"; instead of `class_labels`.
        class_labels: One or more class ids.
        count: The number of classes.

    Raises:
        ArgumentError: If not exactly one of both is given, or an id is not a class.
        PromptError: If a prompt is not the number of a class.
    """
    if (prompt is None) == (class_labels is None):
        raise ArgumentError("exactly one of prompt and class_labels is needed")
    if prompt is not None:
        texts = [text.strip() for text in text_list("prompt", prompt)]
        # The length, as Python refuses to read numbers of thousands of digits.
        if not all(text.isdecimal() and len(text) < 10 and int(text) < count for text in texts):
            raise PromptError(f"prompt={shown(texts)} is not allowed; give numbers of classes, 0 to {count - 1}")
        class_labels = [int(text) for text in texts]
    labels = read_labels(class_labels)
    if not len(labels) or labels.is_floating_point() or bool(((labels < 0) | (labels >= count)).any()):
        raise ArgumentError(f"class_labels={shown(labels.tolist())} is not allowed; give class ids, 0 to {count - 1}")
    return labels


def read_class(prompt: Any, class_labels: Any, count: int) -> Tensor:
    """The class of a request, int64 [1].

    Args:
        prompt: A class id as text, such as "207"; instead of `class_labels`.
        class_labels: A class id.
        count: The number of classes.

    Raises:
        ArgumentError: If not exactly one class is given, or it is none of the model.
        PromptError: If a prompt is not the number of a class.
    """
    labels = read_classes(prompt, class_labels, count)
    if len(labels) != 1:
        raise ArgumentError(f"a request has one class, not {len(labels)}; send one request for each")
    return labels


def read_labels(labels: Any) -> Tensor:
    """Class labels as int64 [n].

    Raises:
        ArgumentError: If they are not integers.
    """
    try:
        ids = torch.as_tensor(labels).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        ids = torch.zeros(1)
    if ids.numel() and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
        raise ArgumentError(f"class_labels={shown(labels)} is not allowed; it must be an integer, or several")
    return ids.long()
