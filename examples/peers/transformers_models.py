"""Models of transformers by their own `generate`, and by the same call with `mmspec.accelerate`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from cases import Case, Options, Run, parameters
from torch import Tensor

import mmspec

PUBLISHED = Path(__file__).parents[2] / "tests/published"
LLAMA = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
CSM = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16,
}  # fmt: skip
CODEC = {"num_filters": 2, "hidden_size": 8, "codebook_dim": 8}


@dataclass(frozen=True)
class Published:
    """A model of a published configuration with random weights.

    Attributes:
        config: A folder of tests/published.
        small: What `--size tiny` changes.
        prompt: Tokens of a prompt.
        call: Arguments of `generate`, by the number of steps and whether it is greedy.
        part: Of the model, what generates; the model itself if empty.
        prepare: Changes the model.
        recipes: Of mmspec, beside `plain`.
    """

    config: str
    small: Mapping[str, Any]
    call: Callable[[Any, int, bool], dict[str, Any]]
    prompt: int = 32
    part: str = ""
    prepare: Callable[[Any], None] = lambda model: None
    recipes: tuple[str, ...] = ()

    def model(self, size: str, dtype: torch.dtype) -> Any:
        """The model, from torch's global generator."""
        config = json.loads((PUBLISHED / self.config / "config.json").read_text(encoding="utf-8"))
        if size == "tiny":
            config = _merged(config, self.small)
        kind = getattr(transformers, config["architectures"][0])
        model = kind(kind.config_class.from_dict(config)).eval().to(dtype)
        self.prepare(model)
        return model


def _merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    nested = {name: _merged(config[name], value) for name, value in changes.items() if isinstance(value, Mapping)}
    return {**config, **changes, **nested}


def _no_end(model: Any) -> None:
    """Random weights end a row at random; two runs that are compared must be of one length."""
    model.generation_config.eos_token_id = None


def _flat(model: Any, steps: int, greedy: bool) -> dict[str, Any]:
    return {"max_new_tokens": steps, "do_sample": not greedy, "top_k": 0, "pad_token_id": 0}


def _csm(model: Any, steps: int, greedy: bool) -> dict[str, Any]:
    sampled = {"do_sample": not greedy, "depth_decoder_do_sample": not greedy, "pad_token_id": 0}
    return {"max_new_tokens": steps, **sampled}


def _musicgen(model: Any, steps: int, greedy: bool) -> dict[str, Any]:
    return {"max_new_tokens": steps, "do_sample": not greedy, "top_k": 250, "guidance_scale": 3.0}


def _musicgen_ids(model: Any) -> None:
    ids = model.config.decoder.pad_token_id
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=ids, bos_token_id=ids, decoder_start_token_id=ids
    )


def _bark(model: Any, steps: int, greedy: bool) -> dict[str, Any]:
    from transformers.models.bark.generation_configuration_bark import BarkSemanticGenerationConfig

    # An end token that its head does not have.
    settings = BarkSemanticGenerationConfig(eos_token_id=10_047, max_new_tokens=steps, do_sample=not greedy)
    return {"semantic_generation_config": settings}


def generate(model: Any, one: Published, options: Options, greedy: bool, **more: Any) -> Run:
    """A call of the model's `generate`, however it is decoded."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 200, (options.batch, one.prompt), generator=draw)
    what = getattr(model, one.part) if one.part else model
    # Changes of generation settings by a call stay in the call.
    out = what.generate(ids, attention_mask=torch.ones_like(ids), **one.call(model, options.tokens, greedy), **more)
    tokens = out if isinstance(out, Tensor) else out.sequences
    return Run(tokens, options.tokens)


def accelerated(recipe: str, model: Any, one: Published, options: Options, greedy: bool, **more: Any) -> Run:
    """The same call by mmspec."""
    with mmspec.accelerated(model, recipe, **more):
        run = generate(model, one, options, greedy)
        stats = mmspec.last_stats(model)
    return Run(run.tokens, options.tokens, None if recipe == "plain" or stats is None else stats.target_calls)


def own(one: Published, options: Options) -> Case:
    """The case of a model's own `generate`."""
    model = one.model(options.size, options.dtype)
    jobs: dict[str, Callable[[bool], Run]] = {"transformers generate": partial(generate, model, one, options)}
    for recipe in ("plain", *(options.recipes or one.recipes)):
        jobs[f"mmspec {recipe}"] = partial(accelerated, recipe, model, one, options)
    return Case(f"{one.config}, {parameters(model)}", jobs)


def assisted(one: Published, options: Options) -> Case:
    """The case of assisted decoding, by a draft of the model's first two layers, with as many drafts per call."""
    if options.batch != 1:
        raise SystemExit(f"--batch {options.batch} is not allowed; assisted decoding of transformers has one row")
    model = one.model(options.size, options.dtype)
    draft = copy.deepcopy(model)
    draft.model.layers = draft.model.layers[:2]
    draft.config.num_hidden_layers = 2
    draft.generation_config.num_assistant_tokens = 4
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    def theirs(greedy: bool) -> Run:
        nonlocal calls
        calls = 0
        hook = model.model.register_forward_hook(count)
        run = generate(model, one, options, greedy, assistant_model=draft)
        hook.remove()
        return Run(run.tokens, options.tokens, calls)

    jobs: dict[str, Callable[[bool], Run]] = {
        "transformers assisted": theirs,
        "transformers generate": partial(generate, model, one, options),
        "mmspec plain": partial(accelerated, "plain", model, one, options),
    }
    for recipe in options.recipes or ("draft:window=5",):
        jobs[f"mmspec {recipe}"] = partial(accelerated, recipe, model, one, options, draft_model=draft)
    return Case(f"{one.config}, {parameters(model)}; draft of its first 2 layers", jobs)


NEUTTS = Published("neutts-nano", LLAMA, _flat, prepare=_no_end)
MODELS: dict[str, Callable[[Options], Case]] = {
    "neutts": partial(own, NEUTTS),
    "llasa": partial(own, Published("llasa-1b-multilingual", LLAMA, _flat, prepare=_no_end)),
    "assisted": partial(assisted, NEUTTS),
    "musicgen": partial(
        own,
        Published(
            "musicgen-small",
            {
                "text_encoder": {"d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2},
                "audio_encoder": CODEC,
                "decoder": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64},
            },
            _musicgen,
            prepare=_musicgen_ids,
        ),
    ),
    "csm": partial(
        own,
        Published("csm-1b", CSM | {"depth_decoder_config": CSM | {"backbone_hidden_size": 32}}, _csm, prepare=_no_end),
    ),
    "bark": partial(
        own,
        Published(
            "bark-small",
            dict.fromkeys(
                ("semantic_config", "coarse_acoustics_config", "fine_acoustics_config"),
                {"hidden_size": 16, "num_heads": 2, "num_layers": 2},
            )
            | {"codec_config": CODEC},
            _bark,
            prompt=256,
            part="semantic",
        ),
    ),
}  # fmt: skip
