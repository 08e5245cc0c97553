"""The real processors of transformers with vocabularies of a few words, for the models of `tiny_models`."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    ChameleonImageProcessor,
    ChameleonProcessor,
    Emu3ImageProcessor,
    Emu3Processor,
    GlmImageImageProcessor,
    GlmImageProcessor,
    ImageGPTImageProcessor,
    JanusImageProcessor,
    JanusProcessor,
    PreTrainedTokenizerFast,
)

TEMPLATE = "{% for message in messages %}{{ message['content'][0]['text'] }}{% endfor %}"
WORDS = ("a", "red", "green", "dog", "cat")


def words(vocabulary: dict[str, int], first: int, begin: str | None, **special: Any) -> PreTrainedTokenizerFast:
    """A tokenizer.

    Args:
        vocabulary: Special tokens and their ids.
        first: The id of the first of `WORDS`; unknown words have the id of the last one.
        begin: A token that precedes every text, or None.
        **special: Names of special tokens, as in transformers.
    """
    ids = vocabulary | {word: first + i for i, word in enumerate(WORDS)}
    made = Tokenizer(WordLevel(ids, unk_token=WORDS[-1]))
    made.pre_tokenizer = Whitespace()
    if begin is not None:
        made.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, ids[begin])])
    own = {name: special.pop(name) for name in ("bos_token", "eos_token", "pad_token", "sep_token") if name in special}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token=WORDS[-1], padding_side="right", extra_special_tokens=special, **own
    )


def janus() -> Any:
    names = {"<pad>": 0, "<s>": 1, "</s>": 2, "<boi>": 3, "<image>": 4, "<eoi>": 5}
    tokenizer = words(
        names, 10, "<s>", bos_token="<s>", eos_token="</s>", pad_token="<pad>", image_token="<image>",
        boi_token="<boi>", eoi_token="<eoi>",
    )  # fmt: skip
    return JanusProcessor(JanusImageProcessor(), tokenizer, chat_template=TEMPLATE, num_image_tokens=16)


def emu3() -> Any:
    names = {"<pad>": 0, "<s>": 1, "</s>": 2, "<wrap>": 3, "<eol>": 4, "<eof>": 5, "<eoi>": 6, "<image>": 7, "<boi>": 8}
    tokenizer = words(
        names | {"4": 36, "*": 37}, 30, None, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        image_token="<image>", boi_token="<boi>", eoi_token="<eoi>", image_wrapper_token="<wrap>", eof_token="<eof>",
    )  # fmt: skip
    return Emu3Processor(Emu3ImageProcessor(), tokenizer)


def chameleon() -> Any:
    names = {"<s>": 0, "<pad>": 1, "</s>": 2, "<image>": 3, "<eoss>": 24, "<racm3:break>": 25, "<reserved08706>": 26}
    tokenizer = words(
        names, 33, "<s>", bos_token="<s>", eos_token="</s>", pad_token="<pad>", sep_token="<reserved08706>"
    )
    return ChameleonProcessor(ChameleonImageProcessor(), tokenizer, image_seq_length=16)


def imagegpt() -> Any:
    clusters = np.random.default_rng(0).uniform(-1, 1, (20, 3))
    return ImageGPTImageProcessor(clusters=clusters.tolist(), size={"height": 4, "width": 4})


def glm() -> Any:
    """The grids of its images are larger than those of the tiny model."""
    names = {"<pad>": 45, "<boi>": 20, "<image>": 46, "<grid>": 22, "</grid>": 23}
    tokenizer = words(
        names, 30, None, bos_token="<boi>", pad_token="<pad>", image_token="<image>", grid_bos_token="<grid>",
        grid_eos_token="</grid>",
    )  # fmt: skip
    return GlmImageProcessor(GlmImageImageProcessor(), tokenizer, chat_template=TEMPLATE)
