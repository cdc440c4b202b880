"""The server below the application: connections with limits, and an end that loses no request."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
import time
from asyncio import TimerHandle
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from socket import gaierror
from types import FrameType
from typing import Any

import cv2
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from autodial import __version__
from autodial.deploy.serve import logs
from autodial.deploy.serve.app import Service, State, build_app
from autodial.deploy.serve.limits import MIB, Limits, connections_within, open_files
from autodial.deploy.serve.listeners import take_no_more
from autodial.deploy.serve.metrics import Metrics
from autodial.deploy.serve.models import ModelOptions, Models
from autodial.deploy.serve.refusal import RETRY_AFTER
from autodial.deploy.serve.watch import Watch
from autodial.errors import InputError, WorkError
from autodial.system.cpus import available_cpus
from autodial.wording import counted

_log = logging.getLogger("autodial.serve")

_LONGEST_HEAD = 2**16
"""Bytes."""
_LINGER = 2.0
"""Seconds that a body is still taken after its request was refused: a client that is cut off never reads why."""
_GRACE = 1.0
"""Seconds at the end that a connection may take to send the request that it has begun, or is about to."""
_LAST_ACCEPT = 0.1
"""Seconds at the end for connections that the kernel has made."""
_KEEP_ALIVE = 75
"""Seconds that a connection may be idle between two requests; longer than load balancers keep theirs (60)."""


@dataclass(frozen=True)
class ServeOptions:
    """How a service listens, and how it ends."""

    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    """What clients have to send as a bearer token."""
    certificate: Path | None = None
    """For TLS, with its key."""
    certificate_key: Path | None = None
    drain: float = 5.0
    """Seconds between SIGTERM and the closing of the port."""
    watch: bool = False
    """Take over model files that are replaced."""
    workers: int | None = None
    """Threads that decode images; None for one per CPU."""
    json_log: bool = False
    log_requests: bool = True
    model: ModelOptions = field(default_factory=ModelOptions)
    limits: Limits = field(default_factory=Limits)


def serve(models: Mapping[str, Path], options: ServeOptions | None = None) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C.

    OpenCV counts an image's pixels from its header by a limit that it reads when it is first imported
    (OPENCV_IO_MAX_IMAGE_PIXELS in the environment): `limits.pixels` is that limit's place in the options, and whoever
    calls this from a process that has imported OpenCV already has to set it before.

    Args:
        models: their files by name, as `autodial.deploy.serve.models.named_models` gives them.
        options: see there.

    Raises:
        InputError: a model can't be served, or an option can't be used.
        WorkError: the port can't be opened, or a device can't be used.
    """
    options = options or ServeOptions()
    if options.limits.images > options.limits.queue:
        raise InputError(
            f"`max_images` is {options.limits.images}, and `queue` holds {options.limits.queue}: a request has to fit"
        )
    with logs.shown(as_json=options.json_log, requests=options.log_requests):
        _serve(models, options)


def _serve(models: Mapping[str, Path], options: ServeOptions) -> None:
    files = open_files()
    limits = replace(options.limits, connections=connections_within(options.limits.connections, files))
    cv2.setNumThreads(1)  # the decoding threads are the parallelism
    metrics, state = Metrics(), State()
    with ThreadPoolExecutor(options.workers or available_cpus(), thread_name_prefix="decode") as decoders:
        watch = Watch(models) if options.watch else None
        served = Models(models, options.model, limits, decoders, metrics)
        for name, path in models.items():
            _log.info("the model %s is %s", name, path)
        server = _Server(_config(options, limits), state, options.drain)
        service = Service(served, limits, metrics, state, lambda: len(server.server_state.connections))
        tasks: list[asyncio.Task[None]] = []

        async def start() -> None:
            served.start()
            if watch is not None:
                tasks.append(asyncio.create_task(watch.run(served)))

        def end() -> None:
            for task in tasks:
                task.cancel()
            served.close()

        server.config.app = build_app(service, options.key, metrics, start, end)
        _log.info(
            "at most %s at a time (%s), bodies of %g MiB, %s a request",
            counted(limits.connections, "connection"),
            "no limit on open files" if files is None else f"{files} open files",
            limits.body / MIB,
            counted(limits.images, "image"),
        )
        try:
            server.run()
        except SystemExit as stop:
            refused = stop.__context__
            if not isinstance(refused, OSError):
                raise WorkError("the service can't be started, for the reason in its log") from stop
            raise WorkError(
                f"{options.host}:{options.port} can't be listened on ({_reason(refused)}): choose another `host` or "
                "`port`"
            ) from stop


def _reason(refused: OSError) -> str:
    """Why a port can't be opened, without what asyncio puts around it."""
    if refused.errno is None or isinstance(refused, gaierror):
        return refused.strerror or str(refused)
    return os.strerror(refused.errno)


def _config(options: ServeOptions, limits: Limits) -> uvicorn.Config:
    for path in (options.certificate, options.certificate_key):
        if path is not None and not path.is_file():
            raise InputError(f"{path}: no such file")
    if options.certificate_key is not None and options.certificate is None:
        raise InputError("`certificate_key` needs `certificate`, the file with the certificate for that key")
    if options.certificate is not None:
        _check_certificate(options.certificate, options.certificate_key)

    def protocol(*arguments: Any, **more: Any) -> _Connection:
        return _Connection(limits, *arguments, **more)

    return uvicorn.Config(
        app=_nothing,
        host=options.host,
        port=options.port,
        http=protocol,  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.certificate_key,
    )


def _check_certificate(certificate: Path, key: Path | None) -> None:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=lambda: "")  # an encrypted key is an error, not a question
    except (ssl.SSLError, ValueError) as error:
        of_key = f"{key} its private key" if key else "its private key"
        raise InputError(
            f"{certificate} must hold a certificate in PEM, and {of_key} without a password: one of them is missing, "
            "is in another form, or doesn't belong to the other"
        ) from error


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Stands for the application, which needs the server, which needs a configuration."""


class _Server(uvicorn.Server):
    """uvicorn's server, which on SIGTERM goes on serving for a while, says so, and ends with status 0."""

    def __init__(self, config: uvicorn.Config, state: State, drain: float) -> None:
        super().__init__(config)
        self._state = state
        self._drain = drain
        self._until: float | None = None

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                _log.info(
                    "AutoDIAL %s listens on %s://%s:%d (process %d)",
                    *(__version__, "https" if self.config.is_ssl else "http", shown, port, os.getpid()),
                )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._until is not None or sig == signal.SIGINT:
            self.force_exit = self.should_exit
            self.should_exit = True
        elif not self.started:
            self.should_exit = True
        else:
            self._until = time.monotonic() + self._drain
        self._state.draining = True
        self._say_close()

    async def on_tick(self, counter: int) -> bool:
        if self._until is not None and time.monotonic() >= self._until:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: Any = None) -> None:
        open_connections = counted(len(self.server_state.connections), "open connection")
        _log.info("the port closes; %s to be seen to the end", open_connections)
        self._say_close()
        for server in self.servers:
            for listener in server.sockets:
                take_no_more(listener)
        await asyncio.sleep(_LAST_ACCEPT)  # the loop takes in what the kernel has accepted
        await super().shutdown(sockets)
        _log.info("ended")

    def _say_close(self) -> None:
        """Let every answer from now on end its connection."""
        close = (b"connection", b"close")
        if close not in self.config.encoded_headers:
            self.config.encoded_headers.append(close)
            self.server_state.default_headers = [*self.server_state.default_headers, close]


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, with limits on the number of them and on the time that a request takes to arrive."""

    def __init__(self, limits: Limits, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._limits = limits
        self._timer: TimerHandle | None = None
        self._arriving = False
        """Whether a request has begun that isn't complete."""
        self._head = 0
        """Bytes of a head that isn't complete."""
        self._in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self._refuse(503, "the service has as many connections as it may: try again later")
        else:
            self._arm(self._limits.head_seconds, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays: a client that only stops sending still hears the answer to a whole request."""
        waits = not (self._arriving or self._is_idle())
        if waits:
            self.cycle.keep_alive = False
        return waits

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > _LONGEST_HEAD:
                self._refuse(431, f"the request's head is longer than {_LONGEST_HEAD} bytes")
        if self._timer is None and self.timeout_keep_alive_task is None and self._is_idle():
            # ends of lines between two requests, which begin none
            self._arm(self._limits.head_seconds, self._too_slow)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arriving = self._in_head = True
        self._head = 0
        self._arm(self._limits.head_seconds, self._too_slow)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._arm(self._limits.body_seconds, self._too_slow)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._arriving = False
        self._disarm()
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is None:
            self._arm(self.timeout_keep_alive, self._hang_up)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._arriving:
            self._arm(_LINGER, self._hang_up)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request that can be understood")

    def shutdown(self) -> None:
        if self._is_idle():
            self._arm(_GRACE, self._hang_up)
        else:
            self.cycle.keep_alive = False

    def _is_idle(self) -> bool:
        return not self._arriving and (self.cycle is None or self.cycle.response_complete)

    def _arm(self, seconds: float, action: Callable[[], None]) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, action)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self._hang_up()
        else:
            self._refuse(408, "the request took too long to arrive")

    def _hang_up(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: int, text: str) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps({"error": text}).encode()
        retry = f"retry-after: {RETRY_AFTER}\r\n" if status == 503 else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
