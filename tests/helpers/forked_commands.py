"""Commands of mmspec in processes that are forked after torch is imported, which takes most of a short command.

Importable by the processes of `multiprocessing`, which look the function up by its name.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import ForkServerProcess
from pathlib import Path

# What the commands import once they run. The server of `multiprocessing` imports it once.
_PRELOADED = [
    "forked_commands",
    "torch",
    "torch._dynamo",  # by the first optimizer
    "mmspec.cli.app",
    "mmspec.audio.spoken.model",
    "mmspec.metrics.evaluation.evaluate",
    "mmspec.metrics.report.page",
    "mmspec.testing.columns",
    "mmspec.training.trainer",
    "mmspec.vision.llamagen.pipeline",
]


def _run(arguments: list[str], folder: Path, log: Path) -> None:
    from mmspec.cli.app import main

    os.chdir(folder)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    raise SystemExit(main(arguments))


def start(arguments: list[str], folder: Path, log: Path) -> ForkServerProcess:
    """Starts `mmspec` with these arguments in a folder; appends what it prints to a file."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=_run, args=(arguments, folder, log))
    process.start()
    return process
