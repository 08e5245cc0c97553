"""Random arguments of the Python API: accepted, or refused with an `MMSpecError` of one line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import TALLY, VALUES, check_no_faults, run_python

import mmspec
from mmspec.metrics.evaluation.folders import measure_folders
from mmspec.metrics.evaluation.sweep import expand, read_seeds
from mmspec.recipes import parse

# Arguments of the calls of image and speech pipelines.
IMAGE = (
    "prompt", "recipe", "seed", "temperature", "top_k", "top_p", "guidance_scale", "num_images_per_prompt", "generator",
    "output_type", "return_dict", "callback_on_step_end", "negative_prompt", "measure_entropy", "on_step", "nosuch",
)  # fmt: skip
SPEECH = ("text", "recipe", "seed", "temperature", "top_k", "top_p", "voice", "measure_entropy", "on_step", "nosuch")
LOAD = ("model", "processor", "tokenizer", "config", "drafter", "device", "dtype")


def options_of(names: tuple[str, ...], rng: random.Random) -> dict[str, Any]:
    chosen = rng.sample(names, rng.choice((1, 1, 2)))
    return {name: rng.choice((*VALUES, torch.zeros(2), torch.float16, parse("scd"))) for name in chosen}


@pytest.mark.usefixtures("workplace")
def test_calls_of_pipelines(rng: random.Random, count: int) -> None:
    before = len(TALLY.faults)
    shapes, spoken = mmspec.load("shapes"), mmspec.load("spoken")
    for _ in range(count):
        for category, pipe, names, text in (
            ("calls of an image pipeline", shapes, IMAGE, "a red circle"),
            ("calls of a speech pipeline", spoken, SPEECH, "hello"),
        ):
            options = options_of(names, rng)
            first = options.pop(names[0], text)
            run_python(category, (first, options), lambda p=pipe, f=first, o=options: p(f, **o))  # type: ignore[misc]
    check_no_faults(before)


@pytest.mark.usefixtures("workplace")
def test_loading(rng: random.Random, count: int) -> None:
    before = len(TALLY.faults)
    for _ in range(count):
        options = options_of(LOAD, rng)
        run_python("mmspec.load", options, lambda o=options: mmspec.load(**o))  # type: ignore[misc]
    check_no_faults(before)


def test_recipes_and_ranges(rng: random.Random, count: int) -> None:
    before = len(TALLY.faults)
    pieces = ("scd", "lantern", "gsd", "nosuch", "plain", ":", ",", "=", "+", "|", "..", "/", "window", "delta", "0.1",
              "5", "9" * 5000, "-1", "nan", "inf", "1e400", " ", "\ud800", "\x00", "auto", "x")  # fmt: skip
    for _ in range(count * 5):
        text = "".join(rng.choices(pieces, k=rng.randrange(9)))
        run_python("recipes", text, lambda text=text: expand(text))  # type: ignore[misc]
        run_python("seeds", text, lambda text=text: read_seeds(text))  # type: ignore[misc]
        knob, value = rng.choice(("window", "coupling", "delta", "x")), rng.choice(VALUES)
        run_python("knobs", (knob, value), lambda k=knob, v=value: parse("scd").with_knobs(**{k: v}))  # type: ignore[misc]
    check_no_faults(before)


@pytest.mark.usefixtures("workplace")
def test_measuring(rng: random.Random, count: int) -> None:
    before = len(TALLY.faults)
    names = ("attributes", "fd@shapes", "kd@shapes", "wer@spoken", "entropy", "clip", "fd@", "@", "", "x")
    paths = [
        Path(name) for name in ("images", "folder", "empty", "nosuch", "x.png", "garbage.npz", "results", "/dev/null")
    ]
    for _ in range(count // 2):
        folders = [Path("images"), *rng.sample(paths, rng.choice((0, 0, 0, 1)))]
        chosen = ["attributes", *rng.sample(names, rng.choice((0, 0, 1)))]
        options = {
            "reference": rng.choice([None, None, None, *paths]),
            "prompts": rng.choice(
                [["a red circle"] * 4, ["a red circle"] * 4, None, [], ["a red circle"] * 5, ["\ud800"] * 4]
            ),
            "device": rng.choice(["cpu", "cpu", "cpu", "cuda:99", "x"]),
            "strict": rng.random() < 0.5,
        }
        case = folders, chosen, options
        run_python("measure_folders", case, lambda f=folders, c=chosen, o=options: measure_folders(f, c, **o))  # type: ignore[misc]
    check_no_faults(before)
