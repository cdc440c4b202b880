"""The service's beginning, its end, and model files that are replaced while it runs."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from adapted_model import adapted, write_images
from exported_model import CLASSES, metadata, save_apart, save_model
from serving import Service, serving

from autodial.deploy import Predictor

pytest.importorskip("starlette")


class Clients:
    """Clients that ask all the time, from the beginning of a `with` block to its end, and check every answer.

    Every other client keeps its connection for as long as the service does.

    Args:
        service: what they ask.
        name: of the model.
        labels: the labels that are right, by image.
        count: of the clients.
    """

    def __init__(self, service: Service, name: str, labels: Mapping[bytes, Collection[str]], count: int = 4) -> None:
        self.answers = 0
        self.faults: list[str] = []
        """Answers that were wrong, and requests without one, but for those that came too late for a connection."""
        self.seen: set[str] = set()
        """The labels that were given."""
        self._service, self._path, self._labels = service, f"/v2/models/{name}/infer", list(labels.items())
        self._over, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(i,), daemon=True) for i in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request has no answer"

    def _ask(self, number: int) -> None:
        link: http.client.HTTPConnection | None = None
        while not self._over.is_set():
            if link is None or number % 2 == 0:
                link = http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=30)
            image, right = self._labels[number // 2 % len(self._labels)]
            number += 2
            try:
                if link.sock is None:
                    link.connect()
            except ConnectionRefusedError:  # the port is closed: no request was sent
                return
            except OSError as error:
                self._note(f"no connection: {error!r}")
                return
            try:
                link.request("POST", self._path, image)
                answer = link.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._note(f"no answer: {error!r}")
                link = None
                continue
            label = json.loads(text)["results"][0]["label"] if answer.status == 200 else None
            with self._lock:
                self.answers += 1
                self.seen.add(str(label))
            if label not in right:
                self._note(f"{answer.status}: {text[:200]!r}")

    def _note(self, fault: str) -> None:
        with self._lock:
            self.faults.append(fault)


@pytest.fixture(scope="module")
def labels(model: Any) -> dict[bytes, list[str]]:
    """Eight images, and the label that the model gives each: several labels among them."""
    rng = np.random.default_rng(3)
    pixels = [np.where(rng.random((6, 9, 3)) < 0.1, 255, 0).astype(np.uint8) for _ in range(8)]
    images = [cv2.imencode(".png", image)[1].tobytes() for image in pixels]
    found = {image: [label] for image, label in zip(images, model.labels(*pixels), strict=True)}
    assert len({label for right in found.values() for label in right}) > 1
    return found


def test_sigterm_loses_no_request(model: Any, labels: dict[bytes, list[str]]) -> None:
    with serving(model.path, "--drain", 1, "--quiet") as service:
        with Clients(service, "target_predictor", labels) as clients:
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
        assert clients.answers > 20 and not clients.faults, clients.faults[:3]


@pytest.mark.slow
def test_twenty_ends_under_load_lose_no_request(model: Any, labels: dict[bytes, list[str]]) -> None:
    answers = 0
    for number in range(20):
        with serving(model.path, "--drain", 0.3 if number % 2 else 0, "--quiet") as service:
            with Clients(service, "target_predictor", labels, count=16) as clients:
                time.sleep(0.3 + 0.05 * number)
                service.process.send_signal(signal.SIGTERM)
                assert service.process.wait(60) == 0
            assert not clients.faults, (number, clients.faults[:3])
            assert clients.answers > 16 and "Traceback" not in "\n".join(service.log)
            answers += clients.answers
    print(f"\n{answers} requests in 20 ends, all answered with the right label")


@pytest.mark.slow
def test_a_killed_service_starts_again_at_once(model: Any, labels: dict[bytes, list[str]]) -> None:
    with serving(model.path, "--quiet") as killed:
        with Clients(killed, "target_predictor", labels, count=8) as clients:
            time.sleep(0.5)
            killed.process.kill()
            killed.process.wait(10)
        assert clients.answers > 8
        with serving(model.path, "--quiet", "--port", killed.port) as service:
            assert service.port == killed.port
            with Clients(service, "target_predictor", labels, count=8) as clients:
                time.sleep(0.5)
            assert clients.answers > 8 and not clients.faults, clients.faults[:3]


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


@pytest.fixture(scope="module")
def unlike(two: dict[str, Path]) -> tuple[bytes, dict[str, str]]:
    """An image to which the two models give other labels, and these labels."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        pixels = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
        body = cv2.imencode(".png", pixels)[1].tobytes()
        found = {name: Predictor(path, "cpu", 1).predict([body]).labels[0] for name, path in two.items()}
        if found["color"] != found["grey"]:
            return body, found
    raise AssertionError("there is no such image")


def test_a_replaced_model_is_taken_over(
    two: dict[str, Path], unlike: tuple[bytes, dict[str, str]], tmp_path: Path
) -> None:
    """Every answer is of one model or of the other, and soon of the new one."""
    body, labels = unlike
    served = tmp_path / "m.onnx"
    replace(two["color"], served)
    with serving(served, "--watch", "--quiet") as service:

        def label() -> str:
            return str(service.ask("/v2/models/m/infer", body)[1]["results"][0]["label"])

        with Clients(service, "m", {body: labels.values()}, count=2) as clients:
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
        text = service.ask("/metrics")[1].decode()
    assert not clients.faults, clients.faults[:3]
    assert clients.seen == set(labels.values())
    assert 'autodial_model_loads_total{model="m",outcome="ok"} 3.0' in text


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], bytes, list[str]]:
    """Two models of two files each, an image, and its labels; they have other names for the classes, too.

    The first graph with the second weights gives a third label.
    """
    folder = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(4)
    body = cv2.imencode(".png", rng.integers(0, 256, (6, 9, 3), dtype=np.uint8))[1].tobytes()
    made, labels = [], []
    for number, best in enumerate((0, 1)):
        weights = np.zeros((6 * 9 * 3, len(CLASSES)))
        weights[:, best] = 1
        classes = CLASSES if number == 0 else (*CLASSES[2:], *CLASSES[:2])
        (folder / str(number)).mkdir()
        whole = save_model(folder / f"{number}.whole", weights, metadata(classes=classes))
        made.append(save_apart(whole, folder / str(number) / "m.onnx"))
        labels.append(classes[best])
    return made, body, labels


def replace_pair(source: Path, target: Path) -> None:
    replace(Path(f"{source}.data"), Path(f"{target}.data"))
    replace(source, target)


@pytest.mark.parametrize("first", ["m.onnx", "m.onnx.data"])
def test_a_model_of_two_files_is_taken_over_whole(
    pairs: tuple[list[Path], bytes, list[str]], first: str, tmp_path: Path
) -> None:
    (old, new), body, (before, after) = pairs
    served = tmp_path / "m.onnx"
    replace_pair(old, served)
    with serving(served, "--watch", "--quiet") as service, Clients(service, "m", {body: [before, after]}) as clients:

        def label() -> str:
            return str(service.ask("/v2/models/m/infer", body)[1]["results"][0]["label"])

        assert label() == before
        replace(new.with_name(first), tmp_path / first)
        service.wait_for(r"m\.onnx\.data is cut short, or is not the file with the weights of m\.onnx: ")
        assert label() == before
        (other,) = {"m.onnx", "m.onnx.data"} - {first}
        replace(new.with_name(other), tmp_path / other)
        service.wait_for("the model m is now the new file")
        assert label() == after
    assert not clients.faults, clients.faults[:3]
    assert clients.seen == {before, after}


def test_a_model_of_two_files_that_says_nothing_of_them_is_not_taken_over(model: Any, tmp_path: Path) -> None:
    served = save_apart(model.path, tmp_path / "m.onnx", checksum=False)
    with serving(served, "--watch", "--quiet") as service:
        replace_pair(served, served)
        service.wait_for(r"served on as it was: .*m\.onnx has no checksum of m\.onnx\.data")


@pytest.mark.slow
def test_five_replacements_under_load(
    two: dict[str, Path], unlike: tuple[bytes, dict[str, str]], tmp_path: Path
) -> None:
    body, labels = unlike
    served = tmp_path / "m.onnx"
    replace(two["color"], served)
    answers = 0
    with serving(served, "--watch", "--quiet") as service:
        for number, name in enumerate(("grey", "color", "grey", "color", "grey"), 1):
            with Clients(service, "m", {body: labels.values()}, count=16) as clients:
                time.sleep(0.3)
                replace(two[name], served)
                service.wait_for("(?s)" + ".*the model m is now the new file" * number)
                time.sleep(0.3)
            assert not clients.faults, clients.faults[:3]
            answers += clients.answers
            with Clients(service, "m", {body: [labels[name]]}, count=16) as clients:  # of the new one alone
                time.sleep(0.3)
            assert clients.answers > 16 and not clients.faults, clients.faults[:3]
            answers += clients.answers
    print(f"\n{answers} requests in five replacements, all answered with a right label")


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
