"""The description of the API: complete, without anything from elsewhere, and off where keys protect it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from served import Served, held_model, new_models, served

from mmspec.serving import api_docs
from mmspec.serving.page import FILES
from mmspec.serving.schemas import ImageRequest, SpeechRequest
from mmspec.serving.settings import ServerSettings


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(new_models()) as running:
        yield running


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from [value["$ref"]] if "$ref" in value else []
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_description_is_complete(server: Served) -> None:
    api = server.json("/openapi.json")
    schemas = api["components"]["schemas"]
    assert set(references(api)) >= {f"#/components/schemas/{name}" for name in ("ImageRequest", "SpeechRequest")}
    for reference in references(api):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for path, schema in (("/v1/images/generations", ImageRequest), ("/v1/audio/speech", SpeechRequest)):
        assert "requestBody" in api["paths"][path]["post"]
        properties = schemas[schema.__name__]["properties"]
        assert list(properties) == list(schema.model_fields)
        assert all(each["description"].strip() for each in properties.values())
    assert "audio/mpeg" in api["paths"]["/v1/audio/speech"]["post"]["responses"]["200"]["content"]


def test_the_page_is_complete_in_itself(server: Served) -> None:
    status, headers, content = server.request("/docs")
    text = content.decode()
    assert status == 200 and headers["content-type"].startswith("text/html")
    for name in (*ImageRequest.model_fields, *SpeechRequest.model_fields, "/v1/audio/voices"):
        assert name in text
    assert not re.search(r"https?:|<script|<link| src=| style=", text)
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("keys", "docs", "found"), [((), False, False), (("a-key-123",), None, False), (("a-key-123",), True, True)]
)
def test_the_description_is_off_with_keys_unless_asked(keys: tuple[str, ...], docs: bool | None, found: bool) -> None:
    with served([held_model()[0]], ServerSettings(api_keys=keys, docs=docs)) as running:
        for path in ("/docs", "/openapi.json"):
            status, _, content = running.request(path)
            assert status == (200 if found else 404)
        if found:
            assert json.loads(content)["security"] == [{"key": []}]


def test_every_address_that_is_read_has_a_head(server: Served) -> None:
    described = [path for path, methods in server.json("/openapi.json")["paths"].items() if "get" in methods]
    image = server.json("/v1/images/generations", {"prompt": "a red circle", "response_format": "url", "seed": 0})
    file = image["data"][0]["url"].removeprefix(server.address)
    filled = {"/v1/models/{name}": "/v1/models/spoken", "/v1/files/{name}": file}
    found = [filled.get(path, path) for path in described]
    found += [*FILES, api_docs.PAGE, api_docs.PATH, "/v1/models/none", "/no-such-page"]
    assert len(found) >= 12 and not any("{" in path for path in found)
    for path in found:
        status, headers, _ = server.request(path)
        head, of_head, body = server.request(path, method="HEAD")
        assert (head, body) == (status, b"") and "content-length" in of_head, path
        if path not in ("/metrics", "/health"):  # what they say changes
            assert of_head["content-length"] == headers["content-length"], path
    status, headers, _ = server.request("/v1/audio/speech", method="HEAD")
    assert status == 405 and headers["allow"] == "POST"
