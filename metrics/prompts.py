"""Default prompts of benchmarks and evaluations; any text-to-image model can generate the images, `shapes` included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmspec import limits
from mmspec.errors import ArgumentError

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
    try:
        lines = Path(source).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # not UTF-8, or a path with a null character
        raise ArgumentError(f"--prompts: cannot read '{source}': {error}") from error
    prompts = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not prompts:
        raise ArgumentError(f"--prompts: '{source}' holds no prompt")
    for prompt in prompts[:limit]:
        limits.TEXT.check(f"--prompts: a line of '{source}'", len(prompt))
    return prompts[:limit]
