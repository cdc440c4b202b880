"""What the service writes to standard error: lines for people, or a JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from autodial.wording import printable

_REQUEST_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_log = logging.getLogger("autodial.serve.requests")


def request_id(given: str | None) -> str:
    """The client's own id for a request, where it has one that can stand in a header and a log; else a new one."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def log_request(method: str, path: str, status: int, seconds: float, client: str, identity: str) -> None:
    """Write a line about a request that was answered."""
    _log.info(
        "%s %s %d %.1f ms",
        method,
        path,
        status,
        1000 * seconds,
        extra={
            "request": {
                "method": method,
                "path": path,
                "status": status,
                "milliseconds": round(1000 * seconds, 3),
                "client": client,
                "request_id": identity,
            }
        },
    )


class _Lines(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = printable(super().format(record), but="\n")
        request = getattr(record, "request", None)
        return text if request is None else f"{text} client={request['client']} request_id={request['request_id']}"


class _Json(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "request", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


@contextmanager
def shown(*, as_json: bool, requests: bool) -> Iterator[None]:
    """Send the service's and the server's log to standard error, until the block ends.

    Args:
        as_json: a JSON object a line.
        requests: a line for every request, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Lines())
    handler.addFilter(lambda record: not isinstance(record.msg, OSError))  # of uvicorn; the command's error says it
    loggers = [logging.getLogger(name) for name in ("autodial", "uvicorn.error")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    for logger, level in zip(loggers, (logging.INFO, logging.ERROR), strict=True):
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    _log.disabled = not requests
    try:
        yield
    finally:
        _log.disabled = False
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
