"""`autodial serve` under requests that are damaged, cut short or hostile, beside a client that is none of that."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from damage import damaged_bytes
from exported_model import CLASSES, SIZE, metadata, save_model
from image_nets import with_inputs
from random_weights import random_weights
from serving import Service, serving

from autodial.converters.net_export import export
from autodial.netparam.shipped import shipped_net
from autodial.proto import read_net

pytest.importorskip("starlette")
pytestmark = pytest.mark.attack

PATH = "/v2/models/m/infer"
PER_ROUND = 100
"""Requests."""
CLIENTS = 8
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def request(body: bytes, *headers: str) -> bytes:
    lines = [f"POST {PATH} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def material(rng: random.Random) -> list[bytes]:
    """Whole requests, right ones."""
    pixels = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    files = [cv2.imencode(suffix, pixels)[1].tobytes() for suffix in (".png", ".jpg", ".webp", ".tif", ".bmp", ".gif")]
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, *pixels.shape], "data": pixels.ravel().tolist()}
    block = b"".join(struct.pack("<I", len(file)) + file for file in files)
    described = {"name": "image", "datatype": "BYTES", "shape": [len(files)]}
    head = json.dumps({"inputs": [{**described, "parameters": {"binary_data_size": len(block)}}]}).encode()
    plain = json.dumps({"inputs": [tensor]}).encode()
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n%s\r\n'
    form = b"".join(part % file for file in files) + b"--b--\r\n"
    return [
        request(plain),
        request(zlib.compress(plain), "Content-Encoding: deflate"),
        request(head + block, f"Inference-Header-Content-Length: {len(head)}"),
        request(pixels.tobytes(), "Inference-Header-Content-Length: 0"),
        request(form, "Content-Type: multipart/form-data; boundary=b"),
        *map(request, files),
        b"GET /v2/models/m/stats HTTP/1.1\r\nHost: x\r\n\r\n",
    ]


def attack(service: Service, rng: random.Random) -> int | None:
    """Send one damaged request; the status of the answer, None without one."""
    whole = rng.choice(material(rng))
    head, gap, body = whole.partition(b"\r\n\r\n")
    place = rng.random()
    if place < 0.6:
        body = damaged_bytes(rng, body)
        head = re.sub(rb"(?m)^Content-Length: \d+", b"Content-Length: %d" % len(body), head)
        data = head + gap + body
    elif place < 0.9:
        data = damaged_bytes(rng, head) + gap + body
    else:
        data = whole[: rng.randrange(len(whole))]
    with socket.create_connection(("127.0.0.1", service.port), timeout=15) as link:
        got = b""
        with suppress(OSError):
            link.sendall(data)
            if rng.random() < 0.1:
                return None  # it hangs up
            link.shutdown(socket.SHUT_WR)
            while part := link.recv(2**16):
                got += part
    match = _STATUS.match(got)
    return None if match is None else int(match[1])


class Healthy(threading.Thread):
    """A client that asks rightly all the time, and notes how long that takes and what was wrong."""

    def __init__(self, service: Service, image: bytes) -> None:
        super().__init__(daemon=True)
        self.seconds: list[float] = []
        self.faults: list[str] = []
        self.over = threading.Event()
        self._service, self._image = service, image
        self._answer: bytes | None = None

    def run(self) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=60)
        while not self.over.is_set():
            started = time.perf_counter()
            try:
                link.request("POST", PATH, self._image)
                answer = link.getresponse()
                text = answer.read()
            except OSError as error:
                self.faults.append(repr(error))
                link.close()
                continue
            self.seconds.append(time.perf_counter() - started)
            self._answer = self._answer or text
            if (answer.status, text) != (200, self._answer):
                self.faults.append(f"{answer.status}: {text[:200]!r}")
            time.sleep(0.005)


def memory(service: Service) -> int:
    """Bytes that the service holds."""
    match = re.search(r"VmRSS:\s*(\d+) kB", Path(f"/proc/{service.process.pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_nothing_that_one_client_sends_reaches_another(tmp_path: Path, rounds: int, seed: int) -> None:
    weights = np.random.default_rng(1).normal(size=(SIZE[0] * SIZE[1] * 3, len(CLASSES)))
    model = save_model(tmp_path / "m.onnx", weights, metadata())
    image = cv2.imencode(".png", np.random.default_rng(2).integers(0, 256, (*SIZE, 3), dtype=np.uint8))[1].tobytes()
    statuses: Counter[int | None] = Counter()
    lock = threading.Lock()
    with serving(model, "--quiet", "--head-seconds", 2, "--body-seconds", 2) as service:
        healthy = Healthy(service, image)
        healthy.start()

        def be_hostile(number: int, count: int) -> None:
            rng = random.Random(f"{seed} {number}")
            for _ in range(count):
                status = attack(service, rng)
                with lock:
                    statuses[status] += 1

        def all_of(count: int) -> None:
            threads = [threading.Thread(target=be_hostile, args=(i, count // CLIENTS)) for i in range(CLIENTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        all_of(400)  # what is loaded and allocated once
        before = memory(service)
        healthy.seconds.clear()
        all_of(rounds * PER_ROUND)
        grown = memory(service) - before
        healthy.over.set()
        healthy.join(60)
        assert service.process.poll() is None
        log = "\n".join(service.log)
    taken = sorted(healthy.seconds)
    slow = taken[int(len(taken) * 0.99)]
    print(
        f"\n{sum(statuses.values())} requests: {dict(statuses)}; the healthy client's 99 %: {1000 * slow:.0f} ms of",
        end=" ",
    )
    print(f"{len(taken)} answers; memory grew by {grown / 2**20:.0f} MiB")
    assert not healthy.faults, healthy.faults[:3]
    assert not {status for status in statuses if status is not None and status >= 500 and status != 503}
    assert "Traceback" not in log
    assert grown < 100 * 2**20
    assert slow < 0.5


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_stays_flat(tmp_path: Path, rounds: int) -> None:
    """500 requests a round, of eight clients, to the digits net."""
    net = read_net(shipped_net("digits"))
    model = export(net, random_weights(with_inputs(net, 20, 20)), tmp_path / "digits.onnx").output
    rng = np.random.default_rng(2)
    images = [
        cv2.imencode(".jpg", rng.integers(0, 256, (*size, 3), dtype=np.uint8))[1].tobytes()
        for size in ((20, 20), (64, 48), (256, 256))
    ]
    each = max(1, 50 * rounds // CLIENTS)
    held = []
    with serving("--name", f"m={model}", "--quiet") as service:

        def ask() -> None:
            link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
            for number in range(each):
                link.request("POST", PATH, images[number % len(images)])
                answer = link.getresponse()
                answer.read()
                assert answer.status == 200

        started = time.perf_counter()
        for _ in range(10):
            with ThreadPoolExecutor(CLIENTS) as clients:
                for done in [clients.submit(ask) for _ in range(CLIENTS)]:
                    done.result()
            held.append(memory(service) / 2**20)
        seconds = time.perf_counter() - started
    shown = ", ".join(f"{size:.1f}" for size in held)
    print(f"\n{10 * CLIENTS * each} requests in {seconds:.0f} s; MiB after each tenth: {shown}")
    assert held[-1] - held[1] < 8
