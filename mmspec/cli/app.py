"""The command `mmspec`. Heavy imports stay inside the functions of commands, so that `mmspec --help` is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from mmspec.cli.bench import bench_image, bench_speak
from mmspec.cli.bench_kernels import bench_kernels
from mmspec.cli.bench_predict import bench_predict
from mmspec.cli.check import check
from mmspec.cli.convert import convert
from mmspec.cli.env import env
from mmspec.cli.eval import evaluate
from mmspec.cli.export_drafter import export_drafter
from mmspec.cli.generate import generate
from mmspec.cli.image import image
from mmspec.cli.logs import Verbose, logged
from mmspec.cli.ls import ls
from mmspec.cli.measure import measure
from mmspec.cli.modes import Command
from mmspec.cli.music import music
from mmspec.cli.option_names import in_options, options_of
from mmspec.cli.report import report
from mmspec.cli.serve import demo, serve
from mmspec.cli.shared_options import share_options
from mmspec.cli.speak import speak
from mmspec.cli.threads import Threads, own_threads
from mmspec.cli.train_drafter import train_drafter
from mmspec.cli.train_judge import train_judge
from mmspec.cli.video import video
from mmspec.errors import MMSpecError, OutputError, shorten
from mmspec.files import failed_write

app = typer.Typer(
    name="mmspec",
    help="Speculative decoding for autoregressive image and audio generators.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(help="Time recipes side by side in one run.", rich_markup_mode=None)
app.add_typer(bench, name="bench")
_COMMANDS: dict[str, Callable[..., None]] = {
    "image": image, "speak": speak, "music": music, "video": video, "generate": generate, "check": check,
    "eval": evaluate, "report": report, "measure": measure, "train-drafter": train_drafter, "train-judge": train_judge,
    "convert": convert, "export-drafter": export_drafter, "serve": serve, "demo": demo, "ls": ls, "env": env,
}  # fmt: skip
_BENCHMARKS: dict[str, Callable[..., None]] = {
    "image": bench_image, "speak": bench_speak, "kernels": bench_kernels, "predict": bench_predict,
}  # fmt: skip
for _group, _commands in ((app, _COMMANDS), (bench, _BENCHMARKS)):
    for _name, _function in _commands.items():
        _group.command(_name, cls=Command)(_function)


def print_version(asked: bool) -> None:
    """Prints the version and ends, for `mmspec --version`."""
    if asked:
        from mmspec import __version__

        print(f"mmspec {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Verbose = 0,
    threads: Threads = None,
) -> None:
    """Holds the options of `mmspec` itself."""


FAILED, USAGE, INTERRUPTED = 1, 2, 130

# Some releases of typer bundle click, others depend on it; either way this is the class that typer raises.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The words after `mmspec`; None for those in `sys.argv`.

    Returns:
        The exit status: 0 for success, 1 for a failed check, a failed write or a closed pipe, 2 for invalid input (one
        line on stderr), 130 for an interrupt.
    """
    if sys.stderr is None:  # closed by the caller; print would write its lines to stdout
        with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stderr(nothing):
            return main(arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths that the terminal's encoding lacks
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command = typer.main.get_command(app)
    share_options(command)
    try:
        with logged(), own_threads(), command.make_context("mmspec", words) as context:
            command.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except OutputError as error:
        return _print_error(str(error), FAILED)
    except MMSpecError as error:
        return _print_error(in_options(str(error), options_of(command, words)), USAGE)
    except _UsageError as error:
        return _print_error(shorten(_with_value(error)), USAGE)
    except (KeyboardInterrupt, typer.Abort):
        _print_line("mmspec: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe (`mmspec ls | head`); the interpreter's last flush must not fail on it.
        _discard_stdout()
        return FAILED
    except OSError as error:
        # If stdout has failed, the interpreter's last flush must not fail on it again.
        _discard_stdout()
        return _print_error(f"{type(error).__name__}: {shorten(str(error))}", FAILED if failed_write(error) else USAGE)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return _print_error("not enough memory; generate less per call, or use a smaller model", FAILED)
    return 0


def out_of_memory(error: BaseException) -> bool:
    """Whether Python or torch has failed to allocate memory, on any device."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "OutOfMemory" in type(error).__name__


def _with_value(error: Any) -> str:
    """The message of an invalid option, with the value, which releases of typer that check by pydantic leave out."""
    message: str = error.format_message()
    reasons = getattr(error.__cause__, "errors", None)
    given = str(reasons()[0].get("input", "")) if callable(reasons) else ""
    return message if not given or repr(given) in message else f"{message.rstrip('.')}, not {given!r}"


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print_error(message: str, status: int) -> int:
    _print_line(f"mmspec: error: {' '.join(message.split())}")
    return status


def _print_line(line: str) -> None:
    """Writes a line to stderr, and nothing at all if stderr is full; the exit status tells the rest."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        # The interpreter's last flush must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
