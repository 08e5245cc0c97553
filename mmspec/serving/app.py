"""The application: OpenAI's endpoints for images and speech, models, health, metrics and the page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from mmspec import __version__, limits
from mmspec.arguments import shown
from mmspec.errors import MMSpecError
from mmspec.files.documents import parse_json
from mmspec.serving import api_docs
from mmspec.serving.active_request import ActiveRequest, ClientLeft, GeneratedResponse, unless_disconnected
from mmspec.serving.audio_encoder import MEDIA_TYPES as AUDIO_TYPES
from mmspec.serving.errors import ApiError, cut_off, from_validation, json_response, unknown_parameter
from mmspec.serving.generation import Generation
from mmspec.serving.guards import Guards
from mmspec.serving.images import ImageJob
from mmspec.serving.metrics import ServerMetrics
from mmspec.serving.models import Models, ServedModel
from mmspec.serving.page import add_page
from mmspec.serving.raster import MEDIA_TYPES as IMAGE_TYPES
from mmspec.serving.schemas import GenerationRequest, ImageRequest, SpeechRequest
from mmspec.serving.settings import ServerSettings
from mmspec.serving.speech import SpeechJob
from mmspec.serving.sse import HEADERS, MEDIA_TYPE
from mmspec.serving.stand_ins import ANY, check_sizes, check_voices
from mmspec.serving.stored_images import StoredImages

CLOSE_SECONDS = 5.0  # a model ends after the call that runs
log = logging.getLogger("mmspec.serving")
R = TypeVar("R", bound=GenerationRequest)
T = TypeVar("T")


class Application:
    """A server's routes and its state.

    Args:
        models: The models, at least one.
        settings: What the server allows.

    Attributes:
        asgi: The ASGI application, for uvicorn or any other server.
        busy: Requests that are being worked on.
        cut: Requests that had not finished when the server stopped.
        hangs: Whether a model did not end; its threads would keep the process.
    """

    asgi: ASGIApp

    def __init__(self, models: list[ServedModel], settings: ServerSettings | None = None) -> None:
        self.settings = settings or ServerSettings()
        self.models = Models(models, self.settings.aliases)
        check_voices(self.settings.voices, [model.voices for model in models if model.kind == "speech"])
        check_sizes(self.settings.sizes, [model.sized for model in models if model.kind == "image"])
        self.metrics = ServerMetrics()
        self.busy = self.cut = 0
        self.hangs = False
        self._draining = False
        self._stored = StoredImages()
        self.metrics.watch(models)
        app = FastAPI(title="mmspec", version=__version__, openapi_url=None, lifespan=self._lifespan)
        app.add_exception_handler(ApiError, _api_error)
        app.add_exception_handler(HTTPException, _http_error)
        app.add_exception_handler(ClientLeft, _client_left)
        app.add_exception_handler(Exception, _unexpected)
        app.post("/v1/images/generations", openapi_extra=api_docs.body_of(ImageRequest))(self.generate_images)
        app.post(
            "/v1/audio/speech", openapi_extra=api_docs.body_of(SpeechRequest), response_class=Response,
            responses=api_docs.audio_response(),
        )(self.generate_speech)  # fmt: skip
        app.get("/v1/models")(self.list_models)
        app.get("/v1/audio/voices")(self.list_voices)
        app.get("/v1/models/{name:path}")(self.show_model)
        app.get("/v1/files/{name}")(self.fetch_file)
        app.get("/health")(self.health)
        app.get("/metrics")(self.show_metrics)
        if self.settings.describes_itself:
            api_docs.describe_api(app, bool(self.settings.api_keys))
        if self.settings.page:
            add_page(app)
        guarded: ASGIApp = Guards(app, self.settings, lambda: self._draining, self.metrics.count_response)
        if self.settings.cors_origins:
            guarded = CORSMiddleware(
                guarded, allow_origins=list(self.settings.cors_origins), allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type"], expose_headers=["*"],
            )  # fmt: skip
        self.asgi = guarded

    def drain(self) -> None:
        """Refuses new requests from now on."""
        self._draining = True

    def cut_off(self) -> None:
        """Ends all requests; their clients are told to send them again."""
        self._draining = True
        self.cut += sum(model.cut_off() for model in self.models.all.values())

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        yield
        for model in self.models.all.values():
            try:
                await asyncio.wait_for(model.aclose(), CLOSE_SECONDS)
            except TimeoutError:
                log.error("the model %s hangs", model.name)
                self.hangs = True

    def _active(self, model: ServedModel, kind: str, schema: type[GenerationRequest]) -> ActiveRequest:
        self.busy += 1

        def ended() -> None:
            self.busy -= 1

        return ActiveRequest(self.metrics, model.name, kind, schema.model_fields, ended)

    async def generate_images(self, request: Request) -> Response:
        """Generates images."""
        body = await read_body(request, ImageRequest)
        model = self.models.find(body.model, "image")
        active = self._active(model, "image", ImageRequest)
        try:
            address = partial(self._address, request)
            job = ImageJob(model, body, active.accounting, address, self.settings.sizes)
            if body.stream:
                return await _stream(request, active, job, MEDIA_TYPE, HEADERS)
            answer = await unless_disconnected(request, job.respond())
        except BaseException as error:
            raise self._ended(active, error) from error
        active.end(None)
        return json_response(answer)

    async def generate_speech(self, request: Request) -> Response:
        """Generates speech."""
        body = await read_body(request, SpeechRequest)
        model = self.models.find(body.model, "speech")
        active = self._active(model, "audio", SpeechRequest)
        try:
            make = partial(SpeechJob, model, body, active.accounting, self.settings)
            # Reading a recording takes long, and so does an answer to a text; other requests must not wait for it.
            slow = body.ref_audio is not None or getattr(model.pipe.adapter, "answers", False)
            job = await _in_worker(model, make) if slow else make()
            if body.stream_format == "sse":
                return await _stream(request, active, job, MEDIA_TYPE, job.headers() | HEADERS)
            if job.streams:
                return await _stream(request, active, job, AUDIO_TYPES[job.format], job.headers())
            data, headers = await unless_disconnected(request, job.respond())
        except BaseException as error:
            raise self._ended(active, error) from error
        active.end(None)
        return Response(data, headers=headers, media_type=AUDIO_TYPES[job.format])

    async def list_models(self) -> Response:
        """The models."""
        return json_response({"object": "list", "data": [self._describe(name) for name in self.models.names]})

    async def show_model(self, name: str) -> Response:
        """One model."""
        return json_response(self._describe(name))

    def _describe(self, name: str) -> dict[str, Any]:
        found = self.models.get(name)
        if found is None:
            raise ApiError(404, f"model {name!r} is not served here; see /v1/models", "model_not_found", "model")
        return found.describe(name)

    async def list_voices(self, model: str | None = None) -> Response:
        """The voices of a speech model, and their other names."""
        own = self.models.find(model, "speech").voices
        others = [name for name, voice in self.settings.voices.items() if name != ANY and voice in own]
        return json_response({"voices": list(dict.fromkeys([*own, *others]))})

    async def fetch_file(self, name: str) -> Response:
        """An image of a response with `response_format="url"`."""
        content = self._stored.get(name)
        if content is None:
            raise ApiError(404, "there is no such file, or it has been dropped to make room", "not_found")
        return Response(content, media_type=IMAGE_TYPES[name.rpartition(".")[2]])

    async def health(self) -> Response:
        """Whether the server takes requests."""
        models = self.models.all.values()
        failed = any(getattr(model.engine, "has_failed", False) for model in models)
        seconds = max(model.clock.seconds for model in models)
        hangs = seconds > limits.STEP_SECONDS.value
        # A server that hangs or has failed will not get well, whether it drains or not.
        state = "failed" if failed else "hangs" if hangs else "draining" if self._draining else "ok"
        return json_response(
            {"status": state, "seconds_since_last_step": round(seconds, 3)}, 200 if state == "ok" else 503
        )

    async def show_metrics(self) -> Response:
        """Metrics for Prometheus."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _ended(self, active: ActiveRequest, error: BaseException) -> BaseException:
        """Records the end of a request without a response; returns the error of the response."""
        stopped = self._draining and isinstance(error, asyncio.CancelledError)
        found = cut_off() if stopped else active.translate(error)
        active.end(found)
        return found

    def _address(self, request: Request, content: bytes, suffix: str) -> str:
        return str(request.url_for("fetch_file", name=self._stored.add(content, suffix)))


async def read_body(request: Request, schema: type[R]) -> R:
    """The body of a request.

    Raises:
        ApiError: If it is no JSON, or does not fit the schema.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A form of a page elsewhere cannot send this type unasked.
        raise ApiError(
            415, f"Content-Type {kind[:100]!r} is not allowed; send application/json", "unsupported_media_type"
        )
    try:
        found = parse_json(await request.body(), "the request")
    except ClientDisconnect:
        raise ClientLeft from None
    except MMSpecError as error:
        raise ApiError(400, str(error), "invalid_json") from None
    if not isinstance(found, dict):
        raise ApiError(400, f"the request must be a JSON object, not {type(found).__name__}", "invalid_json")
    known = schema.model_fields
    if len(found) > len(known):  # an error for each of very many would take seconds
        raise unknown_parameter(next(name for name in found if name not in known), schema.parameters())
    try:
        return schema.model_validate(found)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False), schema.parameters()) from None


class _Job(Protocol):
    """A request whose response is streamed."""

    def start(self) -> Generation: ...

    def parts(self, generation: Generation) -> AsyncIterator[bytes]: ...


async def _stream(
    request: Request, active: ActiveRequest, job: _Job, media_type: str, headers: Mapping[str, str]
) -> Response:
    """A response that is sent while it is generated. What is refused at once still gets its own status."""
    generation = job.start()
    try:
        await unless_disconnected(request, generation.started_well())  # its place in the queue is free then
    except BaseException:
        await generation.close()
        raise
    return GeneratedResponse(active, generation, job.parts(generation), media_type, headers)


async def _in_worker(model: ServedModel, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(model.worker, work)


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = str(error.detail)
    if error.status_code == 404:
        message = (
            f"there is nothing at {shown(request.url.path)}; images are made by POST /v1/images/generations, speech by "
            "POST /v1/audio/speech, and GET /v1/models lists the models"
        )
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method} is not allowed for {shown(request.url.path)}; use {allowed}"
    return ApiError(error.status_code, message, code, headers=error.headers).response()


async def _client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


async def _unexpected(_: Request, __: Exception) -> Response:
    return ApiError(500, "the server failed", "internal_error").response()
