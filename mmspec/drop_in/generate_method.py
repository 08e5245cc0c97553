"""`generate` of a model of transformers, decoded by mmspec.

The call is that of the class: an argument that has no meaning with drafts makes it run as it would have without mmspec,
and is noted. So a script, a pipeline of transformers or a trainer never fails where it did not fail before.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

from mmspec.decoding.stats import Stats
from mmspec.drop_in.held_streamer import HeldStreamer
from mmspec.drop_in.own_loops import loop_of
from mmspec.drop_in.replacement import Replacement
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.hf.call import call_generate
from mmspec.hf.generate import choose_recipe, generate

# Arguments of `mmspec.generate` that are no arguments of a model's `generate`.
OURS = (
    "recipe", "seed", "draft_model", "table", "heads", "on_step", "on_stats", "measure_entropy", "token_streamer",
    "given",
)  # fmt: skip
# Arguments that transformers does not hand on to another loop.
KEPT_BACK = {
    "custom_generate": "it names another loop",
    "stop_strings": "it needs the tokenizer, which transformers does not hand on; use StopStringCriteria",
    "token_healing": "it needs the tokenizer, which transformers does not hand on",
    "assistant_tokenizer": "a draft model has the model's tokenizer",
}
# Those that change no token: a tokenizer without stop strings, and what a trainer's loss is computed with.
WITHOUT_EFFECT = ("tokenizer", "labels")


class GenerateMethod(Replacement):
    """`generate` of one model; see `mmspec.accelerate`."""

    NAME = "generate"

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Decodes a call with the arguments of the class's own `generate`, and returns what that returns.

        Raises:
            ArgumentError: If an argument is one of mmspec, which `mmspec.accelerate` takes.
            ModelError: If the draft model does not fit the model, or the model computed invalid values.
        """
        signature = inspect.signature(self.__wrapped__)
        signature.bind(*positional, **named)  # a TypeError as that of the method itself
        arguments = {**signature.bind_partial(*positional).arguments, **named}
        other_loop = arguments.get("custom_generate")
        if other_loop is generate:
            self.stats = None
            return self.__wrapped__(*positional, **named)
        for name in OURS:
            if other_loop is None and name in arguments:
                raise ArgumentError(
                    f"{name} is not an argument of {self.name}; give it to mmspec.accelerate, or leave it out (the "
                    "seed is that of torch.manual_seed)"
                )
        streamer = arguments.pop("streamer", None)
        held = None if streamer is None else HeldStreamer(streamer)
        assistant, random = arguments.get("assistant_model"), torch.get_rng_state()
        try:
            result = self._decode(arguments, held)
        except (ArgumentError, PromptError, ModelError) as error:
            ended = held is not None and held.started
            if ended or (isinstance(error, ModelError) and assistant is None):
                if held is not None:
                    held.close()
                raise
            self.note(str(error))
        except BaseException:
            if held is not None:
                held.close()  # a reader in another thread waits for the end
            raise
        else:
            if held is not None:
                held.close()
            return result
        torch.set_rng_state(random)
        return self.__wrapped__(*positional, **named)

    def _decode(self, arguments: dict[str, Any], streamer: HeldStreamer | None) -> Any:
        """Decodes a call with mmspec."""
        model, settings = self.owner, self.settings
        if self._previous:
            raise ArgumentError("another package has set generate on this object before, which mmspec would pass by")
        config = arguments.get("generation_config") or model.generation_config
        for name, why in KEPT_BACK.items():
            value = arguments.get(name, getattr(config, name, None))
            if value is not None and value is not False:
                raise ArgumentError(f"{name} is not possible with drafts: {why}")
        if arguments.get("cache_implementation", config.cache_implementation) == "paged":
            raise ArgumentError("cache_implementation='paged' is continuous batching, a loop of transformers' own")
        arguments = {name: value for name, value in arguments.items() if name not in (*KEPT_BACK, *WITHOUT_EFFECT)}
        processors = arguments.get("logits_processor")
        if processors is not None:  # one that keeps state is tried, then refused, and must be as new for its own loop
            arguments["logits_processor"] = type(processors)([copy.copy(each) for each in processors])
        recipe, draft_model = settings.recipe, settings.draft_model
        if arguments.get("assistant_model") is not None:  # the call's own choice
            recipe = recipe if recipe is not None and recipe.needs_draft_model else None
            draft_model = None
        loop, arguments = loop_of(model, arguments)
        self._load_offloaded()
        stats: list[Stats] = []
        drafting = draft_model if arguments.get("assistant_model") is None else arguments["assistant_model"]
        chosen = choose_recipe(recipe, drafting)
        result = call_generate(
            loop,
            arguments.pop("inputs", None),
            **arguments,
            streamer=streamer,
            recipe=recipe,
            draft_model=draft_model,
            heads=settings.heads,
            table=settings.table,
            on_stats=stats.append,
        )
        self.keep(stats, chosen)
        return result

    def _load_offloaded(self) -> None:
        """Brings a model to its device that accelerate's `cpu_offload_with_hook` brings there in its forward only."""
        hook: Any = getattr(self.owner, "_hf_hook", None)
        if type(hook).__name__ == "CpuOffload":
            hook.pre_forward(self.owner)
