"""The configuration of an evaluation, from flags or a YAML file with the same keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mmspec.errors import ArgumentError, UnknownNameError, did_you_mean
from mmspec.files.documents import read_yaml
from mmspec.files.folders import replacing_inside
from mmspec.files.locks import is_own_file, locked
from mmspec.metrics.evaluation.journal import Journal
from mmspec.metrics.extractors.registry import EXTRACTORS
from mmspec.metrics.registry import find_metric

FILE = "config.yaml"
# What samples depend on, besides recipe, prompt and seed: results that differ in it cannot share a folder.
IDENTITY = (
    "model",
    "drafter",
    "fingerprint",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "guidance_scale",
    "device",
    "batch",
    "entropy",
)


@dataclass(frozen=True)
class EvalConfig:
    """A resolved configuration.

    Attributes:
        model: A name, a folder or a Hub id.
        prompts: The texts.
        recipes: With ranges expanded, plain first.
        seeds: Used for every prompt.
        metrics: Names; see `mmspec.metrics.registry`.
        reference: What distances are measured to: "plain" for plain decoding of the same prompts with other seeds, or a
            path: an .npz of statistics, or a folder of images or recordings.
        shapes: Weights of the extractor, other than the embedded ones.
        inception: Weights of the extractor.
        clip: Weights of the extractor.
        dinov2: Weights of the extractor.
        clap: Weights of the extractor.
        wavlm: Weights of the extractor.
        whisper: Weights of the extractor.
        hpsv2: Weights of the extractor.
        pickscore: Weights of the extractor.
        imagereward: Weights of the extractor.
        hpsv3: Weights of the extractor.
        utmos: Weights of the extractor.
        vqa: Weights of the extractor.
        dpg: The file of questions of the metric `dpg`.
        detector: Weights of the extractor.
        drafter: A folder that `mmspec train-drafter` wrote, for recipes that draft with it.
        temperature: None is the model's default.
        top_k: None is the model's default.
        top_p: None is the model's default.
        min_p: None is the model's default.
        typical_p: None is the model's default.
        guidance_scale: None is the model's default.
        batch: Samples per call.
        device: Where the model and the extractors run.
        dtype: Of the weights; "auto" is that of the files, but float32 for the models of the package and, on a CPU, for
            saved pipelines.
        strict: Refuse files that cannot be read, instead of leaving them out.
        fingerprint: Of the model's weights, once loaded; see `mmspec.files.fingerprint`.
        suite: The benchmark whose prompts and metrics these are; None for the user's own.
    """

    model: str
    prompts: tuple[str, ...]
    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    reference: str = "plain"
    shapes: str | None = None
    inception: str | None = None
    clip: str | None = None
    dinov2: str | None = None
    clap: str | None = None
    wavlm: str | None = None
    whisper: str | None = None
    hpsv2: str | None = None
    pickscore: str | None = None
    imagereward: str | None = None
    hpsv3: str | None = None
    utmos: str | None = None
    vqa: str | None = None
    dpg: str | None = None
    detector: str | None = None
    drafter: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    guidance_scale: float | None = None
    batch: int = 1
    device: str = "cpu"
    dtype: str = "auto"
    strict: bool = False
    fingerprint: str = ""
    suite: str | None = None

    @property
    def weights(self) -> dict[str, str]:
        """For each extractor whose weights were named, where they are; and where the files of `dpg` are."""
        return {name: where for name in (*EXTRACTORS, "vqa", "dpg") if (where := getattr(self, name, None))}

    @property
    def entropy(self) -> bool:
        """Whether the pipeline measures the target distribution, which takes time in every call."""
        return any(_is_likelihood(name) for name in self.metrics)

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling arguments of the pipeline's call, those that are given."""
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "guidance_scale")
        return {key: value for key in names if (value := getattr(self, key)) is not None}

    def to_dict(self) -> dict[str, Any]:
        """As plain values, which `read_file` accepts."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def _is_likelihood(metric: str) -> bool:
    try:
        return find_metric(metric).statistic in ("entropy", "nll")
    except UnknownNameError:  # in the configuration of an earlier run, whose metric is no longer installed
        return False


_LARGEST = 2**63
_TEXTS, _WHOLE, _NUMBER, _TEXT, _TRUTH = "a text or a list", "a whole number", "a number", "a text", "true or false"
_KINDS: Mapping[str, str] = {
    **{field.name: _TEXT for field in fields(EvalConfig)},
    **dict.fromkeys(("prompts", "recipes", "metrics", "seeds"), _TEXTS),
    **dict.fromkeys(("top_k", "batch", "limit"), _WHOLE),
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "guidance_scale"), _NUMBER),
    "strict": _TRUTH,
}


def read_file(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; a key without a value counts as absent.

    Raises:
        ArgumentError: If the file cannot be read, has an unknown key, or a value of the wrong type.
    """
    found = read_yaml(path, "--config")
    known = list(_KINDS)
    if not isinstance(found, Mapping):
        raise ArgumentError(f"--config: '{path}' must hold keys and values; the keys are {', '.join(known)}")
    for key, value in found.items():
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise ArgumentError(f"--config: '{path}' has an unknown key {key!r}{hint}; known: {', '.join(known)}")
        if value is not None and not _is(value, _KINDS[key]):
            raise ArgumentError(f"--config: '{path}': {key} must be {_KINDS[key]}, not {value!r}")
        if isinstance(value, (int, float)) and not abs(value) < _LARGEST:
            raise ArgumentError(f"--config: '{path}': {key} must be a finite number below 2**63, not {value!r}")
        if key in ("limit", "batch") and value is not None and value < 1:
            raise ArgumentError(f"--config: '{path}': {key} must be 1 or more, not {value!r}")
    return {key: value for key, value in found.items() if value is not None}


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or kind == _TRUTH:
        return isinstance(value, bool) and kind == _TRUTH
    if kind == _TEXTS:  # seeds may be numbers, and so may prompts
        return isinstance(value, (str, int)) or (
            isinstance(value, list) and all(isinstance(v, (str, int)) and not isinstance(v, bool) for v in value)
        )
    return isinstance(value, int) if kind == _WHOLE else isinstance(value, (int, float) if kind == _NUMBER else str)


def check_folder(folder: Path, config: EvalConfig) -> None:
    """Checks that a results folder can be made, or holds the same evaluation; writes nothing.

    Raises:
        ArgumentError: If the folder holds something else, or other results, or its journal is damaged.
    """
    if not folder.exists():
        return
    try:
        inside = {path.name for path in folder.iterdir() if not is_own_file(path.name)}
    except OSError as error:
        raise ArgumentError(f"-o/--output: cannot write '{folder}': {error.strerror or error}") from error
    if FILE in inside:
        refuse_other(folder, config)
        Journal(folder).read()  # a damaged line is refused before the model is loaded
    elif inside:
        raise ArgumentError(f"-o/--output: '{folder}' is not empty and holds no {FILE}; name another folder")


@contextmanager
def open_folder(folder: Path, config: EvalConfig) -> Iterator[None]:
    """Makes the results folder, or continues one of the same evaluation; it is this process's during the block.

    Raises:
        ArgumentError: If `check_folder` raises it, another process uses the folder, or it cannot be written.
    """
    check_folder(folder, config)
    import yaml

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"-o/--output: cannot write '{folder}': {error.strerror or error}") from error
    with locked(folder, "-o/--output"):
        check_folder(folder, config)  # what another process may have written since
        with replacing_inside(folder, FILE) as partial:
            partial.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), encoding="utf-8")
        yield


def refuse_other(folder: Path, config: EvalConfig) -> None:
    """Checks that a folder's samples were generated under the same settings.

    Raises:
        ArgumentError: If a setting of `IDENTITY` differs.
    """
    before = read_config(folder)
    for key in IDENTITY:
        old, new = getattr(before, key), getattr(config, key)
        if key == "fingerprint" and "" in (old, new):
            continue  # unknown before the model is loaded
        if old != new:
            named = f"other weights (fingerprint {old}" if key == "fingerprint" else f"{key}={old!r}"
            now = f"now {new})" if key == "fingerprint" else f"not {new!r}"
            raise ArgumentError(f"-o/--output: '{folder}' holds results of {named}, {now}; name another folder")


def read_config(folder: Path) -> EvalConfig:
    """The configuration of a results folder.

    Raises:
        ArgumentError: If there is none that can be read.
    """
    values = read_file(folder / FILE)
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    try:
        return EvalConfig(**given)
    except TypeError as error:
        raise ArgumentError(f"'{folder / FILE}' is not the configuration of an evaluation: {error}") from error
