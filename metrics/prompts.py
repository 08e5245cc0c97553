"""Default prompts of benchmarks and evaluations; any text-to-image model can generate the images, `shapes` included."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from mmspec import limits
from mmspec.errors import ArgumentError
from mmspec.files.inputs import read_text
from mmspec.media.text import prompt_lines

BUILTIN = (
    "a red circle above a blue square",
    "a large green star on a white background",
    "a small yellow star left of a purple cross",
    "an orange triangle on a striped teal background",
    "a blue cross below a red star",
    "a large purple square right of a small green circle",
    "a yellow star above an orange star on a black background",
    "a small red triangle on a speckled gray background",
    "a green star left of a yellow triangle",
    "a blue circle on a checkered pink background",
    "a large orange cross above a small red square",
    "a purple star below a green triangle on a plain white background",
    "a small blue square right of an orange star",
    "a red star on a striped black background",
    "a yellow circle left of a blue circle",
    "a large green cross below a purple triangle on a checkered gray background",
)


# Texts for speech models, `spoken` included.
SPEECH = (
    "please turn on the red light in the kitchen",
    "the train to the airport leaves from platform nine at seven forty five",
    "call extension four zero seven two",
    "it is half past three",
    "set the temperature in the bedroom to twenty one degrees",
    "good morning, clara, welcome to the museum",
    "you have twelve new messages from henry",
    "turn left after three hundred meters",
    "the weather tomorrow will be sunny",
    "your number is B K seven one nine",
    "what is the temperature in the garden?",
    "minus eight point five",
    "flight A three six one is forty minutes late",
    "lock the office door",
    "today is friday, sixteen degrees and windy",
    "thank you, anna, goodbye",
)


# Prompts of `scenes`, whose grammar is its own.
SCENES = (
    "a red star at the top left, a blue triangle at the top right and a solid yellow square at the bottom right",
    "a yellow square at the top left and a solid red ring at the bottom left on a teal background",
    "a green 9 at the top left and a yellow 5 at the bottom left on a gray background",
    "a solid red 1 at the bottom left and an orange cross at the bottom right on a starry background",
    "a striped purple 7 at the top left and a dotted yellow 2 at the bottom left on a brick background",
    "a blue triangle at the bottom left and a dotted orange circle at the bottom right on a white background",
    "a solid blue 9 at the top right and a dotted purple 9 at the bottom left on a cloudy background",
    "a dotted blue 3 at the top left and a solid orange triangle at the bottom right on a pink background",
    "a striped blue square at the top left and a dotted blue cross at the bottom right on a sandy white background",
    "a purple 8 at the top right on a brick black background",
    "a red 2 at the top left, a red 0 at the top right and a red 4 at the bottom left on a white background",
    "a striped green circle at the bottom right on a starry pink background",
    "a blue 6 at the top left, a green 6 at the top right and a red 6 at the bottom right on a pink background",
    "an orange ring at the top right and an orange cross at the bottom left on a cloudy black background",
    "a dotted yellow 4 at the bottom right on a brick teal background",
    "a purple star at the top left, a striped purple 3 at the bottom left and a yellow cross at the bottom right",
)
# Of models whose prompts differ from those of other models of their kind.
BY_MODEL = {"scenes": SCENES, "spoken": SPEECH}


def read_prompts(source: str, limit: int | None = None, builtin: Sequence[str] = BUILTIN) -> list[str]:
    """Reads the prompts of a text file, one per line; blank lines and lines that start with # are skipped.

    Args:
        source: A path, or the word `builtin`.
        limit: Keep only the first `limit` prompts; None keeps all.
        builtin: The prompts that the word `builtin` stands for.

    Raises:
        ArgumentError: If the file cannot be read, holds no prompt, or one longer than `limits.TEXT`.
    """
    if source == "builtin":
        return list(builtin[:limit])
    prompts = [line for _, line in prompt_lines(StringIO(read_text(Path(source), "--prompts")))]
    if not prompts:
        raise ArgumentError(f"--prompts: '{source}' holds no prompt")
    for prompt in prompts[:limit]:
        limits.TEXT.check(f"--prompts: a line of '{source}'", len(prompt))
    return prompts[:limit]
