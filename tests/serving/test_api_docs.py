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
