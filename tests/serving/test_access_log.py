"""The access log: a line per request, with nothing in it that is secret."""

from __future__ import annotations

import logging

import pytest
from served import new_models, served

from mmspec.serving.settings import ServerSettings

LOG = "mmspec.serving.guards"


def test_a_line_per_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mmspec")
    key = {"Authorization": "Bearer topsecretkey"}
    with served(new_models()[:1], ServerSettings(api_keys=("topsecretkey",))) as server:
        image = "/v1/images/generations"
        found = server.json(image, {"prompt": "a red circle", "response_format": "url", "seed": 0}, key)
        server.request(found["data"][0]["url"].removeprefix(server.address))
        server.request(image, {"prompt": "a hidden wish"}, key | {"x-request-id": "client-1"}, method="PUT")
        server.request(image, {"prompt": "a hidden wish"})
        server.request("/v1/models/a%0Ab%1b?key=topsecretkey", headers=key)
        server.request("/health")
    lines = [record.getMessage() for record in caplog.records if record.name == LOG]
    assert [" ".join(line.split(" ")[2:5]) for line in lines] == [
        f"POST {image} 200,",
        "GET /v1/files/... 200,",
        f"PUT {image} 405,",
        f"POST {image} 401,",
        "GET /v1/models/a%0Ab%1B 404,",
    ]
    assert lines[2].startswith("client-1 127.0.0.1 ") and " bytes in " in lines[2]
    everything = "\n".join(record.getMessage() for record in caplog.records)
    assert not any(word in everything for word in ("topsecretkey", "hidden", "circle"))
    assert not any(line.endswith("cut off") for line in lines)


def test_uvicorn_logs_through_the_same_handler() -> None:
    with served(new_models()[:1]) as server:
        server.request("/health")
        assert not logging.getLogger("uvicorn").handlers
