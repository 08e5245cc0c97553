"""Loading a pipeline for a command that reports its own progress."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.errors import ArgumentError

if TYPE_CHECKING:
    from mmspec.audio.pipeline import SpeechPipeline


def load_silent(model: str, device: str, drafter: str | None = None) -> Any:
    """What `mmspec.load` gives, with no progress bar of its own, neither now nor in its calls.

    Raises:
        ArgumentError: For a device or a drafter that is not there.
        UnknownNameError: For a model that is not there.
    """
    pipe = load_any(model, device, drafter)
    if not hasattr(pipe, "set_progress_bar_config"):
        raise ArgumentError(f"model {model!r} draws no images; see `mmspec speak`")
    return pipe


def load_any(model: str, device: str, drafter: str | None = None) -> Any:
    """The same, whether it draws or speaks."""
    import mmspec
    from mmspec.loading import add_drafter

    silence_loading()
    pipe = mmspec.load(model, device=device)
    if drafter is not None:
        add_drafter(pipe, drafter)
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    return pipe


def load_speech(model: str, device: str, heard: Path | None = None, said: str | None = None) -> SpeechPipeline:
    """The same of a model that speaks; with `heard`, going by that sound file: its melody, or its voice, which says
    `said`.

    Raises:
        ArgumentError: Also for a model that does not speak, or goes by no sound, and, before any model is fetched, for
            a file that holds none.
    """
    import mmspec
    from mmspec.audio.pipeline import SpeechPipeline
    from mmspec.audio.wave import read_audio

    sound = None if heard is None else read_audio(heard)
    silence_loading()
    pipe = mmspec.load(model, device=device)
    if not isinstance(pipe, SpeechPipeline):
        raise ArgumentError(f"model {model!r} does not speak; see `mmspec image`")
    return pipe if sound is None else pipe.with_reference_audio(*sound, said)


def silence_loading() -> None:
    """Turns off the progress bars that loading and saving a model would show."""
    import diffusers
    import transformers

    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()
