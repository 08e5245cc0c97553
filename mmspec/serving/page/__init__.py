"""The page to try the models with: static files, without a build and without anything from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_page(app: FastAPI) -> None:
    """Adds the page's files to the routes."""
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "X-Frame-Options": "DENY"}
    for path, (name, kind) in FILES.items():
        content = (Path(__file__).parent / name).read_bytes()

        async def show(content: bytes = content, kind: str = kind) -> Response:
            return Response(content, headers=headers, media_type=kind)

        app.add_api_route(path, show, include_in_schema=False, response_model=None)
