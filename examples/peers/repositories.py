"""LlamaGen's published code, and SJD's and SCD's samplers around it: class-conditional images from random weights.

SJD's and SCD's samplers were written for transformers 4 and CUDA; `_stand_ins` gives what they lack.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from math import isqrt
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import transformers
from cases import Case, Options, Run, parameters
from transformers.cache_utils import Cache
from transformers.generation import logits_process

import mmspec

SIZES = {
    "tiny": {
        "dim": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "num_classes": 9, "multiple_of": 32
    },
    "published": {"dim": 768, "n_layer": 12, "n_head": 12},
}  # fmt: skip
SPREAD = {"tiny": 3.0, "published": 0.05}  # standard deviation of the head's weights: 12.6 bits per token
LABEL = 3
WINDOW = 16


def sizes(options: Options) -> dict[str, Any]:
    """Arguments of the original class.

    Raises:
        SystemExit: If the image is not square.
    """
    if isqrt(options.tokens) ** 2 != options.tokens:
        raise SystemExit(
            f"--tokens {options.tokens} is not allowed; an image has a square number of tokens, such as 256"
        )
    return {**SIZES[options.size], "block_size": options.tokens}


def weights(model: Any, spread: float) -> None:
    """Gives a head to a model, whose code sets it to 0, and a spread at which classes and tokens matter."""
    torch.nn.init.normal_(model.output.weight, std=spread)
    for name, each in model.named_parameters():
        if "layers" in name and each.ndim == 2:
            each.data *= 2


def converted(model: Any, arguments: dict[str, Any], top_k: int) -> Any:
    """The pipeline of mmspec with the weights of the original class."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "c2i_B_256.pt")
        config = {name: arguments[name] for name in ("n_head", "block_size")}
        pipe = mmspec.load(folder, config=config, dtype=model.output.weight.dtype)
    pipe.set_progress_bar_config(disable=True)
    pipe.register_to_config(guidance_scale=1.0, top_k=top_k)
    return pipe


def ours(pipe: Any, recipe: str, batch: int, guidance: float, greedy: bool) -> Run:
    """Images of one class by mmspec; the seed is from torch's global generator."""
    seed, temperature = int(torch.randint(2**31, ()).item()), 0.0 if greedy else 1.0
    out = pipe(
        class_labels=[LABEL] * batch, recipe=recipe, seed=seed, temperature=temperature, guidance_scale=guidance,
        output_type="latent",
    )  # fmt: skip
    return Run(out.tokens, out.tokens.shape[1], None if recipe == "plain" else out.stats.target_calls)


def llamagen(guidance: float, options: Options) -> Case:
    """The case of LlamaGen's own loop."""
    sys.path[:0] = map(str, options.repositories)
    arguments = sizes(options)
    code: Any = import_module("autoregressive.models.gpt")
    loop: Any = import_module("autoregressive.models.generate")
    model = code.Transformer(code.ModelArgs(**arguments)).eval()
    weights(model, SPREAD[options.size])
    model.to(options.dtype)

    def theirs(greedy: bool) -> Run:
        labels = torch.full((options.batch,), LABEL)
        tokens = loop.generate(model, labels, model.block_size, cfg_scale=guidance, sample_logits=not greedy)
        return Run(tokens, model.block_size)

    pipe = converted(model, arguments, 0)
    jobs: dict[str, Callable[[bool], Run]] = {"LlamaGen's generate": theirs}
    for recipe in ("plain", *(options.recipes or ("scd",))):
        jobs[f"mmspec {recipe}"] = partial(ours, pipe, recipe, options.batch, guidance)
    name = f"LlamaGen-B, {parameters(model)}, {model.block_size} tokens, guidance {guidance:g}"
    return Case(name, jobs, repositories=options.repositories)


class _OldCache(Cache):
    """The lists of transformers 4's DynamicCache."""

    def __init__(self) -> None:
        self.key_cache: list[Any] = []
        self.value_cache: list[Any] = []

    def __len__(self) -> int:
        return len(self.key_cache)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.key_cache[layer_idx].shape[-2] if self.key_cache else 0


class _Event:
    """A CUDA event on a CPU."""

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: _Event) -> float:
        return 1000 * (other.at - self.at)


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Names of transformers 4, and timers of CUDA."""
    masks: Any = ModuleType("transformers.modeling_attn_mask_utils")
    masks.AttentionMaskConverter = None  # LlamaGen makes its own masks
    sys.modules.setdefault(masks.__name__, masks)
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(logits_process, "LogitsWarper", logits_process.LogitsProcessor, create=True))
        stack.enter_context(patch.object(transformers, "DynamicCache", _OldCache))
        if not torch.cuda.is_available():
            stack.enter_context(patch.object(torch.cuda, "Event", _Event))
            stack.enter_context(patch.object(torch.cuda, "synchronize", lambda: None))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        yield


def jacobi(scheduler: str, recipe: str, options: Options) -> Case:
    """The case of a sampler of SJD's form around SJD's copy of LlamaGen; without guidance, one row."""
    if options.batch != 1:
        raise SystemExit(f"--batch {options.batch} is not allowed; SJD's and SCD's samplers have one row")
    sys.path[:0] = [str(each / folder) for folder in ("lumina1", "") for each in options.repositories]
    arguments, tokens = sizes(options), options.tokens
    with _stand_ins():
        solver: Any = import_module("llamagen.llamagen_solver")
        sampler: Any = import_module(f"scheduler.{scheduler}")
        code: Any = import_module("llamagen.llamagen")
    model = code.Transformer(code.ModelArgs(**arguments)).eval()
    weights(model, SPREAD[options.size])
    model.to(options.dtype)
    pipe = converted(model, arguments, 1000)
    kind = sampler.renew_sampler(solver.renew_llamagen(type(model)))
    solver.BackboneOutput = SimpleNamespace  # today's ModelOutput renames `past_key_values`
    methods = {
        "_extract_past_from_model_output": lambda self, out: ("past_key_values", out.past_key_values),
        "_has_unfinished_sequences": lambda self, finished, *_, **__: not finished,
    }
    model.__class__ = type(kind.__name__, (kind,), methods)
    model.img_vocab = torch.arange(model.vocab_size)
    model.config.is_encoder_decoder = False
    # The last calls are single tokens, as the authors have it.
    model._init_new_params(
        jacobi_loop_interval_r=max(1, tokens - WINDOW - 2), max_num_new_tokens=WINDOW, guidance_scale=1.0, do_cfg=False,
        seed=None, multi_token_init_scheme="random", use_chameleon_tokenizer=False,
    )  # fmt: skip
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    model.register_forward_hook(count)

    def theirs(greedy: bool) -> Run:
        nonlocal calls
        calls = 1  # the prompt's
        top_k = 1 if greedy else min(1000, model.vocab_size)
        with _stand_ins():
            made = solver.LlamaGenSolver(model=model, image_top_k=top_k, image_top_p=1.0)
            found = made.generate(torch.tensor([LABEL]), tokens, cfg_scale=1.0, top_k=top_k)
        return Run(found, tokens, calls)

    jobs: dict[str, Callable[[bool], Run]] = {f"its {recipe}": theirs}
    for each in ("plain", *(options.recipes or (f"{recipe}:start=random", recipe))):
        jobs[f"mmspec {each}"] = partial(ours, pipe, each, 1, 1.0)
    name = f"LlamaGen-B, {parameters(model)}, {tokens} tokens, top-k 1000"
    return Case(name, jobs, repositories=options.repositories)


REPOSITORIES: dict[str, Callable[[Options], Case]] = {
    "llamagen": partial(llamagen, 1.0),
    "llamagen-guided": partial(llamagen, 4.0),
    "sjd": partial(jacobi, "jacobi_iteration_lumina_mgpt", "sjd"),
    "scd": partial(jacobi, "jacobi_iteration_lumina_mgpt_SCDMC", "scd"),
}
