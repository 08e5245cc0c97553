"""Arguments of image and video pipelines: a wrong value is refused in one line that names the argument."""

from __future__ import annotations

import inspect
import math
import re
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from golden import GOLDEN
from image_pipelines import CASES
from infinity_weights import SIZES, texts
from tiny_infinity import tiny_infinity

import mmspec
from mmspec.decoding.stats import Meter
from mmspec.errors import MMSpecError
from mmspec.vision.hf.interleaved import InterleavedGenerator
from mmspec.vision.infinity import decode_bits
from mmspec.vision.var.checkpoint import load_var

# Every value is wrong for an argument that is not in `RIGHT`.
VALUES: dict[str, Any] = {
    "5": 5, "-2": -2, "0": 0, "2.5": 2.5, "tiny": 1e-9, "nan": math.nan, "inf": math.inf, "huge": 10**400,
    "None": None, "True": True, "False": False, "empty": "", "x": "x", "number": "5", "bytes": b"x",
    "[]": [], "[1]": [1], "[None]": [None], "[x]": ["x"], "[x, y]": ["x", "y"], "(1, 2)": (1, 2), "{}": {},
    "{x}": {"x": 1}, "object": object(), "array": np.zeros(3), "np.float": np.float32(2.5), "np.int": np.int64(3),
    "tensor": torch.ones(2), "scalar": torch.tensor(3), "path": Path("x"), "type": int, "function": lambda: 1,
    "dtype": torch.float16, "generator": torch.Generator(), "generators": [torch.Generator()],
}  # fmt: skip
NUMBERS = "5 2.5 np.float np.int"
# Values that are right for an argument of some pipeline.
RIGHT = {
    "prompt": "None empty x number [x] [x, y]",
    "negative_prompt": "None empty x number [x]",
    "class_labels": "None 5 0 [1] (1, 2) np.int scalar",
    "seed": "None 5 0 [1] np.int scalar huge",
    "seeds": "None 5 0 (1, 2) np.int scalar huge",
    "temperature": f"None {NUMBERS} 0 tiny (1, 2)",
    "top_k": "None 5 0 np.int",
    "top_p": "None tiny",
    "min_p": "None 0 tiny",
    "typical_p": "None tiny",
    "guidance_scale": f"None {NUMBERS} 0 tiny",
    "scale": f"{NUMBERS} 0 tiny",
    "cfg_interval": "5 0 np.int",
    "num_images_per_prompt": "5 np.int",
    "num_videos_per_prompt": "5 np.int",
    "generator": "None generator generators",
    "return_dict": "True False",
    "measure_entropy": "True False",
    "measure_distance": "True False",
    "on_step": "None function type",
    "callback_on_step_end": "None function type",
    "callback_on_step_end_tensor_inputs": "[]",
    "steps": "None 5 np.int",
    "head_steps": "None 5 np.int",
    "batch_size": "None 5 np.int",
    "ahead": "np.int",
    "refresh": "np.int",
    "confidence": "0 tiny",
    "large_scales": "None np.int",
    "max_new_tokens": "5 np.int",
    "extent": "None (1, 2)",
}
OPTIONAL = "height width recipe cfg_schedule keep prompt_embeds prompt_attention_mask video tokens num_input_frames"
OPTIONAL += " text_sampling image_sampling small large_maps"
RIGHT |= {name: "None" for name in OPTIONAL.split()}
CONDITIONS = ("prompt", "class_labels", "prompt_embeds")


def problem(name: str, value: Any, call: Callable[[], Any]) -> str | None:
    """Why a call with a wrong value of an argument is not refused as it should be; None if it is."""
    try:
        call()
    except MMSpecError as error:
        text = str(error)
        # Conditions exclude each other, so that one is named for another.
        clear = (name in text or name in CONDITIONS) and "\n" not in text and len(text) < 700
        return None if clear else f"{name}={value!r:.60}: {text[:200]}"
    except Exception as error:
        return f"{name}={value!r:.60}: {type(error).__name__}: {str(error)[:200]}"
    return f"{name}={value!r:.60} is accepted"


def problems(names: Iterable[str], call: Callable[[str, Any], Any], right: str | None = None) -> list[str]:
    """The wrong values that are not refused as they should be.

    Args:
        names: Arguments.
        call: Calls with a value of an argument.
        right: Names of the right values; None is those in `RIGHT`.
    """
    found = []
    for name in names:
        allowed = re.split(r" (?![^(\[]*[)\]])", RIGHT.get(name, "") if right is None else right)
        wrong = (value for label, value in VALUES.items() if label not in allowed)
        found += [problem(name, value, partial(call, name, value)) for value in wrong]
    return [each for each in found if each is not None]


def replaced(given: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A call with another value of an argument, without the arguments that exclude it."""
    excluded = CONDITIONS if name in CONDITIONS else ("seed",) if name == "generator" else ()
    return {key: old for key, old in given.items() if key not in excluded} | {name: value}


@pytest.mark.parametrize("case", list(CASES))
def test_wrong_values_are_refused(case: str) -> None:
    own = CASES[case]
    pipe, given = own.make(), {"seed": 0, "output_type": "np" if own.pixels else "latent", **own.call}
    method = pipe.stream if isinstance(pipe, InterleavedGenerator) else pipe.__call__
    found = problems(inspect.signature(method).parameters, lambda name, value: pipe(**replaced(given, name, value)))
    if own.pixels:
        size = {name: own.call[name] for name in ("height", "width") if name in own.call}
        found += problems(["tokens"], lambda _, value: pipe.decode(value, **size), right="")
        found += problems(["output_type"], lambda _, value: pipe.decode(torch.zeros(1, 1), output_type=value))
    assert not found, "\n".join(found)


def test_wrong_values_of_infinity_are_refused() -> None:
    model = tiny_infinity()
    given: dict[str, Any] = {
        "large": model, "texts": texts(), "sizes": SIZES, "seeds": [0, 1], "meter": Meter(model.device, 2),
    }  # fmt: skip
    names = ("texts", "sizes", "sampling", "scale", "extent", "small", "large_maps")
    found = problems(names, lambda name, value: decode_bits(**(given | {name: value})))
    found += problems(["seed"], lambda _, value: decode_bits(**(given | {"seeds": value})), right=RIGHT["seeds"])
    assert not found, "\n".join(found)


LOADING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "layout": (lambda value: mmspec.load(tiny_models.janus(), config={"layout": value}), "None"),
    "video_latent_shape": (lambda value: mmspec.load(GOLDEN / "cosmos_base", config={"video_latent_shape": value}), ""),
    "apply_yarn": (lambda value: mmspec.load(GOLDEN / "cosmos_base", config={"apply_yarn": value}), "None True False"),
    "draft_model": (lambda value: mmspec.load(GOLDEN / "cosmos_base", config={"draft_model": value}), "None"),
    "patch_nums": (lambda value: load_var(GOLDEN / "var" / "var_d2.pth", {"patch_nums": value}), ""),
}


@pytest.mark.parametrize("name", list(LOADING))
def test_wrong_values_of_options_are_refused(name: str) -> None:
    load, right = LOADING[name]
    found = problems([name], lambda _, value: load(value), right)
    assert not found, "\n".join(found)


# Those whose guidance is off at 1, without long images.
GUIDED = ["janus", "emu3", "anole", "lumina", "simplear", "flat-emu3", "emu3.5", "llamagen", "mar", "amused"]


@pytest.mark.parametrize("name", GUIDED)
def test_guidance_of_1_and_below_is_off(name: str) -> None:
    """As in diffusers; a scale of 0 is not the unconditional distribution, which ignores the prompt."""
    case = CASES[name]
    pipe = case.make()
    call: dict[str, Any] = {**case.call, "output_type": "latent", "seed": 0, "recipe": "plain"}
    off, none, half, guided = (pipe(**call, guidance_scale=scale).tokens for scale in (1, 0, 0.5, 3.0))
    assert torch.equal(off, none) and torch.equal(off, half) and not torch.equal(off, guided)


@pytest.mark.parametrize("case", ["emu3", "llamagen", "mar", "var", "amused", "cosmos"])
def test_images_do_not_depend_on_the_batch_size(case: str) -> None:
    own, seen = CASES[case], list[torch.Tensor]()
    pipe = own.make()
    count = "num_videos_per_prompt" if case == "cosmos" else "num_images_per_prompt"
    given = {**own.call, count: 3, "seed": 0, "output_type": "latent"}
    whole = pipe(**given)

    def look(pipe: Any, step: int, committed: int, tensors: dict[str, torch.Tensor]) -> None:
        seen.append(tensors["tokens"].flatten(1))

    parts = pipe(**given, batch_size=2, callback_on_step_end=look)
    torch.testing.assert_close(parts.tokens, whole.tokens, rtol=1e-3, atol=1e-4)
    assert [row.tokens for row in parts.stats.rows] == [row.tokens for row in whole.stats.rows]
    ends = [tokens for tokens, after in zip(seen, [*seen[1:], seen[0][:0]], strict=True) if len(tokens) != len(after)]
    assert torch.equal(torch.cat(ends), parts.tokens.flatten(1))


@pytest.mark.parametrize("case", ["emu3", "llamagen", "shapes", "mar", "var", "amused"])
def test_a_stream_ends_with_what_a_call_returns(case: str) -> None:
    own, calls = CASES[case], list[int]()
    pipe = own.make()
    given = {**own.call, "seed": 3, "output_type": "np" if own.pixels else "latent"}
    whole = pipe(**given)
    events = list(pipe.stream(**given, on_step=lambda step: calls.append(step.target_calls)))
    last = events[-1]
    assert torch.equal(last.output.tokens, whole.tokens) and [event.output for event in events[:-1]] == [
        None for _ in events[:-1]
    ]
    assert len(calls) == whole.stats.target_calls == last.target_calls
    for event, following in zip(events, events[1:], strict=False):
        assert torch.equal(event.tokens, following.tokens[: len(event.tokens)])
    if own.pixels:
        assert (last.output.images == whole.images).all()
        assert events[0].preview().size == last.preview().size
    stream = pipe.stream(**given)
    next(stream)
    stream.close()
    assert not any(thread.name == "mmspec-stream" for thread in threading.enumerate())
    with pytest.raises(MMSpecError, match="seed"):
        pipe.stream(**{**given, "seed": "x"})


def test_latents_take_no_drafters() -> None:
    with pytest.raises(MMSpecError, match="^drafter='x' was given, but shapes-latent takes no drafters"):
        CASES["shapes-latent"].make().add_drafter("x")
