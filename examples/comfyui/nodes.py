"""Load, image, speak, recipe and statistics."""

from __future__ import annotations

from typing import Any

import torch

import mmspec
from mmspec.recipes import parse
from mmspec.ways_to_draft import ways_to_draft

PIPE, RECIPE, STATS = "MMSPEC_PIPELINE", "MMSPEC_RECIPE", "MMSPEC_STATS"
PREVIEW_PIXELS = 512
SEED = ("INT", {"default": 0, "min": 0, "max": 2**53, "control_after_generate": True})


class Progress:
    """The bar of the running node with its preview, and its cancel button; nothing outside ComfyUI."""

    def __init__(self) -> None:
        self._bar: Any = None
        try:
            import comfy.model_management as management
            import comfy.utils as utils
        except ImportError:
            self._utils = self._management = None
        else:
            self._utils, self._management = utils, management

    def update(self, done: int, total: int, image: Any = None) -> None:
        """Shows how much is done.

        Args:
            done: Tokens so far.
            total: Of all.
            image: A function that returns the image so far, or None.

        Raises:
            BaseException: ComfyUI's own, if the user cancels.
        """
        if self._utils is None or self._management is None:
            return
        self._management.throw_exception_if_processing_interrupted()
        self._bar = self._bar or self._utils.ProgressBar(total)
        shown = None if image is None else ("JPEG", image(), PREVIEW_PIXELS)
        self._bar.update_absolute(done, total, shown)


class Load:
    """A model: a name of `mmspec ls models`, a folder or a Hub id."""

    CATEGORY, FUNCTION = "mmspec", "load"
    RETURN_TYPES, RETURN_NAMES = (PIPE,), ("pipeline",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "model": ("STRING", {"default": "shapes"}),
                "device": ("STRING", {"default": "cpu"}),
                "dtype": (["default", "float32", "bfloat16", "float16"],),
            }
        }

    def load(self, model: str, device: str, dtype: str) -> tuple[Any]:
        pipe = mmspec.load(model, device=device, dtype=None if dtype == "default" else dtype)
        if hasattr(pipe, "set_progress_bar_config"):
            pipe.set_progress_bar_config(disable=True)
        return (pipe,)


class Recipe:
    """A way of drafting, with knobs such as `window=32` or a rule such as `+lantern:delta=0.2`."""

    CATEGORY, FUNCTION = "mmspec", "recipe"
    RETURN_TYPES, RETURN_NAMES = (RECIPE,), ("recipe",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"name": (sorted(ways_to_draft().usable()),), "knobs": ("STRING", {"default": ""})}}

    def recipe(self, name: str, knobs: str) -> tuple[str]:
        knobs = knobs.strip()
        return (str(parse(name + (knobs if knobs[:1] in ("", "+", ":") else f":{knobs}"))),)


class Image:
    """An image of a prompt, or of a class by its number; it is shown while it is decoded."""

    CATEGORY, FUNCTION = "mmspec", "generate"
    RETURN_TYPES, RETURN_NAMES = ("IMAGE", STATS), ("image", "stats")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        prompt = ("STRING", {"multiline": True, "default": "a red circle above a blue square"})
        return {"required": {"pipeline": (PIPE,), "prompt": prompt, "seed": SEED}, "optional": {"recipe": (RECIPE,)}}

    def generate(self, pipeline: Any, prompt: str, seed: int, recipe: str | None = None) -> tuple[torch.Tensor, Any]:
        progress = Progress()

        def show(pipe: Any, step: int, committed: int, tensors: Any) -> None:
            codes = tensors["tokens"]
            progress.update(committed, codes.shape[1], lambda: pipe.decode(codes)[0])

        out = pipeline(prompt, seed=seed, recipe=recipe, output_type="np", callback_on_step_end=show)
        return torch.as_tensor(out.images, dtype=torch.float32), out.stats


class Speak:
    """Audio of a text."""

    CATEGORY, FUNCTION = "mmspec", "speak"
    RETURN_TYPES, RETURN_NAMES = ("AUDIO", STATS), ("audio", "stats")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        text = ("STRING", {"multiline": True, "default": "please turn on the red light in the kitchen"})
        optional = {
            "recipe": (RECIPE,), "voice": ("STRING", {"default": ""}),
            "condition_on_previous_chunks": ("BOOLEAN", {"default": False}),
        }  # fmt: skip
        return {"required": {"pipeline": (PIPE,), "text": text, "seed": SEED}, "optional": optional}

    def speak(
        self,
        pipeline: Any,
        text: str,
        seed: int,
        recipe: str | None = None,
        voice: str = "",
        condition_on_previous_chunks: bool = False,
    ) -> tuple[dict[str, Any], Any]:
        progress = Progress()
        out = pipeline(
            text, voice=voice or None, seed=seed, recipe=recipe,
            condition_on_previous_chunks=condition_on_previous_chunks,
            on_step=lambda step: progress.update(step.committed, step.total),
        )  # fmt: skip
        return {"waveform": torch.from_numpy(out.audio)[None], "sample_rate": out.sampling_rate}, out.stats


class Statistics:
    """Calls, tokens per call and seconds, as text."""

    CATEGORY, FUNCTION, OUTPUT_NODE = "mmspec", "show", True
    RETURN_TYPES, RETURN_NAMES = ("STRING",), ("text",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"stats": (STATS,)}}

    def show(self, stats: Any) -> dict[str, Any]:
        return {"ui": {"text": [str(stats)]}, "result": (str(stats),)}


NODE_CLASS_MAPPINGS = {f"mmspec{node.__name__}": node for node in (Load, Recipe, Image, Speak, Statistics)}
NODE_DISPLAY_NAME_MAPPINGS = {name: f"mmspec: {name.removeprefix('mmspec').lower()}" for name in NODE_CLASS_MAPPINGS}
