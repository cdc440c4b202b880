"""The page to try the service, and the one that documents it: whole files that load nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' blob: data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


async def index(request: Request) -> Response:
    """The page at /."""
    return Response(_file("index.html"), headers=_HEADERS)


async def docs(request: Request) -> Response:
    """The page at /docs."""
    return Response(_file("docs.html"), headers=_HEADERS)


@cache
def _file(name: str) -> bytes:
    return (resources.files(__package__) / "html" / name).read_bytes()
