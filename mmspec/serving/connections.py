"""Connections of uvicorn, bounded in number and in the time that they may wait for their client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mmspec import limits
from mmspec.serving.errors import ApiError

_FULL = ApiError(
    503, "the server has as many connections as it allows", "too_many_connections", headers={"Retry-After": "1"}
)
# Connections beyond the limit on which /health alone is answered, and the seconds that each may take to ask.
_SPARE, _SPARE_SECONDS = 16, 2.0


def _only_health(app: ASGIApp) -> ASGIApp:
    """An application that answers `/health` once, and all else as a server that has too many connections."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        own = scope["type"] == "http" and scope["path"] == "/health"
        await (app if own else _FULL.response())(scope, receive, last)

    return answer


class BoundedConnection(H11Protocol):
    """A connection that is closed when the server has too many, when the head of a request does not arrive within
    `limits.RECEIVE_SECONDS`, and when its client reads nothing for `limits.STALL_SECONDS`."""

    _waiting: asyncio.TimerHandle | None = None  # for the head of a request
    _stalled: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request of the connection is being answered, or the client has not read all of a response."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return answering or bool(self.transport.get_write_buffer_size())

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        most = limits.CONNECTIONS.value
        if most < len(self.connections) <= most + _SPARE:
            self.app = _only_health(self.app)
            self._waiting = self.loop.call_later(_SPARE_SECONDS, transport.abort)
            return
        if len(self.connections) > most:
            body = json.dumps(_FULL.body()).encode()
            head = (
                f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            )
            transport.write(head.encode() + b"Retry-After: 1\r\nConnection: close\r\n\r\n" + body)
            transport.close()
            return
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        else:
            self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP. A request with such a body is over, without an answer of its own."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # it has its answer, or a part of it
            self.transport.close()
            return
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # what the client does not read must not keep it open
            self.loop.call_later(limits.STALL_SECONDS.value, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(limits.STALL_SECONDS.value, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._waiting is None and not self.transport.is_closing():
            self._waiting = self.loop.call_later(limits.RECEIVE_SECONDS.value, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
