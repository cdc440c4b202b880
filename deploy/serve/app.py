"""The service's routes, as an ASGI application."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autodial.deploy.serve import bodies, describe, pages, uploads
from autodial.deploy.serve.batching import check_outcome
from autodial.deploy.serve.limits import Limits
from autodial.deploy.serve.logs import log_request, request_id
from autodial.deploy.serve.metrics import CONTENT_TYPE, Metrics
from autodial.deploy.serve.models import Models, ServedModel
from autodial.deploy.serve.openapi import document
from autodial.deploy.serve.protocol import HEADER_LENGTH, answer, parse_request
from autodial.deploy.serve.refusal import RETRY_AFTER, RefusalError, invalid
from autodial.errors import AutodialError

_log = logging.getLogger("autodial.serve")

_OPEN = ("/", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready")
"""Paths that need no key: probes have none, and the pages hold nothing of the models."""


class State:
    """What the server tells the application: whether it is about to end."""

    def __init__(self) -> None:
        self.draining = False


class Json(Response):
    """An answer in JSON, by the exact Content-Type that KServe's client looks for."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode()


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer `{"error": text}`."""
    return Json({"error": text}, status, dict(headers or {}))


class Service:
    """The handlers of all routes.

    Args:
        models: what is served.
        limits: on requests.
        metrics: what is counted.
        state: the server's.
        connections: gives the number of open connections.
    """

    def __init__(
        self, models: Models, limits: Limits, metrics: Metrics, state: State, connections: Callable[[], int]
    ) -> None:
        self.models = models
        self._limits = limits
        self._memory = bodies.Memory(limits.bodies)
        self._metrics = metrics
        self._state = state
        metrics.connections.set_function(connections)

    # --- what the service and its models are

    async def server(self, request: Request) -> Response:
        return Json(describe.server())

    async def live(self, request: Request) -> Response:
        return Json({"live": True})

    async def ready(self, request: Request) -> Response:
        if self._state.draining:
            return Json({"ready": False, "error": "the service is about to end"}, 503, {"Retry-After": RETRY_AFTER})
        return Json({"ready": True})

    async def model(self, request: Request) -> Response:
        model = self._model(request)
        return Json(describe.model(model.name, model.info))

    async def model_ready(self, request: Request) -> Response:
        model = self._model(request)
        return Json({"name": model.name, "ready": True})

    async def config(self, request: Request) -> Response:
        model = self._model(request)
        return Json(describe.config(model.name, model.info, self._limits.images))

    async def statistics(self, request: Request) -> Response:
        models = [self._model(request)] if "name" in request.path_params else list(self.models)
        return Json({"model_stats": [model.statistics.record(model.name) for model in models]})

    async def index(self, request: Request) -> Response:
        entries = [
            {"name": model.name, "version": model.version, "state": "READY", "reason": ""} for model in self.models
        ]
        return Json(entries)

    async def load(self, request: Request) -> Response:
        raise RefusalError(501, "the models are those that the service was started with")

    async def metrics(self, request: Request) -> Response:
        for model in self.models:
            model.note_drift()
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        return Json(document([model.name for model in self.models], self._limits))

    # --- what they are for

    async def infer(self, request: Request) -> Response:
        model = self._model(request)
        started = time.perf_counter()
        try:
            with self._memory.share() as share:
                return await self._infer(request, model, share, started)
        except Exception:
            model.statistics.failed(time.perf_counter() - started)
            raise

    async def _infer(self, request: Request, model: ServedModel, share: bodies.Share, started: float) -> Response:
        headers = request.headers
        body = await bodies.read(headers, request.receive, self._limits.body, share)
        length = headers.get(HEADER_LENGTH)
        if not body and length is None:
            raise invalid("the body is empty: send an image file, or a request by the Open Inference Protocol")
        form = length is None and uploads.is_form(headers.get("content-type", ""))
        if form or (length is None and uploads.is_picture(body)):
            return await self._label(request, model, body, form, started)
        wanted = parse_request(body, length, model.info, self._limits.images)
        outcome = await model.run(wanted.images)
        check_outcome(outcome)
        ran = time.perf_counter()
        data, described = answer(
            wanted, model.name, model.version, model.info.classes, outcome.logits, outcome.probabilities
        )
        data, encoding = await bodies.pack(data, headers.get("accept-encoding", ""))
        if encoding is not None:
            described["content-encoding"] = encoding
        ended = time.perf_counter()
        model.statistics.succeeded(len(outcome.errors), outcome.timing, ended - ran, ended - started)
        return Response(data, headers=described)

    async def _label(self, request: Request, model: ServedModel, body: bytes, form: bool, started: float) -> Response:
        options = uploads.parse_options(request.query_params, len(model.info.classes))
        if options.drift:
            uploads.check_drift(model)
        if form:
            files = uploads.files_of_form(body, request.headers["content-type"], self._limits.images)
        else:
            files = [uploads.Upload(None, body)]
        outcome = await model.run([file.data for file in files], measure=options.drift)
        ran = time.perf_counter()
        response = Json(uploads.describe(model, files, outcome, options))
        ended = time.perf_counter()
        model.statistics.succeeded(len(files), outcome.timing, ended - ran, ended - started)
        return response

    def _model(self, request: Request) -> ServedModel:
        return self.models.get(request.path_params["name"], request.path_params.get("version"))


def routes(service: Service) -> list[Route]:
    """All routes; they are tried in this order, so that the one that is asked all the time comes first."""
    models = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    found = [Route(f"{model}/infer", service.infer, methods=["POST"]) for model in models]
    found += [
        Route("/", pages.index, name="page"),
        Route("/docs", pages.docs),
        Route("/openapi.json", service.openapi),
        Route("/metrics", service.metrics),
        Route("/v2", service.server),
        Route("/v2/health/live", service.live),
        Route("/v2/health/ready", service.ready),
        Route("/v2/models/stats", service.statistics),
        Route("/v2/repository/index", service.index, methods=["POST"]),
        Route("/v2/repository/models/{name}/load", service.load, methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", service.load, methods=["POST"]),
    ]
    for model in models:
        found += [
            Route(model, service.model),
            Route(f"{model}/ready", service.model_ready),
            Route(f"{model}/config", service.config),
            Route(f"{model}/stats", service.statistics),
        ]
    return found


def build_app(
    service: Service, key: str | None, metrics: Metrics, start: Callable[[], Awaitable[None]], end: Callable[[], None]
) -> ASGIApp:
    """The application.

    Args:
        service: its handlers.
        key: what clients have to send as `Authorization: Bearer KEY`; None lets everyone in.
        metrics: counts the requests.
        start: is awaited in the event loop before the first request.
        end: is called after the last.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await start()
        try:
            yield
        finally:
            end()

    app = Starlette(
        routes=routes(service),
        lifespan=lifespan,
        exception_handlers={
            RefusalError: _refused,
            HTTPException: _no_route,
            AutodialError: _failed,
            Exception: _broken,
        },
    )
    app.router.redirect_slashes = False
    return Front(app, key, metrics)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return refusal(error.status, error.text, error.headers)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: "Not Found: /docs says what there is", 405: "Method Not Allowed"}.get(error.status_code, error.detail)
    return refusal(error.status_code, text, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    _log.error("%s", error)
    return refusal(500, "the model failed on these images: the service's log says more")


async def _broken(request: Request, error: Exception) -> Response:
    return refusal(500, "the service failed: its log says more")


class Front:
    """What every request passes: its id, the key, the log and the counts.

    Args:
        app: what answers it.
        key: as for `build_app`.
        metrics: counts it.
    """

    def __init__(self, app: ASGIApp, key: str | None, metrics: Metrics) -> None:
        self._app = app
        self._key = None if key is None else f"Bearer {key}".encode()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        given: dict[bytes, bytes] = dict(scope["headers"])
        identity = request_id(given.get(b"x-request-id", b"").decode("latin-1") or None)
        status = 499  # nginx's number for a client that went away

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", identity.encode())]
            await send(message)

        try:
            if self._key is not None and not self._allowed(scope["path"], given):
                text = "this service asks for its key: send the header Authorization: Bearer KEY"
                await refusal(401, text, {"WWW-Authenticate": "Bearer"})(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except bodies.DisconnectedError:
            pass
        except Exception:  # the answer is sent; what went wrong is for the log
            _log.exception("the request %s failed", identity)
        seconds = time.perf_counter() - started
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        client = scope["client"][0] if scope.get("client") else "-"
        log_request(scope["method"], scope["path"][:200], status, seconds, client, identity)

    def _allowed(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        assert self._key is not None
        return path in _OPEN or hmac.compare_digest(headers.get(b"authorization", b""), self._key)
