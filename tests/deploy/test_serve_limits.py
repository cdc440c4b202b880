"""What the service refuses to wait for, to hold and to decode."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
from serving import Service, serving

pytest.importorskip("starlette")

PATH = "/v2/models/target_predictor/infer"
IMAGE = cv2.imencode(".png", np.zeros((6, 9, 3), np.uint8))[1].tobytes()


@pytest.fixture(scope="module")
def service(model: Any) -> Iterator[Service]:
    options = {
        "--head-seconds": 0.5,
        "--body-seconds": 1,
        "--max-images": 4,
        "--queue": 8,
        "--max-pixels": 0.05,
        "--max-body": 0.25,
        "--max-bodies": 0.5,
        "--max-connections": 20,
    }
    with serving(model.path, *[word for option in options.items() for word in option]) as service:
        yield service


def status_of(answer: bytes) -> int:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower() and isinstance(json.loads(body)["error"], str)
    return int(head.split()[1])


def test_a_head_and_a_body_that_take_too_long(service: Service) -> None:
    started = time.monotonic()
    assert status_of(service.send(b"GET /v2 HTTP/1.1\r\nHost: x\r\n")) == 408
    assert status_of(service.send(b"")) == 408  # a connection that says nothing
    assert time.monotonic() - started < 10
    assert status_of(service.send(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nx".encode())) == 408


def test_a_client_that_stops_sending_hears_its_answer(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as link:
        link.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(IMAGE)}\r\n\r\n".encode() + IMAGE)
        link.shutdown(socket.SHUT_WR)
        got = b""
        while part := link.recv(2**16):
            got += part
    assert got.startswith(b"HTTP/1.1 200 ") and b'"label"' in got


def test_a_drip_does_not_keep_a_connection(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as link:
        link.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        started = time.monotonic()
        try:
            while time.monotonic() - started < 15:
                link.sendall(b"x")
                time.sleep(0.1)
        except OSError:
            pass
        assert time.monotonic() - started < 10


def test_a_head_that_is_too_long(service: Service) -> None:
    assert status_of(service.send(b"GET /v2 HTTP/1.1\r\nX-Long: " + b"x" * 300_000)) == 431


def test_what_is_no_http_is_an_error_in_json(service: Service) -> None:
    for text in (
        b"what?\r\n\r\n",
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(),
        b"GET /v2 HTTP/1.1\nHost: x\n\n",
    ):
        assert status_of(service.send(text)) == 400


def test_more_connections_than_there_may_be(service: Service) -> None:
    links = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(25)]
    try:
        assert status_of(service.send(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")) == 503
    finally:
        for link in links:
            link.close()
    for _ in range(50):
        if service.ask("/v2")[0] == 200:
            return
        time.sleep(0.1)
    raise AssertionError("the service doesn't recover")


def test_images_pixels_and_bytes_beyond_the_limits(service: Service) -> None:
    def ask(*images: bytes, **headers: str) -> tuple[int, Any, Any]:
        block = b"".join(struct.pack("<I", len(image)) + image for image in images)
        tensor = {"name": "image", "datatype": "BYTES", "shape": [len(images)]}
        head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(block)}}]}).encode()
        return service.ask(PATH, head + block, inference_header_content_length=str(len(head)), **headers)

    assert ask(*[IMAGE] * 4)[0] == 200
    status, answer, _ = ask(*[IMAGE] * 5)
    assert (status, "5 images" in answer["error"]) == (413, True)
    for suffix in (".png", ".jpg", ".webp", ".bmp", ".tif", ".gif"):
        large = cv2.imencode(suffix, np.zeros((250, 250, 3), np.uint8))[1].tobytes()
        status, answer, _ = ask(IMAGE, large)
        assert status == 400 and answer["error"].startswith("image 1 of 2: "), suffix
        assert "more pixels than" in answer["error"], suffix
    assert service.ask(PATH, bytes(300_000))[0] == 413
    bomb = zlib.compress(bytes(10_000_000))
    assert service.ask(PATH, bomb, content_encoding="deflate")[0] == 413


def test_bodies_beyond_the_memory_for_all(service: Service) -> None:
    """Three requests that announce 0.25 MiB each, where 0.5 MiB are there for all."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\nx".encode()
    links = [socket.create_connection(("127.0.0.1", service.port), timeout=20) for _ in range(2)]
    try:
        for link in links:
            link.sendall(head)
        time.sleep(0.2)
        got = service.send(head)
        assert status_of(got) == 503 and b"retry-after" in got.lower()
    finally:
        for link in links:
            link.close()
    time.sleep(0.2)
    assert service.ask(PATH, IMAGE)[0] == 200


def test_a_full_queue_is_busy_and_recovers(model: Any) -> None:
    """One image fits into the queue; of requests at the same time some are refused, and no answer is wrong."""
    with serving(model.path, "--queue", 1, "--max-images", 1, "--workers", 1) as service:
        large = cv2.imencode(".png", np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8))[1]
        answers: list[tuple[int, Any, Any]] = []
        threads = [
            threading.Thread(target=lambda: answers.append(service.ask(PATH, large.tobytes()))) for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = [status for status, _, _ in answers]
        assert set(statuses) == {200, 503}
        assert all(headers["retry-after"] == "1" for status, _, headers in answers if status == 503)
        assert len({answer["results"][0]["label"] for status, answer, _ in answers if status == 200}) == 1
        assert service.ask(PATH, IMAGE)[0] == 200


def test_a_request_that_takes_too_long(model: Any) -> None:
    with serving(model.path, "--max-seconds", 0.01, "--workers", 1, "--max-pixels", 200) as service:
        large = cv2.imencode(".png", np.random.default_rng(0).integers(0, 256, (3000, 3000, 3), dtype=np.uint8))[1]
        status, answer, headers = service.ask(PATH, large.tobytes())
        assert status == 503 and "longer than 0.01 s" in answer["error"] and headers["retry-after"] == "1"
