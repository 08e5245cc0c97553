"""Errors in the shape of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from mmspec.errors import MMSpecError, did_you_mean, shorten

INVALID, SERVER = "invalid_request_error", "server_error"
DRAINING = "draining"
# Arguments of pipelines that the API calls by other names.
_RENAMED = {
    "text": "input", "height": "size", "width": "size", "audio": "ref_audio", "transcript": "ref_text",
    "the reference audio": "ref_audio", "reference audio": "ref_audio", "a voice": "ref_audio",
}  # fmt: skip
# What callers of Python and of the command line are told, and what clients are told instead.
_ADVICE = (
    (re.compile(r"\btranscript of the reference audio\b"), "transcript"),
    (re.compile(r"[:;] pass transcript=, or --voice-text on the command line"), ""),
    (re.compile(r"[:;] call pipe\.with_reference_audio, or pass --voice-file on the command line"), ""),
    (re.compile(r"\bpass (its codes as )?config=\{'voice': [A-Z.]+\}(, or --config voice=FILE on the command line)?"),
     "who runs the server can choose one"),
    (re.compile(r"\bleave out its transcript\b"), "leave out ref_text"),
)  # fmt: skip
_BEGINNING = re.compile(r"(the reference audio|reference audio|a voice|\w+)\b")
_ARGUMENTS = re.compile(r"; it takes ([\w, ]+)$")


class ApiError(Exception):
    """An error with its HTTP status.

    Args:
        status: The HTTP status.
        message: One line; inputs that it quotes are shortened.
        code: A word for programs, such as "model_not_found"; optional.
        param: The parameter of the request that is wrong; optional.
        headers: Headers of the response, such as Retry-After.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(shorten(message))
        self.status, self.code, self.param = status, code, param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object of the response."""
        kind = SERVER if self.status >= 500 else INVALID
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The HTTP response."""
        return json_response(self.body(), self.status, self.headers)


def draining() -> ApiError:
    """The error of a request that comes when the server is about to stop."""
    return ApiError(503, "the server is about to stop; try another one", DRAINING, headers={"Retry-After": "1"})


def cut_off() -> ApiError:
    """The error of a request that has not finished when the server stops."""
    message = "the server stops and has cut off this request; send it again, to another server"
    return ApiError(503, message, DRAINING, headers={"Retry-After": "1"})


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with a JSON value in ASCII, which also holds text that is no valid Unicode."""
    return Response(json.dumps(value), status, headers, "application/json")


def from_mmspec(error: MMSpecError, fields: Iterable[str]) -> ApiError:
    """The error of a request that mmspec refuses, with status 400.

    Args:
        error: The exception; its message names the argument first.
        fields: The parameters of the request.
    """
    message, known = str(error), list(fields)
    for advice, own in _ADVICE:
        message = advice.sub(own, message)
    first = _BEGINNING.match(message)
    name = first[1] if first else ""
    param = "prompt" if name == "text" and "prompt" in known else _RENAMED.get(name, name)
    if param not in known:
        return ApiError(400, message, "invalid_value")
    if param != "size":  # the value is that of the height, or of the width
        message = f"{param}{message.removeprefix(name)}"
    message = _ARGUMENTS.sub(lambda found: f"; it takes {_in_fields(found[1], known)}", message)
    return ApiError(400, message, "invalid_value", param)


def _in_fields(arguments: str, fields: Sequence[str]) -> str:
    """The parameters of requests that stand for a list of a pipeline's arguments."""
    names = (_RENAMED.get(name, name) for name in arguments.split(", "))
    return ", ".join(dict.fromkeys(name for name in names if name in fields))


def from_validation(errors: Iterable[Mapping[str, Any]], fields: Iterable[str]) -> ApiError:
    """The error of a request that does not fit its schema, with status 400.

    Args:
        errors: What `pydantic.ValidationError.errors` returns; the first is reported.
        fields: The parameters of the request.
    """
    first = next(iter(errors))
    name = ".".join(str(part) for part in first["loc"]) or "body"
    top = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "missing":
        return ApiError(400, f"{name} is missing", "missing_required_parameter", top)
    if first["type"] == "extra_forbidden":
        return unknown_parameter(name, fields)
    reason = str(first["msg"])
    reason = reason[:1].lower() + reason[1:]
    given = "" if isinstance(first["input"], (dict, list)) else f"={first['input']!r}"
    return ApiError(400, f"{name}{given} is not allowed: {reason}", "invalid_value", top)


def unknown_parameter(name: str, fields: Iterable[str]) -> ApiError:
    """The error of a request with a parameter that does not exist, with status 400.

    Args:
        name: The parameter.
        fields: The parameters of the request.
    """
    known = sorted(fields)
    message = f"{name!r} is not a parameter{did_you_mean(name, known)}; known: {', '.join(known)}"
    return ApiError(400, message, "unknown_parameter", name[:200])
