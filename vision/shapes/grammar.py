"""The grammar of prompts: `parse` converts a prompt to a `Caption`, `describe` a caption to a prompt."""

from __future__ import annotations

from mmspec.vision.shapes.domain import ANY, BACKGROUNDS, COLOURS, NONE, RELATIONS, SHAPES, SIZES, STYLES, Caption
from mmspec.vision.shapes.prompt_words import PromptWords

GRAMMAR = (
    "[small|large] COLOUR SHAPE [above|below|left of|right of [small|large] COLOUR SHAPE] "
    "[on [plain|striped|checkered|speckled] [white|black|gray|pink|teal] background]"
)
_ARTICLES = ("a", "an", "the")
RELATION_WORDS = tuple(word for relation in RELATIONS for word in relation.split() if word != "of")
WORDS = (*SIZES, *COLOURS, *SHAPES, *RELATION_WORDS, "of", "on", *STYLES, *BACKGROUNDS, "background")


def parse(prompt: str) -> Caption:
    """The caption of a prompt; slots that the prompt does not state are "any".

    Case, articles and punctuation are ignored.

    Raises:
        PromptError: If the prompt is empty, has an unknown word, or does not follow the grammar.
    """
    reader = PromptWords(prompt, WORDS, _ARTICLES, GRAMMAR, "a red circle above a blue square")
    size1, colour1, shape1 = _object(reader)
    relation, size2, colour2, shape2 = NONE, NONE, NONE, NONE
    relation_word = reader.take(RELATION_WORDS)
    if relation_word is not None:
        relation = relation_word
        if relation_word in ("left", "right"):
            reader.need(("of",), "'of'")
            relation = f"{relation_word} of"
        size2, colour2, shape2 = _object(reader)
    style, background = ANY, ANY
    if reader.take(("on",)):
        style = reader.take(STYLES) or ANY
        background = reader.take(BACKGROUNDS) or ANY
        reader.need(("background",), "'background'")
    if reader.words:
        expected = "'on' or the end" if relation != NONE else "a relation, 'on' or the end"
        reader.need((), expected)
    return Caption(size1, colour1, shape1, relation, size2, colour2, shape2, style, background)


def _object(reader: PromptWords) -> tuple[str, str, str]:
    return reader.take(SIZES) or ANY, reader.need(COLOURS, "a colour"), reader.need(SHAPES, "a shape")


def describe(caption: Caption) -> str:
    """The prompt of a caption; `parse` inverts it."""
    text = _noun(caption.size1, caption.colour1, caption.shape1)
    if caption.relation != NONE:
        text += f" {caption.relation} {_noun(caption.size2, caption.colour2, caption.shape2)}"
    stated = [value for value in (caption.style, caption.background) if value != ANY]
    if stated:
        text += f" on a {' '.join(stated)} background"
    return text


def _noun(size: str, colour: str, shape: str) -> str:
    words = [word for word in (size, colour, shape) if word != ANY]
    return f"{'an' if words[0][0] in 'aeiou' else 'a'} {' '.join(words)}"
