"""`autodial serve` in a process of its own, and how to ask it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any


class Service:
    """A service that was started, at `address`; what it logs is collected in `log`."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        command = [sys.executable, "-m", "autodial", "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self.log: list[str] = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.port = int(self.wait_for(r"listens on https?://\S+?:(\d+) ")[1])
        except BaseException:
            self.process.kill()
            raise
        self.address = f"http://127.0.0.1:{self.port}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.log.append(line.rstrip("\n"))
                self._said.notify_all()

    def wait_for(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """The first match in the log, which is waited for."""
        until = time.monotonic() + seconds
        with self._said:
            while True:
                found = re.search(pattern, "\n".join(self.log))
                if found is not None:
                    return found
                if self.process.poll() is not None or not self._said.wait(max(0.0, min(0.5, until - time.monotonic()))):
                    if self.process.poll() is None and time.monotonic() < until:
                        continue
                    raise AssertionError(f"{pattern!r} isn't in the log: {self.log}")

    def ask(
        self, path: str, body: bytes | None = None, method: str | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, body (parsed where it is JSON) and headers of the answer to one request."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(link):
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            link.request(method or ("GET" if body is None else "POST"), path, body, sent)
            answer = link.getresponse()
            content: Any = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
            if found.get("content-type") == "application/json":
                content = json.loads(content)
            return answer.status, content, found

    def send(self, data: bytes, seconds: float = 20) -> bytes:
        """Send bytes as they are, and give what comes back until the service hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as link:
            link.sendall(data)
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while part := link.recv(2**16):
                    got += part
            return got

    def end(self) -> int:
        """End the service by SIGTERM; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(60)
        finally:
            self.process.kill()
            self._reader.join(10)
        return status


@contextlib.contextmanager
def serving(*arguments: object, **environment: str) -> Iterator[Service]:
    """A service that lives as long as the block."""
    service = Service(*arguments, **environment)
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()
