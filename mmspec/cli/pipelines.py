"""Loads pipelines for commands, which show their own progress."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.model_options import DType
from mmspec.cli.threads import suit_threads
from mmspec.errors import ArgumentError

if TYPE_CHECKING:
    from mmspec.audio.pipeline import SpeechPipeline


def load_generator(
    model: str,
    device: str,
    drafter: str | None = None,
    tokenizer: str | None = None,
    config: Mapping[str, Any] | None = None,
    dtype: DType = DType.auto,
) -> Any:
    """Loads an image or audio model for generation only; loading and calls show no progress bars.

    Args:
        model: A name, a folder or a Hub id.
        device: Where the model runs.
        drafter: A trained drafter.
        tokenizer: The image tokenizer or codec, see `mmspec.load`.
        config: Options of the model, see `mmspec.load`.
        dtype: Of the weights.

    Raises:
        ArgumentError: When an option is not one of the model's, or the device or the drafter does not exist.
        UnknownNameError: When the model does not exist.
    """
    import mmspec

    chosen = dtype_of(model, dtype, device)
    show_no_loading_bars(model)
    return without_bars(mmspec.load(model, device=device, tokenizer=tokenizer, config=config, dtype=chosen), drafter)


def dtype_of(model: str, dtype: DType, device: str) -> Any:
    """The argument `dtype` of `mmspec.load`.

    It is asked for by every command that loads a model, which then computes in as many threads as suit the model.

    `auto` is float32 for models by name, whose weights are small, and for saved pipelines on a CPU: theirs are often
    stored in float16, in which a CPU is slow.
    """
    import torch

    from mmspec.loading import models

    suit_threads(model)
    if dtype == DType.auto:
        saved = device == "cpu" and (Path(model) / "model_index.json").is_file()
        return torch.float32 if saved or model in models() else "auto"
    return getattr(torch, dtype.value)


def load_image_generator(
    model: str,
    device: str,
    drafter: str | None = None,
    tokenizer: str | None = None,
    dtype: DType = DType.float32,
) -> Any:
    """Loads an image model as `load_generator` does.

    Raises:
        ArgumentError: When the model generates audio, or the device or the drafter does not exist.
        UnknownNameError: When the model does not exist.
    """
    pipe = load_generator(model, device, drafter, tokenizer, None, dtype)
    if not hasattr(pipe, "set_progress_bar_config"):
        raise ArgumentError(f"model {model!r} does not generate images; see `mmspec speak`")
    return pipe


def load_pipeline(model: str, device: str, drafter: str | None = None, dtype: DType = DType.float32) -> Any:
    """Loads an image or audio model as `mmspec.load` does; loading and calls show no progress bars.

    Raises:
        ArgumentError: When the device or the drafter does not exist.
        UnknownNameError: When the model does not exist.
    """
    import mmspec

    show_no_loading_bars(model)
    return without_bars(mmspec.load(model, device=device, dtype=dtype_of(model, dtype, device)), drafter)


def without_bars(pipe: Any, drafter: str | None) -> Any:
    """Adds a drafter, if one is given, to a pipeline, whose calls show no progress bars from now on.

    Raises:
        ArgumentError: When the drafter does not exist.
    """
    from mmspec.loading import add_drafter

    if drafter is not None:
        add_drafter(pipe, drafter)
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    return pipe


def load_audio_pipeline(
    model: str,
    device: str,
    reference_audio: Path | None = None,
    transcript: str | None = None,
    config: Mapping[str, Any] | None = None,
    codec: str | None = None,
    dtype: DType = DType.float32,
) -> SpeechPipeline:
    """Loads a speech or music model as `mmspec.load` does; loading shows no progress bars.

    Args:
        model: A name, a folder or a Hub id.
        device: Where the model runs.
        reference_audio: An audio file with the voice or the melody to follow. It is read before the model is loaded.
        transcript: The words spoken in the reference audio.
        config: Options of the model, see `mmspec.load`.
        codec: A folder or Hub id of the codec, for models without one.
        dtype: Of the weights.

    Raises:
        ArgumentError: When the model generates no audio or does not accept reference audio, the file has none, or the
            device does not exist.
        UnknownNameError: When the model does not exist.
    """
    import mmspec
    from mmspec.audio.pipeline import SpeechPipeline
    from mmspec.limits import VOICE_SECONDS
    from mmspec.media.audio import read_audio

    reference = None if reference_audio is None else read_audio(reference_audio, VOICE_SECONDS)
    show_no_loading_bars(model)
    pipe = mmspec.load(model, device=device, tokenizer=codec, config=config, dtype=dtype_of(model, dtype, device))
    if not isinstance(pipe, SpeechPipeline):
        raise ArgumentError(f"model {model!r} does not generate audio; see `mmspec image`")
    return pipe if reference is None else pipe.with_reference_audio(*reference, transcript)


def show_no_loading_bars(model: str) -> None:
    """Calls `disable_loading_bars`, except for the models of the package, which import neither library."""
    from mmspec.loading import MODELS

    if model not in MODELS:
        disable_loading_bars()


def disable_loading_bars() -> None:
    """Disables the progress bars that diffusers and transformers show while they load or save a model."""
    import diffusers
    import transformers

    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()
