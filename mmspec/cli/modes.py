"""Options that mean nothing beside others: each is refused by name, and never ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand

from mmspec.errors import ArgumentError

_ANYWHERE = ("--help", "--verbose", "--threads")


@dataclass(frozen=True)
class Alone:
    """An option that makes others of its command meaningless.

    Attributes:
        command: The words after `mmspec`.
        takes: The only options that it goes with; None for all but `leaves`.
        leaves: Options that it does not go with.
    """

    command: str
    option: str
    takes: tuple[str, ...] | None = None
    leaves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Needs:
    """Options of a command that mean nothing without another.

    Attributes:
        command: The words after `mmspec`.
        needed: What they need, in words.
        met: Whether that is given, from the values of all options.
    """

    command: str
    options: tuple[str, ...]
    needed: str
    met: Callable[[Mapping[str, Any]], bool]


def _is(name: str, *values: object) -> Callable[[Mapping[str, Any]], bool]:
    """Whether an option has one of the values, or any if none are listed."""
    return lambda given: given[name] in values if values else bool(given[name])


def _is_not(name: str, *values: object) -> Callable[[Mapping[str, Any]], bool]:
    """Whether an option has none of the values."""
    return lambda given: given[name] not in values


_NETWORK = ("--loss", "--steps", "--lr", "--hidden", "--rotary", "--keep-features", "--no-keep-features")
_TRAINED = (*_NETWORK, "--validate-every", "--save-every")
_ENUMERATED = ("--samples", "--seed", "--columns", "--latents")
_OF_MODEL = (
    "--prompt",
    "--device",
    "--dtype",
    "--tokenizer",
    "--style",
    "--tokens",
    "--rows",
    "--output",
    "--batch-invariance",
)
_STEPS = ("--config", "--batch", "--repeats", "--device", "--output", "--json")
_UNTRAINED = ("retrieval", "swift")
_LAYERED = ("block", "kangaroo", "one-step", "outer")
MODES: tuple[Alone | Needs, ...] = (
    Alone("generate", "--status", takes=("--json",)),
    Needs("generate", ("--pack",), "--format webdataset or parquet", _is_not("format", "files")),
    Alone("bench image", "--random-weights", takes=_STEPS),
    Needs("bench image", ("--config",), "--random-weights", _is("random_weights")),
    Alone("bench predict", "--prompt", leaves=("--prompts",)),
    Alone("check", "--model", leaves=_ENUMERATED),
    Alone("check", "--batch-invariance", leaves=("--tokens",)),
    Needs("check", _OF_MODEL, "-m/--model", _is("model")),
    Alone("eval", "--dry-run", leaves=("--json", "--log-every")),
    Alone("measure", "--save-reference", leaves=("--reference", "--prompts", "--json")),
    Alone("report", "--serve", takes=("--port",)),
    Needs("report", ("--port",), "--serve", _is("serve")),
    Needs("report", ("--metric", "--axis"), "--format svg or png", _is("form", "svg", "png")),
    Alone("speak", "--stream", leaves=("--batch-size",)),
    Alone("music", "--stream", leaves=("--batch-size",)),
    Needs("speak", ("--voice-text",), "--voice-file", _is("voice_file")),
    Needs("serve", ("--allowed-local-media-path",), "--allow-reference-audio", _is("allow_reference_audio")),
    Needs("train-drafter", ("--voice-text",), "--voice-file", _is("voice_file")),
    Needs("train-drafter", ("--select",), "--reference", _is("reference")),
    Needs("train-drafter", ("--reference", "--drafter"), "--kind small", _is("kind", "small")),
    Needs("train-drafter", ("--markov-rank", "--mask-token"), "--kind block", _is("kind", "block")),
    Needs("train-drafter", ("--layers",), f"--kind {', '.join(_LAYERED)}", _is("kind", *_LAYERED)),
    Needs("train-drafter", ("--hidden", "--rotary"), "a --kind that is a head, not small", _is_not("kind", "small")),
    Needs("train-drafter", _TRAINED, "a --kind other than retrieval and swift", _is_not("kind", *_UNTRAINED)),
    Needs("train-judge", ("--shapes",), "--metric shapes", _is("metric", "shapes")),
    Needs("train-judge", ("--inception",), "--metric inception", _is("metric", "inception")),
    Needs("train-judge", ("--clip",), "--metric clip", _is("metric", "clip")),
    Needs("train-judge", ("--dinov2",), "--metric dinov2", _is("metric", "dinov2")),
)


class Command(TyperCommand):
    """A command that refuses options beside which others mean nothing."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command.

        Raises:
            ArgumentError: For an option that would be ignored.
        """
        refuse_ignored(ctx)
        return super().invoke(ctx)


def _as_typed(parameter: Any, value: Any) -> str:
    return str(parameter.secondary_opts[-1] if parameter.secondary_opts and value is False else parameter.opts[-1])


def refuse_ignored(context: Any) -> None:
    """Refuses options of a command line that would be ignored.

    Args:
        context: Of the command, whose options have been read.

    Raises:
        ArgumentError: If there is one; it names the option that makes it so.
    """
    command = context.command_path.partition(" ")[2]
    names = {
        _as_typed(parameter, context.params.get(parameter.name)): {*parameter.opts, *parameter.secondary_opts}
        for parameter in context.command.params
        if parameter.param_type_name == "option" and context.get_parameter_source(parameter.name).name == "COMMANDLINE"
    }
    for mode in MODES:
        if mode.command != command:
            continue
        if isinstance(mode, Needs):
            ignored = [name for name, own in names.items() if own & {*mode.options}]
            if ignored and not mode.met(context.params):
                raise ArgumentError(f"{', '.join(ignored)} requires {mode.needed}")
        elif mode.option in names:
            kept = (mode.option, *_ANYWHERE, *(mode.takes or ()))
            ignored = [
                name
                for name, own in names.items()
                if (not own & {*kept} if mode.takes is not None else own & {*mode.leaves})
            ]
            if ignored:
                raise ArgumentError(f"{mode.option} takes no {', '.join(ignored)}; leave one of them out")
