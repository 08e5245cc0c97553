"""The command line. Heavy imports stay inside the commands, so that `mmspec --help` answers at once."""

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
    help="Draft-and-verify decoding for autoregressive image and audio generators.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure recipes side by side in one run.", rich_markup_mode=None)
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

# typer carries its own copy of click in some releases and depends on click in others: take the class typer uses.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0 done, 2 bad input (one line on stderr), 130 interrupted.

    Args:
        arguments: The words after `mmspec`; None takes those of the process.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path need not fit the terminal's encoding
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
        return _complain(str(error))
    except _UsageError as error:
        return _complain(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        print("mmspec: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`mmspec ls | head`) has left; the interpreter's last flush must not fail on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # When it was stdout that failed, the interpreter's last flush must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _complain(f"{type(error).__name__}: {error}")
    return 0


def _complain(message: str) -> int:
    print(f"mmspec: error: {' '.join(message.split())}", file=sys.stderr)
    return USAGE
