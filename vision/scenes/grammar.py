"""The grammar of prompts: `parse` converts a prompt to a `Caption`, `describe` a caption to a prompt."""

from __future__ import annotations

from mmspec.errors import PromptError
from mmspec.vision.scenes.domain import (
    ANY,
    BACKGROUNDS,
    COLORS,
    FILLS,
    KINDS,
    PLACES,
    TEXTURES,
    Caption,
    Object,
)
from mmspec.vision.shapes.prompt_words import PromptWords

GRAMMAR = (
    "[solid|dotted|striped] COLOR SHAPE-OR-DIGIT at the top|bottom left|right, ... "
    "[on [a] [sandy|cloudy|starry|brick] [white|black|gray|pink|teal] background]"
)
_IGNORED = ("a", "an", "the", "and")
_EXAMPLE = "a red star at the top left and a blue 7 at the bottom right"
_SIDES = (("top", "bottom"), ("left", "right"))
WORDS = (*FILLS, *COLORS, *KINDS, "at", *_SIDES[0], *_SIDES[1], "on", *TEXTURES, *BACKGROUNDS, "background")


def parse(prompt: str) -> Caption:
    """The caption of a prompt; slots that the prompt does not state are "any", quadrants that it does not name empty.

    Case, articles, "and" and punctuation are ignored.

    Raises:
        PromptError: If the prompt is empty or does not follow the grammar, such as a word that it does not have.
    """
    reader = PromptWords(prompt, WORDS, _IGNORED, GRAMMAR, _EXAMPLE)
    objects: dict[str, Object] = {}
    while not objects or (reader.words and reader.words[0] != "on"):
        fill = reader.take(FILLS) or ANY
        color = reader.need(COLORS, "a color")
        kind = reader.need(KINDS, "a shape or a digit")
        reader.need(("at",), "'at'")
        where = f"{reader.need(_SIDES[0], 'top or bottom')} {reader.need(_SIDES[1], 'left or right')}"
        if where in objects:
            raise PromptError(f"{reader.prompt!r} names two objects at the {where}; there is room for one")
        objects[where] = Object(kind, color, fill)
    texture, background = ANY, ANY
    if reader.take(("on",)):
        texture = reader.take(TEXTURES) or ANY
        background = reader.take(BACKGROUNDS) or ANY
        reader.need(("background",), "'background'")
    if reader.words:
        reader.need((), "the end")
    a, b, c, d = (objects.get(each) for each in PLACES)
    return Caption((a, b, c, d), texture, background)


def describe(caption: Caption) -> str:
    """The prompt of a caption; `parse` inverts it."""
    parts = []
    for each, where in zip(caption.objects, PLACES, strict=True):
        if each is not None:
            words = [word for word in (each.fill, each.color, each.kind) if word != ANY]
            parts.append(f"{'an' if words[0][0] in 'aeiou' else 'a'} {' '.join(words)} at the {where}")
    text = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    stated = [value for value in (caption.texture, caption.background) if value != ANY]
    return f"{text} on a {' '.join(stated)} background" if stated else text
