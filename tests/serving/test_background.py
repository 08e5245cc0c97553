"""A server in a thread of this process."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from served import held_model

from mmspec.serving.app import Application
from mmspec.serving.background import in_background
from mmspec.serving.server import DrainingServer


def test_a_server_that_ends_lets_no_client_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(self: DrainingServer, sockets: Any) -> None:
        raise OSError("no loop")

    monkeypatch.setattr(DrainingServer, "serve", serve)
    model, _ = held_model()
    with pytest.raises(OSError, match="no loop"), in_background(Application([model])) as (address, _):
        urllib.request.urlopen(address + "/health", timeout=20)
