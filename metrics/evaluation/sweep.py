"""Ranges as users write them: of seeds, and of a recipe's knobs. Imports nothing heavy.

- Seeds: `0..9` is every whole number from 0 to 9, `0..3,7` is 0 to 3 and 7.
- Knobs: `lantern:delta=0.1..0.5` is five recipes evenly from end to end, `delta=0.1..0.5/3` is three, and
  `delta=0.1|0.2|0.4` is those three values; values between whole-number ends are rounded.
- Names: `scd|eagle+lantern` is `scd+lantern` and `eagle+lantern`.

Several ranges in one recipe give every combination.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from mmspec import limits
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse

LAST_SEED = 2**40  # larger ones are those of the plain samples that serve as reference
POINTS = 5
_DIGITS = 15  # of a number in a range; more is a typing error


def read_seeds(text: str) -> list[int]:
    """The seeds in the order written, without duplicates.

    Raises:
        ArgumentError: If a piece is neither a number nor a range, or there are more than `limits.SEEDS`.
    """
    seeds: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(rf"\s*([0-9]{{1,{_DIGITS}}})(?:\.\.([0-9]{{1,{_DIGITS}}}))?\s*", piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < LAST_SEED:
            raise ArgumentError(
                f"--seeds: {piece!r} must be a whole number below 2**40, or an ascending range such as 0..9"
            )
        limits.SEEDS.check("--seeds", len(seeds) + last - first + 1)
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def expand(recipe: str) -> list[Recipe]:
    """The recipes of one text with ranges.

    Raises:
        ArgumentError: If a knob's value is not allowed, a range cannot be read, or there are more recipes than
            `limits.RECIPES`.
        UnknownNameError: If there is no recipe, rule or drafter of that name.
    """
    name, colon, settings = recipe.partition(":")
    choices: list[list[str]] = []
    for setting in settings.split(",") if colon else ():
        knob, equals, value = setting.partition("=")
        choices.append([f"{knob}{equals}{one}" for one in _values(recipe, value.strip())])
        limits.RECIPES.check(f"--recipes: {recipe!r}", prod(map(len, choices)))
    names = ["+".join(pieces) for pieces in product(*(part.split("|") for part in name.split("+")))]
    limits.RECIPES.check(f"--recipes: {recipe!r}", len(names) * prod(map(len, choices)))
    found = [parse(f"{one}{colon}{','.join(combination)}") for one in names for combination in product(*choices)]
    return list({str(one): one for one in found}.values())


def expand_all(recipes: Sequence[str]) -> list[Recipe]:
    """The recipes of several texts with ranges, after plain decoding, which the others are compared with."""
    limits.RECIPES.check("--recipes", len(recipes))
    found = [parse("plain")]
    for recipe in recipes:
        found += expand(recipe)
        limits.RECIPES.check("--recipes", len(found))
    return list({str(one): one for one in found}.values())


def _values(recipe: str, text: str) -> list[str]:
    if "|" in text:
        return [piece.strip() for piece in text.split("|")]
    if ".." not in text:
        return [text]
    number = rf"-?[0-9]{{1,{_DIGITS}}}(?:\.[0-9]{{1,{_DIGITS}}})?(?:e-?[0-9]{{1,2}})?"
    match = re.fullmatch(rf"({number})\.\.({number})(?:/([0-9]{{1,{_DIGITS}}}))?", text)
    points = int(match[3] or POINTS) if match else 0
    if match is None or points < 2:
        raise ArgumentError(f"recipe={recipe!r} is not readable at {text!r}; a range is 0.1..0.5, or 0.1..0.5/POINTS")
    limits.RECIPES.check(f"--recipes: {recipe!r}", points)
    low, high = float(match[1]), float(match[2])
    whole = not re.search(r"[.e]", match[1] + match[2])
    values = [low + (high - low) * i / (points - 1) for i in range(points)]
    return list(dict.fromkeys(str(round(v)) if whole and abs(high - low) > 1 else f"{v:.10g}" for v in values))
