"""The id of a request, in its response and in the log, by which a client's report is found."""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

HEADER = b"x-request-id"
_ALLOWED = re.compile(rb"[\w.:-]{1,128}", re.ASCII)
_CURRENT: ContextVar[str] = ContextVar("mmspec_request_id", default="-")


def new_id(given: bytes | None) -> bytes:
    """The id of the request that this task answers: the client's own if it is a word, else a new one."""
    found = given if given is not None and _ALLOWED.fullmatch(given) else f"req_{uuid.uuid4().hex}".encode()
    _CURRENT.set(found.decode())
    return found


def current_id() -> str:
    """The id of the request that this task answers; "-" outside of one."""
    return _CURRENT.get()
