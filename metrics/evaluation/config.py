"""What an evaluation is asked to do, from flags or a YAML file with the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mmspec.errors import ArgumentError, did_you_mean
from mmspec.files import replacing

FILE = "config.yaml"
# What a sample depends on, beside recipe, prompt and seed: results that differ in it cannot lie in one folder.
IDENTITY = ("model", "temperature", "top_k", "top_p", "guidance_scale", "device", "entropy")


@dataclass(frozen=True)
class Config:
    """A resolved configuration.

    - `recipes`: with ranges expanded, plain first; `prompts`: the texts; `seeds`: per prompt.
    - `reference`: what distances are measured to: "plain" for plain decoding of the same prompts by other seeds, or a
      path: an .npz of statistics, or a folder of pictures.
    - `inception`, `clip`, `dinov2`: weights of extractors.
    - `temperature`, `top_k`, `top_p`, `guidance_scale`: None is the model's own.
    """

    model: str
    prompts: tuple[str, ...]
    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    reference: str = "plain"
    inception: str | None = None
    clip: str | None = None
    dinov2: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    guidance_scale: float | None = None
    device: str = "cpu"

    @property
    def weights(self) -> dict[str, str]:
        """By extractor, where those weights lie that were named."""
        named = {"inception": self.inception, "clip": self.clip, "dinov2": self.dinov2}
        return {name: where for name, where in named.items() if where}

    @property
    def entropy(self) -> bool:
        """Whether the entropy of the target's law is measured, which takes time in every call."""
        return "entropy" in self.metrics

    @property
    def sampling(self) -> dict[str, Any]:
        """What the pipeline is called with beside recipe and seed."""
        return {key: getattr(self, key) for key in ("temperature", "top_k", "top_p", "guidance_scale")}

    def to_dict(self) -> dict[str, Any]:
        """As plain values; `read_file` understands them."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def read_file(path: Path) -> dict[str, Any]:
    """The keys of a YAML file. **Raises:** `ArgumentError` when it cannot be read, or has a key that is none."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ArgumentError(f"--config: cannot read '{path}': {' '.join(str(error).split())}") from error
    known = [field.name for field in fields(Config)] + ["limit"]
    if not isinstance(found, Mapping):
        raise ArgumentError(f"--config: '{path}' must hold keys and values; the keys are {', '.join(known)}")
    for key in found:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise ArgumentError(f"--config: '{path}' has an unknown key {key!r}{hint}; known: {', '.join(known)}")
    return dict(found)


def open_folder(folder: Path, config: Config) -> None:
    """Makes the results folder and writes the configuration; one that holds the same evaluation is gone on with.

    **Raises:** `ArgumentError` when the folder cannot be written, holds something else, or other results.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        inside = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise ArgumentError(f"-o/--output: cannot write '{folder}': {error.strerror or error}") from error
    if FILE in inside:
        refuse_other(folder, config)
    elif inside:
        raise ArgumentError(f"-o/--output: '{folder}' is not empty and holds no {FILE}; name another folder")
    import yaml

    with replacing(folder / FILE) as partial:
        partial.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), encoding="utf-8")


def refuse_other(folder: Path, config: Config) -> None:
    """**Raises:** `ArgumentError` when the folder's samples were drawn under other settings."""
    before = read_config(folder)
    for key in IDENTITY:
        old, new = getattr(before, key), getattr(config, key)
        if old != new:
            raise ArgumentError(
                f"-o/--output: '{folder}' holds results of {key}={old!r}, not {new!r}; name another folder"
            )


def read_config(folder: Path) -> Config:
    """The configuration of a results folder. **Raises:** `ArgumentError` when there is none that can be read."""
    values = read_file(folder / FILE)
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    try:
        return Config(**given)
    except TypeError as error:
        raise ArgumentError(f"'{folder / FILE}' is not the configuration of an evaluation: {error}") from error
