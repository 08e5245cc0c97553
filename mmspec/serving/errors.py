"""Errors in the shape of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response

from mmspec.errors import MMSpecError, did_you_mean, shorten

INVALID, SERVER = "invalid_request_error", "server_error"
DRAINING = "draining"
_PARAM = re.compile(r"(\w+)\b")
# Arguments of pipelines that the API calls by other names.
_RENAMED = {"text": "input", "height": "size", "width": "size"}


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
    message = str(error)
    first = _PARAM.match(message)
    name = first[1] if first else ""
    param = _RENAMED.get(name, name)
    if name == "text":
        message = f"{param}{message.removeprefix(name)}"
    return ApiError(400, message, "invalid_value", param if param in set(fields) else None)


def from_validation(errors: Iterable[Mapping[str, Any]], fields: Iterable[str]) -> ApiError:
    """The error of a request that does not fit its schema, with status 400.

    Args:
        errors: What `pydantic.ValidationError.errors` returns; the first is reported.
        fields: The parameters of the request.
    """
    first, known = next(iter(errors)), sorted(fields)
    name = ".".join(str(part) for part in first["loc"]) or "body"
    top = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "missing":
        return ApiError(400, f"{name} is missing", "missing_required_parameter", top)
    if first["type"] == "extra_forbidden":
        return unknown_parameter(name, known)
    if first["type"] == "string_too_long" and first["ctx"]["max_length"] == 0:
        return ApiError(400, f"{name}={first['input']!r} is not possible here; leave it out", "invalid_value", top)
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
