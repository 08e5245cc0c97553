"""Chameleon and the models tuned from it to draw: Anole and Lumina-mGPT.

transformers' own forward pass forbids every image token; here the head is read before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_inputs, shared_vocabulary_plan


def vocab_size(model: Any) -> int:
    """Size of the vocabulary that logits are over."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """`prefix_allowed_tokens_fn` gives the layout, see `ImageConstraint`; without one, text and images mix freely."""
    refuse_inputs(model, request)
    return shared_vocabulary_plan(model, model.model, model.get_input_embeddings(), model.lm_head, request)


@dataclass(frozen=True)
class Ids:
    """Special ids of the released vocabulary.

    Attributes:
        begin: Of an image.
        end: Of an image.
        stop: Of a turn.
        newline: After each line of a Lumina-mGPT image.
        size: The first of its grid sizes.
    """

    begin: int = 8197
    end: int = 8196
    stop: int = 8710
    newline: int = 8803
    size: int = 8804

    @classmethod
    def of(cls, model: Any) -> Ids:
        """Those of a model, by the names they have in its vocabulary.

        Raises:
            ModelError: For a name it lacks.
        """
        names = model.config.vocabulary_map or {}
        wanted = ("<racm3:break>", "<eoss>", "<reserved08706>", "<reserved08799>", "<reserved08800>")
        for name in wanted:
            if name not in names:
                raise ModelError(f"model.config.vocabulary_map has no {name!r}, which the images of Chameleon need")
        return cls(*(names[name] for name in wanted))


class ImageConstraint:
    """The tokens of an image after a prompt that ends with the begin-of-image token.

    Give it to `model.generate` as `prefix_allowed_tokens_fn`, with `max_new_tokens=image.length`.

    Attributes:
        length: Tokens, the end marks included.
        width: Tokens per line.
    """

    def __init__(self, pattern: Sequence[Sequence[int]], begin: int, width: int) -> None:
        self.length = len(pattern)
        self.width = width
        self._pattern = pattern
        self._begin = begin

    @classmethod
    def anole(cls, model: Any, side: int = 32, ids: Ids = Ids()) -> ImageConstraint:
        """`side` x `side` codes without line ends, then the end of the image.

        Anole guides with `negative_prompt_ids` of begin-of-text and begin-of-image.
        """
        return cls([codes_of(model)] * side**2 + [[ids.end]], ids.begin, side)

    @classmethod
    def lumina(cls, model: Any, height: int, width: int, ids: Ids = Ids()) -> ImageConstraint:
        """Two sizes, `height` lines of `width` codes and a line end, the ends of image and turn.

        Lumina-mGPT guides from begin-of-image on, which is what transformers does without a negative prompt.

        Args:
            height: In tokens, even; 48 for 768 pixels.
            width: In tokens, even; 48 for 768 pixels.
        """
        if height < 2 or width < 2 or height % 2 or width % 2:
            raise ArgumentError(f"height={height}, width={width} is not allowed; they must be even and 2 or more")
        line = [codes_of(model)] * width + [[ids.newline]]
        sizes = [[ids.size + height // 2], [ids.size + width // 2]]
        return cls(sizes + line * height + [[ids.end], [ids.stop]], ids.begin, width + 1)

    def __call__(self, row: int, ids: Tensor) -> Sequence[int]:
        """The ids allowed after `ids` (int64 [n]), whatever the row."""
        begins = (ids == self._begin).nonzero()
        if not len(begins):
            raise ArgumentError(f"the prompt has no begin-of-image token ({self._begin}); it must end with it")
        made = len(ids) - 1 - int(begins[-1])
        return self._pattern[min(made, self.length - 1)]


def codes_of(model: Any) -> list[int]:
    """The ids that stand for image codes."""
    codes: list[int] = model.model.vocabulary_mapping.image_tokens
    if not codes:
        raise ArgumentError("model.config.vocabulary_map names no image tokens (IMGIMG...Z)")
    return codes
