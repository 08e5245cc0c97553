"""What every request passes before any work: its host and key, its size and the time it takes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmspec import limits
from mmspec.serving.errors import ApiError, draining
from mmspec.serving.request_ids import HEADER, new_id
from mmspec.serving.settings import LOOPBACK, ServerSettings

log = logging.getLogger(__name__)
PROTECTED = ("/v1/", "/metrics")
UNPROTECTED = ("/v1/files/",)  # addresses that cannot be guessed
POLLED = ("/health", "/metrics")  # asked for every few seconds
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class ApiKeys:
    """Compares keys in a time that does not depend on them.

    Args:
        keys: The keys; empty allows every request.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def check(self, authorization: bytes | None) -> None:
        """Checks the header Authorization.

        Raises:
            ApiError: With status 401, if it has no key, or an unknown one.
        """
        if not self._digests:
            return
        kind, _, key = (authorization or b"").partition(b" ")
        if kind.lower() != b"bearer" or not key.strip():
            raise ApiError(
                401, "this server needs an API key: Authorization: Bearer KEY", "missing_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        given = _digest(key.strip())
        if not sum(hmac.compare_digest(given, known) for known in self._digests):  # all of them, always
            raise ApiError(401, "the API key is not known", "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


class Guards:
    """An ASGI application around the routes.

    A request body larger than `limits.BODY_BYTES` is refused when its header announces it, or else when it exceeds
    it, or does not arrive within `limits.RECEIVE_SECONDS`.

    Args:
        app: The routes.
        settings: What the server allows.
        draining: Whether the server is about to stop.
        count: Called with the path and the HTTP status of each response.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, draining: Callable[[], bool], count: Callable[[str, int], None]
    ) -> None:
        self._app, self._settings, self._draining, self._count = app, settings, draining, count
        self._keys = ApiKeys(settings.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        request_id = new_id(dict(scope["headers"]).get(HEADER))
        answer, is_head = _Answer(scope, request_id.decode()), scope["method"] == "HEAD"

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id), *_HEADERS]
                self._count(scope["path"], message["status"])
            elif is_head:
                message = {**message, "body": b""}
            answer.note(message)
            await send(message)

        try:
            try:
                self._check(scope)
            except ApiError as error:
                await error.response()(scope, receive, guarded_send)
                return
            routed = {**scope, "method": "GET"} if is_head else scope  # every route of GET has HEAD, too
            await self._app(routed, _BoundedBody(receive), guarded_send)
        finally:
            answer.log()

    def _check(self, scope: Scope) -> None:
        """Checks the header of a request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        path, settings = scope["path"], self._settings
        if b"content-length" in headers and b"transfer-encoding" in headers:
            # A proxy in front may believe the other one, and take the rest of the body for a request.
            raise ApiError(
                400, "Content-Length and Transfer-Encoding exclude each other; send one of them", "invalid_value",
                headers=_CLOSE,
            )  # fmt: skip
        if settings.local and not settings.api_keys and _host(headers.get(b"host", b"")) not in LOOPBACK:
            # A page elsewhere whose name resolves to this machine must not reach a server without keys.
            raise ApiError(421, "the header Host does not name this server; use 127.0.0.1 or localhost", "wrong_host")
        if path.startswith(PROTECTED) and not path.startswith(UNPROTECTED) and scope["method"] != "OPTIONS":
            self._keys.check(headers.get(b"authorization"))
        if scope["method"] != "POST":
            return
        if self._draining():
            raise draining()
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > limits.BODY_BYTES.value):
            raise too_large()


class _Answer:
    """A line of the log for one request: who asked for what, and what was sent; no headers, no query and no body."""

    def __init__(self, scope: Scope, request_id: str) -> None:
        self._scope, self._id, self._start = scope, request_id, time.monotonic()
        self._status, self._bytes, self._whole = 0, 0, False

    def note(self, message: Message) -> None:
        """Takes note of a part of the response."""
        self._status = message.get("status", self._status)
        self._bytes += len(message.get("body", b""))
        self._whole = message["type"] == "http.response.body" and not message.get("more_body", False)

    def log(self) -> None:
        """Writes the line."""
        path = self._scope["path"]
        level = logging.DEBUG if path in POLLED else logging.INFO
        # A client that knows the name of a file may read it.
        shown = f"{UNPROTECTED[0]}..." if path.startswith(UNPROTECTED) else path[:200]
        log.log(
            level, "%s %s %s %s %s, %d bytes in %.3f s%s", self._id, (self._scope.get("client") or "-")[0],
            self._scope["method"], quote(shown), self._status or "no response", self._bytes,
            time.monotonic() - self._start, "" if self._whole else ", cut off",
        )  # fmt: skip


class _BoundedBody:
    """`receive` of a request whose body is bounded in size and time."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size = 0
        self._arrived = False
        self._deadline = asyncio.get_running_loop().time() + limits.RECEIVE_SECONDS.value

    async def __call__(self) -> Message:
        if self._arrived:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                part = await self._receive()
        except TimeoutError:
            seconds = limits.RECEIVE_SECONDS.value
            message = f"the request did not arrive within {seconds} seconds"
            raise ApiError(408, message, "timeout", headers=_CLOSE) from None
        self._size += len(part.get("body", b""))
        if self._size > limits.BODY_BYTES.value:
            raise too_large()
        self._arrived = not part.get("more_body", False)
        return part


_CLOSE = {"Connection": "close"}


def too_large() -> ApiError:
    """The error of a body that exceeds the limit; the connection is closed, since the rest is not read."""
    limit = limits.BODY_BYTES
    return ApiError(413, f"the request has more than {limit.value:,} bytes", "request_too_large", headers=_CLOSE)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _host(header: bytes) -> str:
    """The name in a header Host, without the port."""
    text = header.decode("latin-1").lower()
    match = re.fullmatch(r"\[([0-9a-f:.]+)\](?::\d*)?|([^:]*)(?::\d*)?", text)
    return "" if match is None else match[1] or match[2] or ""
