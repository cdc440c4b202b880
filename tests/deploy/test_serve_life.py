"""The service's beginning, its end, and model files that are replaced while it runs."""

from __future__ import annotations

import http.client
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from adapted_model import adapted, write_images
from serving import Service, serving

from autodial.deploy import Predictor

pytest.importorskip("starlette")

Labels = dict[str, str]


def infer(port: int, body: bytes, name: str) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        link.request("POST", f"/v2/models/{name}/infer", body)
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


def load(service: Service, body: bytes, name: str, clients: int = 4) -> tuple[Callable[[], None], list[Any]]:
    """Ask all the time until the function that comes back is called, which waits for the last answers.

    The list gets every answer, or what went wrong after a connection was made.
    """
    stop, seen = threading.Event(), []

    def client() -> None:
        while not stop.is_set():
            try:
                seen.append(infer(service.port, body, name))
            except ConnectionRefusedError:  # the port is closed: no request was sent
                return
            except OSError as error:
                seen.append(repr(error))

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()

    def finish() -> None:
        stop.set()
        for thread in threads:
            thread.join(30)

    return finish, seen


def test_sigterm_loses_no_request(model: Any, photos: Path) -> None:
    body = (photos / "a.png").read_bytes()
    with serving(model.path, "--drain", 1, "--quiet") as service:
        finish, seen = load(service, body, "target_predictor")
        time.sleep(0.3)
        assert service.ask("/v2/health/ready")[0] == 200
        service.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        while service.ask("/v2/health/ready")[0] == 200:
            assert time.monotonic() - started < 0.5
        status, answer, headers = service.ask("/v2/health/ready")
        assert (status, answer["ready"], headers["connection"]) == (503, False, "close")
        assert service.ask("/v2/health/live")[0] == 200
        assert service.process.wait(30) == 0
        assert 0.9 < time.monotonic() - started < 10
        finish()
    assert len(seen) > 20 and len(set(seen)) == 1 and seen[0][0] == 200, set(seen)


def test_ctrl_c_ends_it_at_once(model: Any) -> None:
    with serving(model.path) as service:
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(4) == 0


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, model: Any, grey_model: Any) -> dict[str, Path]:
    return {"color": model.path, "grey": grey_model.path}


def replace(source: Path, target: Path) -> None:
    aside = target.with_suffix(".new")
    shutil.copy(source, aside)
    aside.replace(target)


def test_a_replaced_model_is_taken_over(two: dict[str, Path], tmp_path: Path) -> None:
    """The two models give other labels for the image: every answer is one of either, and soon the new one's."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        pixels = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
        body = cv2.imencode(".png", pixels)[1].tobytes()
        labels = {name: Predictor(path, "cpu", 1).predict([body]).labels[0] for name, path in two.items()}
        if labels["color"] != labels["grey"]:
            break
    served = tmp_path / "m.onnx"
    replace(two["color"], served)
    with serving(served, "--watch", "--quiet") as service:

        def label() -> str:
            return str(service.ask("/v2/models/m/infer", body)[1]["results"][0]["label"])

        finish, seen = load(service, body, "m", clients=2)
        assert label() == labels["color"]
        replace(two["grey"], served)
        service.wait_for("the model m is now the new file")
        assert label() == labels["grey"]

        for spoil in (
            lambda: served.write_bytes(b""),
            lambda: served.write_bytes(two["color"].read_bytes()[:-100]),
            lambda: served.write_bytes(b"no model"),
            served.unlink,
        ):
            before = len(service.log)
            spoil()
            service.wait_for("(?s)" + ".*\n" * before + ".*served on as it was")
            assert label() == labels["grey"]
        replace(two["color"], served)
        service.wait_for("(?s)now the new file.*now the new file")
        assert label() == labels["color"]
        finish()
        text = service.ask("/metrics")[1].decode()
    assert {answer[0] for answer in seen} == {200}, [answer for answer in seen if answer[0] != 200][:3]
    assert len(set(seen)) == 2  # of one model and of the other
    assert 'autodial_model_loads_total{model="m",outcome="ok"} 3.0' in text


def test_drift_of_uploads_and_in_the_metrics(model: Any, tmp_path: Path) -> None:
    path = adapted(model.path, tmp_path / "adapted")
    alike, dark = write_images(tmp_path / "a", 60, 1), write_images(tmp_path / "d", 60, 2, level=20, noise=10)
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="%s"\r\n\r\n%s\r\n'

    def form(files: list[Path]) -> bytes:
        return b"".join(part % (file.name.encode(), file.read_bytes()) for file in files) + b"--b--\r\n"

    with serving(path) as service:

        def ask(files: list[Path]) -> Any:
            kind = "multipart/form-data; boundary=b"
            status, answer, _ = service.ask("/v2/models/model/infer?drift=true", form(files), content_type=kind)
            assert status == 200
            return answer

        answer = ask(alike)
        assert answer["drift"]["verdict"] in ("alike", "too few images")
        assert sum(one["drift"]["unlike"] for one in answer["results"]) < 10
        answer = ask(dark)
        assert answer["drift"]["verdict"] == "shifted" and "brightness" in answer["drift"]["shifted"]
        assert all(one["drift"]["unlike"] for one in answer["results"])
        for _ in range(20):
            ask(dark[:1])
        text = service.ask("/metrics")[1].decode()
    (line,) = [line for line in text.splitlines() if line.startswith('autodial_drift_distance{figure="brightness"')]
    assert float(line.split()[-1]) > 0.8


def test_a_model_that_keeps_nothing_tells_no_drift(model: Any, photos: Path) -> None:
    with serving(model.path) as service:
        body = (photos / "a.png").read_bytes()
        status, answer, _ = service.ask("/v2/models/target_predictor/infer?drift=true", body)
        assert status == 400 and "no drift to tell" in answer["error"]
