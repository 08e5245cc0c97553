"""Loading a pipeline for a command that reports its own progress."""

from __future__ import annotations

from typing import Any


def load_silent(model: str, device: str, drafter: str | None = None) -> Any:
    """What `mmspec.load` gives, with no progress bar of its own, neither now nor in its calls.

    Raises `ArgumentError` for a device or a drafter that is not there, `UnknownNameError` for a model that is not.
    """
    import mmspec
    from mmspec.registry import add_drafter

    silence_loading()
    pipe = mmspec.load(model, device=device)
    if drafter is not None:
        add_drafter(pipe, drafter)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def silence_loading() -> None:
    """Turns off the progress bars that loading and saving a model would show."""
    import diffusers
    import transformers

    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()
