"""Loading a pipeline for a command that reports its own progress."""

from __future__ import annotations

from typing import Any


def load_silent(model: str, device: str) -> Any:
    """What `mmspec.load` gives, with no progress bar of its own, neither now nor in its calls.

    Raises `ArgumentError` for a device that is not there, `UnknownNameError` for a model that is not.
    """
    from diffusers.utils import logging
    from transformers.utils import logging as transformers_logging

    import mmspec

    logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    pipe = mmspec.load(model, device=device)
    pipe.set_progress_bar_config(disable=True)
    return pipe
