"""`mmspec.Generator`: columns of prompts in, columns of samples out, in any process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.arguments import check_integer, shown
from mmspec.bulk.calls import GeneratedSample, batches, generate_accepted
from mmspec.bulk.requests import SETTING_NAMES, SampleSettings, requests_of
from mmspec.errors import ArgumentError, PluginError
from mmspec.files.fingerprint import fingerprint
from mmspec.loading import load
from mmspec.pipeline import makes_audio
from mmspec.recipes import Recipe
from mmspec.registry import plugins, registered

COLUMNS = ("prompt", "seed", "id", *SETTING_NAMES)
GROUPS = ("mmspec.models", "mmspec.drafters", "mmspec.recipes", "mmspec.rules")  # of what its arguments name
WHOLE = ("seed", "top_k", "height", "width")  # columns of integers, which become floats where a value is missing


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline, and the fingerprint of its weights."""

    pipe: Any
    fingerprint: str


class Generator:
    """Generates images or audio for batches of columns; made for `map_batches` of Ray Data and `datasets`' `map`.

    An object holds arguments only, so that it can be pickled. The first call in a process loads the model, and the
    later ones reuse it; so do other objects with the same model in that process.

        ds.map_batches(mmspec.Generator, fn_constructor_args=["shapes"], concurrency=2, batch_size=8)
        dataset.map(mmspec.Generator("shapes"), batched=True, batch_size=8)

    A sample depends on its row only: not on the process, on the batch, nor on how often a row is tried again.

    Models, recipes and rules of `mmspec.register` work in the process that registered them. Another process needs the
    same call before it reads the object, or an entry point.

    Args:
        model: A name, a folder or a Hub id; see `mmspec.load`.
        recipe: How to decode; None is the pipeline's default.
        batch_size: Samples per call of the pipeline, at most.
        seed: Rows without a seed get one that is computed from this and their prompt.
        temperature: 0 takes the most likely token.
        top_k: Keeps the k most likely tokens, 0 all.
        top_p: Keeps the most likely tokens of this total probability.
        guidance_scale: Classifier-free guidance, 1 and below is off.
        tokenizer: A folder or file, like the rest an argument of `mmspec.load`.
        config: Options of the model.
        drafter: A trained drafter.
        device: None is the CPU; "cuda" is what the scheduler has given to the worker.
        dtype: Of the weights, as text.
        revision: Of the Hub repository.

    Raises:
        ArgumentError: If an argument has a value that is not allowed.
        UnknownNameError: If the recipe does not exist.
    """

    def __init__(
        self,
        model: str = "shapes",
        *,
        recipe: str | None = None,
        batch_size: int = 8,
        seed: int = 0,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance_scale: float | None = None,
        tokenizer: str | None = None,
        config: Mapping[str, Any] | None = None,
        drafter: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        revision: str | None = None,
    ) -> None:
        if not isinstance(model, (str, Path)):
            raise ArgumentError(f"model={shown(model)} is not allowed; a worker loads it: give a name, path or Hub id")
        check_integer("batch_size", batch_size, 1, 2**31)
        check_integer("seed", seed, 0, 2**62)
        named = {
            "model": str(model), "tokenizer": tokenizer, "config": None if config is None else dict(config),
            "drafter": drafter, "device": device, "dtype": dtype, "revision": revision,
        }  # fmt: skip
        try:
            self.arguments = json.dumps(named, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"a worker loads the model, its arguments must be plain values: {error}") from None
        self.settings = SampleSettings(recipe, temperature, top_k, top_p, guidance_scale)
        self.batch_size = batch_size
        self.seed = seed
        requests_of([{"prompt": "x"}], self.settings, place="Generator")  # refuses impossible settings here

    def __getstate__(self) -> dict[str, Any]:
        recipe = self.settings.recipe
        names = {json.loads(self.arguments)["model"], *(() if recipe is None else Recipe(recipe).parts)}
        return {**self.__dict__, "registered": sorted(names & _registered())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = _known()
        for name in state.pop("registered"):
            if name not in known:
                raise PluginError(
                    f"{name!r} was added by mmspec.register in the process that made this Generator, and this one does "
                    "not know it; call mmspec.register here as well, or declare an entry point (docs/scale.md)"
                )
        self.__dict__ |= state

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Generates a sample per row.

        Args:
            batch: Columns of equal length: `prompt`, and any of the other keys of a line of prompts (docs/scale.md),
                whose values, where they are not None, replace those of the constructor. Other columns are passed on.

        Returns:
            The columns of `batch`, with these set: `name`, which depends on prompt, seed, id and settings only; `seed`,
            which the pipeline was called with; `image` (PNG) or `audio` (WAV), bytes or None; `tokens`, the ids, for
            audio of all parts one after the other; `target_calls`; `seconds`; `notes`, remarks, such as that
            speech was cut at its limit; `weights`, a fingerprint; and `error`, None, or why the model refused the
            prompt.

        Raises:
            ArgumentError: If there is no column `prompt`, or a value is not allowed; the row is named.
        """
        if "prompt" not in batch:
            raise ArgumentError(f"the batch has no column 'prompt'; its columns are {', '.join(map(str, batch))}")
        columns = {name: _values(name, batch[name]) for name in COLUMNS if name in batch}
        count = len(columns["prompt"])
        rows = [{name: column[i] for name, column in columns.items()} for i in range(count)]
        requests = requests_of(rows, self.settings, seed=self.seed)
        loaded = _load(self.arguments)
        found, errors = dict[str, GeneratedSample](), dict[str, str]()
        distinct = list({request.name: request for request in requests}.values())
        for group in batches(distinct, self.batch_size):
            samples, refused = generate_accepted(loaded.pipe, group)
            found |= {sample.request.name: sample for sample in samples}
            errors |= {request.name: reason for request, reason in refused}
        made = [found.get(request.name) for request in requests]
        kind = "audio" if makes_audio(loaded.pipe) else "image"
        return {
            **batch,
            "name": _objects([request.name for request in requests]),
            "seed": np.array([request.seed for request in requests], dtype=np.int64),
            kind: _objects([None if one is None else one.encode(loaded.fingerprint) for one in made]),
            "tokens": _objects([[] if one is None else _flat(one.tokens) for one in made]),
            "target_calls": np.array([0 if one is None else one.stats.target_calls for one in made], dtype=np.float64),
            "seconds": np.array([0 if one is None else one.seconds for one in made], dtype=np.float64),
            "notes": _objects([[] if one is None else one.notes for one in made]),
            "weights": _objects([loaded.fingerprint] * count),
            "error": _objects([errors.get(request.name) for request in requests]),
        }


def _known() -> set[str]:
    """The models, recipes and rules in this process that are not of mmspec."""
    return {name for group in GROUPS for name in plugins(group)}


def _registered() -> set[str]:
    """Those that only this process is sure to have."""
    return {name for group in GROUPS for name in registered(group)}


@lru_cache(maxsize=1)
def _load(arguments: str) -> LoadedPipeline:
    """The pipeline of this process; that of other arguments is dropped first."""
    pipe = load(**json.loads(arguments))
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    return LoadedPipeline(pipe, fingerprint(pipe))


def _values(name: str, column: Sequence[Any]) -> list[Any]:
    """The values of a column as Python's; what is missing is None, whatever library the column comes from."""
    values = column.tolist() if hasattr(column, "tolist") else list(column)
    values = [None if value is None or value != value else value for value in values]
    if name in WHOLE:
        return [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    return values


def _objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """A column of any values; lists among them stay lists."""
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def _flat(tokens: Sequence[Any]) -> list[int]:
    """Nested lists of ids as one list."""
    return [int(each) for each in np.concatenate([np.ravel(part) for part in tokens])] if len(tokens) else []
