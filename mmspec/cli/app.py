"""The command `mmspec`. Heavy imports stay inside the functions of commands, so that `mmspec --help` is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

import typer

from mmspec.cli.bench import bench_image, bench_speak
from mmspec.cli.bench_kernels import bench_kernels
from mmspec.cli.check import check
from mmspec.cli.convert import convert
from mmspec.cli.env import env
from mmspec.cli.eval import evaluate
from mmspec.cli.image import image
from mmspec.cli.ls import ls
from mmspec.cli.measure import measure
from mmspec.cli.music import music
from mmspec.cli.report import report
from mmspec.cli.speak import speak
from mmspec.cli.train_drafter import train_drafter
from mmspec.errors import MMSpecError

app = typer.Typer(
    name="mmspec",
    help="Speculative decoding for autoregressive image and audio generators.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Time recipes side by side in one run.", rich_markup_mode=None)
app.add_typer(bench, name="bench")
app.command("image")(image)
app.command("speak")(speak)
app.command("music")(music)
app.command("check")(check)
app.command("eval")(evaluate)
app.command("report")(report)
app.command("measure")(measure)
app.command("train-drafter")(train_drafter)
app.command("convert")(convert)
app.command("ls")(ls)
app.command("env")(env)
bench.command("image")(bench_image)
bench.command("speak")(bench_speak)
bench.command("kernels")(bench_kernels)

USAGE, INTERRUPTED = 2, 130

# Some releases of typer bundle click, others depend on it; either way this is the class that typer raises.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The words after `mmspec`; None for those in `sys.argv`.

    Returns:
        The exit status: 0 for success, 1 for a failed check or a closed pipe, 2 for invalid input (one line on stderr),
        130 for an interrupt.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths that the terminal's encoding lacks
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        command = typer.main.get_command(app)
        with command.make_context("mmspec", words) as context:
            command.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except MMSpecError as error:
        return _print_error(str(error))
    except _UsageError as error:
        return _print_error(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        print("mmspec: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe (`mmspec ls | head`); the interpreter's last flush must not fail on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # If stdout has failed, the interpreter's last flush must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _print_error(f"{type(error).__name__}: {error}")
    return 0


def _print_error(message: str) -> int:
    print(f"mmspec: error: {' '.join(message.split())}", file=sys.stderr)
    return USAGE
