"""`mmspec serve` and `mmspec demo`: models with OpenAI's endpoints, and the page to try them with."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.logs import LogLevel, set_level
from mmspec.cli.model_options import Codec, Config, DraftModel, DType, Style, Tokenizer, Weights, read_config
from mmspec.cli.options import Device, Drafter, read_recipe
from mmspec.cli.output_paths import check_folder, read_output
from mmspec.cli.pipelines import load_generator
from mmspec.environment.importing import require_server
from mmspec.errors import ArgumentError

if TYPE_CHECKING:
    from mmspec.serving.models import ServedModel
    from mmspec.serving.settings import ServerSettings

Host = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is all of the machine's.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", show_default="the model's", help="A name from `mmspec ls recipes`, with knobs."),
]
MaxRows = Annotated[int, typer.Option(min=1, max=4096, help="Requests that are decoded at the same time, per model.")]
Level = Annotated[
    LogLevel | None,
    typer.Option("--log-level", help="What is logged on stderr; info has a line per request.", show_default="info"),
]
MaxWaiting = Annotated[int, typer.Option(min=1, help="Requests that may wait; others get status 429.")]


@dataclass(frozen=True)
class LoadOptions:
    """How models are loaded.

    Attributes:
        device: Where they run.
        dtype: Of the weights.
        drafter: A trained drafter.
        tokenizer: The image tokenizer or codec, for a model without one.
        config: Options of the model, see `mmspec.load`.
    """

    device: str
    dtype: DType
    drafter: str | None = None
    tokenizer: str | None = None
    config: dict[str, Any] | None = None


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", show_default=False, help="Names, folders or Hub ids."),
    ],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    recipe: RecipeName = None,
    max_rows: MaxRows = 16,
    max_waiting: MaxWaiting = 1024,
    api_key_file: Annotated[
        Path | None,
        typer.Option(show_default=False, help="A file with API keys, one per line; also MMSPEC_API_KEYS=KEY,KEY."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(show_default=False, help="A web origin whose pages may call the server, or *.")
    ] = None,
    allow_reference_audio: Annotated[
        bool, typer.Option("--allow-reference-audio", help="Requests may bring a recording whose voice to follow.")
    ] = False,
    allowed_local_media_path: Annotated[
        Path | None, typer.Option(show_default=False, help="A folder whose files ref_audio may name by file: URLs.")
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0, max=3600, help="After SIGTERM, running requests have this long to finish.")
    ] = 30.0,
    learn: Annotated[
        Path | None,
        typer.Option(
            parser=read_output,
            metavar="FOLDER",
            show_default=False,
            help="The drafter learns from the images that are generated, in pauses, and is written here. What a seed "
            "gives then depends on earlier requests.",
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Whether / is a page to try the models with.")] = True,
    docs: Annotated[
        bool | None,
        typer.Option(
            "--docs/--no-docs",
            show_default="without API keys",
            help="Whether /docs and /openapi.json describe the API.",
        ),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MODEL", show_default=False, help="Another name of a model, such as tts-1=spoken."),
    ] = None,
    voice_alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VOICE",
            show_default=False,
            help="Another name of a voice, such as alloy=high; * is any other.",
        ),
    ] = None,
    size_alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE=SIZE",
            show_default=False,
            help="A size of images in place of one that the model does not have, such as 1024x1024=auto; * is any.",
        ),
    ] = None,
    drafter: Drafter = None,
    tokenizer: Tokenizer = None,
    codec: Codec = None,
    style: Style = None,
    config: Config = None,
    draft_model: DraftModel = None,
    dtype: Weights = DType.auto,
    device: Device = "cpu",
    log_level: Level = None,
) -> None:
    """Serve models over HTTP with OpenAI's endpoints, until SIGTERM or Ctrl-C.

    Requests join the running batch of their model. Models are separated by spaces: `mmspec serve shapes spoken`. The
    options from --drafter to --draft-model are for a single model.
    """
    set_level(log_level, LogLevel.warning)
    if tokenizer is not None and codec is not None:
        raise ArgumentError("--tokenizer and --codec name the same file; leave one of them out")
    options = read_config(config, style=style, draft_model=draft_model)
    loading = LoadOptions(device, dtype, drafter, tokenizer or codec, options)
    if len(models) > 1 and (drafter or loading.tokenizer or options or learn):
        raise ArgumentError(
            "--learn, --drafter, --tokenizer, --codec, --style, --config, --draft-model are for a single MODEL"
        )
    if learn is not None:
        check_folder(learn, "--learn")
    chosen = None if recipe is None else read_recipe(recipe, None)
    require_server()
    from mmspec.serving.settings import ServerSettings, check_settings, read_api_keys
    from mmspec.serving.stand_ins import read_stand_ins

    settings = ServerSettings(
        host, port, read_api_keys(api_key_file), tuple(cors_origin or ()), allow_reference_audio,
        allowed_local_media_path, drain_seconds, page, docs,
        aliases=read_stand_ins(alias or (), "--alias", "MODEL"),
        voices=read_stand_ins(voice_alias or (), "--voice-alias", "VOICE"),
        sizes=read_stand_ins(size_alias or (), "--size-alias", "SIZE"),
    )  # fmt: skip
    check_settings(settings)
    _run(models, chosen, settings, max_rows, max_waiting, loading, open_page=False, learn=learn, log_level=log_level)


def demo(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL...]", show_default="shapes spoken", help="What to serve.")
    ] = None,
    port: Port = 8000,
    recipe: RecipeName = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open a browser.")] = True,
    dtype: Weights = DType.auto,
    device: Device = "cpu",
) -> None:
    """Open a page on which images appear row by row and speech sounds while it is made.

    It is the page of `mmspec serve`, for this machine only.
    """
    chosen = None if recipe is None else read_recipe(recipe, None)
    require_server()
    from mmspec.serving.settings import ServerSettings

    loading = LoadOptions(device, dtype)
    settings, names = ServerSettings(port=port), models or ["shapes", "spoken"]
    _run(names, chosen, settings, 16, 64, loading, open_page=browser, usual=LogLevel.warning)


def _run(
    names: list[str],
    recipe: Any,
    settings: ServerSettings,
    max_rows: int,
    max_waiting: int,
    loading: LoadOptions,
    open_page: bool,
    learn: Path | None = None,
    log_level: LogLevel | None = None,
    usual: LogLevel = LogLevel.info,
) -> None:
    from mmspec.serving.app import Application
    from mmspec.serving.server import address_of, bind
    from mmspec.serving.server import serve as run
    from mmspec.serving.stand_ins import check_aliases
    from mmspec.serving.warm_up import warm_up

    if len(set(names)) < len(names):
        raise ArgumentError(f"MODEL is named twice: {', '.join(names)}")
    check_aliases(settings.aliases, names)
    listener = bind(settings.host, settings.port)  # before the models are loaded, which takes longer
    try:
        models = [_load(name, recipe, max_rows, max_waiting, loading, learn) for name in names]
        application = Application(models, settings)
        address = address_of(listener)
        for model in models:
            print(f"mmspec: {model.name} ({model.kind}, {model.recipe})", file=sys.stderr)
            if (done := warm_up(model)) is not None:
                print(f"mmspec: {done}", file=sys.stderr)
        print(f"mmspec: listening on {address}", file=sys.stderr, flush=True)
        if open_page:
            webbrowser.open(address)
        set_level(log_level, usual)  # a line per request, but an error while models are loaded stays one line
        run(application, listener)
    finally:
        listener.close()


def _load(
    name: str, recipe: Any, max_rows: int, max_waiting: int, loading: LoadOptions, learn: Path | None
) -> ServedModel:
    """Loads a model."""
    from mmspec.serving.load import served_model

    pipe = load_generator(name, loading.device, loading.drafter, loading.tokenizer, loading.config, loading.dtype)
    return served_model(name, pipe, recipe, max_rows, max_waiting, learn)
