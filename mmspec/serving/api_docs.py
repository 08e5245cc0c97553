"""The description of the API: `/openapi.json`, and `/docs`, a page of the same without scripts."""

from __future__ import annotations

import base64
import hashlib
import inspect
import re
from html import escape
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from mmspec.serving.audio_encoder import MEDIA_TYPES
from mmspec.serving.errors import json_response
from mmspec.serving.schemas import ImageRequest, SpeechRequest

PATH, PAGE = "/openapi.json", "/docs"
_REFERENCE = "#/components/schemas/{model}"
_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.3rem .6rem;"
    "border-bottom:1px solid #8884}code{font-family:ui-monospace,monospace}h2{margin-top:2.5rem}"
)
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; frame-ancestors 'none'"


def body_of(schema: type[BaseModel]) -> dict[str, Any]:
    """The description of a request's body."""
    reference = {"$ref": _REFERENCE.format(model=schema.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def audio_response() -> dict[int | str, dict[str, Any]]:
    """The description of a response with audio."""
    file = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": "Audio", "content": dict.fromkeys(MEDIA_TYPES.values(), file)}}


def describe_api(app: FastAPI, keys: bool) -> None:
    """Adds the bodies of requests to an application's description, and the page.

    Args:
        app: The application, all of whose routes have been added.
        keys: Whether requests need an API key.
    """
    found = app.openapi()
    modes: Any = [(schema, "validation") for schema in (ImageRequest, SpeechRequest)]
    schemas = models_json_schema(modes, ref_template=_REFERENCE)[1]["$defs"]
    for schema in (ImageRequest, SpeechRequest):
        described = schemas[schema.__name__]
        described["description"] = (inspect.getdoc(schema) or "").partition("\n")[0]
        for name, text in _attributes(schema).items():
            described["properties"][name]["description"] = text
    components = found.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas)
    if keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    content = _page(found).encode()
    headers = {"Content-Security-Policy": _POLICY, "X-Frame-Options": "DENY"}

    async def show() -> Response:
        return Response(content, headers=headers, media_type="text/html")

    async def show_json() -> Response:
        return json_response(found)

    app.add_api_route(PAGE, show, include_in_schema=False, response_model=None)
    app.add_api_route(PATH, show_json, include_in_schema=False, response_model=None)


def _attributes(schema: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of a class say about its attributes."""
    found: dict[str, str] = {}
    for one in reversed(schema.__mro__):
        if issubclass(one, BaseModel):
            text = (inspect.getdoc(one) or "").partition("\nAttributes:\n")[2]
            found |= {name: " ".join(words.split()) for name, words in _ATTRIBUTE.findall(text)}
    return {name: text for name, text in found.items() if name in schema.model_fields}


def _page(api: dict[str, Any]) -> str:
    """The page of a description."""
    parts = [f"<h1>{escape(api['info']['title'])} {escape(api['info']['version'])}</h1>"]
    parts.append(f'<p>The same for programs: <a href="{PATH}">{PATH}</a></p>')
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation.get('description', operation['summary']))}</p>")
            rows = [(each["name"], each["schema"], each["required"], "") for each in operation.get("parameters", ())]
            for kind in operation.get("requestBody", {}).get("content", {}).values():
                schema = api["components"]["schemas"][kind["schema"]["$ref"].rpartition("/")[2]]
                required = schema.get("required", ())
                rows += [
                    (name, each, name in required, each.get("description", ""))
                    for name, each in schema["properties"].items()
                ]
            if rows:
                head = "<tr><th>Parameter<th>Values<th></tr>"
                parts.append(f"<table>{head}{''.join(_row(*row) for row in rows)}</table>")
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>API</title><style>{_STYLE}'
    return f'<!doctype html><html lang="en"><head>{head}</style></head><body>\n{body}\n</body></html>'


def _row(name: str, schema: dict[str, Any], required: bool, text: str) -> str:
    mark = " (required)" if required else ""
    return f"<tr><td><code>{escape(name)}</code>{mark}<td>{escape(_values(schema))}<td>{escape(text)}</tr>"


def _values(schema: dict[str, Any]) -> str:
    """The values of a parameter, in words."""
    if "anyOf" in schema:
        return " or ".join(_values(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "$ref" in schema:
        return "object"
    lowest, highest = (schema.get(name) for name in ("minimum", "maximum"))
    bounds = "".join(f", {word} {value}" for word, value in (("from", lowest), ("to", highest)) if value is not None)
    return f"{schema.get('type', 'any')}{bounds}"
