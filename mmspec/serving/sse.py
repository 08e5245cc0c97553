"""Server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MEDIA_TYPE = "text/event-stream"
# Proxies must neither store nor collect events.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(value: Mapping[str, Any]) -> bytes:
    """An event with a JSON object; its name is the object's `type`, if it has one."""
    name = f"event: {value['type']}\n" if "type" in value else ""
    return f"{name}data: {json.dumps(value)}\n\n".encode()
