"""The service as its clients see it: the judge of the protocol, and what it leaves open."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import check_serve
import cv2
import numpy as np
import pytest
from serving import Service, serving

from autodial.deploy import predict_folder

pytest.importorskip("starlette")

SLOW = ("zip/bomb",)
"""Checks for which the judge itself computes for long."""


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, most of the model's size as PNG, which the judge can read by itself."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(3)
    for i in range(60):
        cv2.imwrite(str(folder / f"{i:03}.png"), rng.integers(0, 256, (6, 9, 3), dtype=np.uint8))
    for i in range(6):
        cv2.imwrite(str(folder / f"photo-{i}.jpg"), rng.integers(0, 256, (20 + i, 31, 3), dtype=np.uint8))
    return folder


@pytest.fixture(scope="module")
def table(model: Any, labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return predict_folder(model.path, [labelled], tmp_path_factory.mktemp("table") / "labels.csv").table


@pytest.fixture(scope="module")
def service(model: Any) -> Any:
    with serving("--name", f"m={model.path}", "--quiet") as service:
        yield service


def judge(service: Service, labelled: Path, table: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, check_serve.__file__, service.address, "--model", "m", "--images", str(labelled)]
    command += ["--labels", str(table), "--requests", "256", "--clients", "16", "--over-limit", "8", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_every_check_holds(model: Any, labelled: Path, table: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("open-sesame\n")
    options = ("--key-file", tmp_path / "key", "--max-body", 4, "--max-bodies", 64, "--quiet")
    with serving("--name", f"m={model.path}", *options) as service:
        skipped = [word for name in SLOW for word in ("--skip", name)]
        done = judge(service, labelled, table, "--key", "open-sesame", *skipped)
        assert done.returncode == 0, done.stdout
        assert "key/without" in done.stdout and "Traceback" not in "\n".join(service.log)


@pytest.mark.slow
def test_every_check_holds_with_the_limits_that_users_get(service: Service, labelled: Path, table: Path) -> None:
    done = judge(service, labelled, table, "--over-limit", "512", "--requests", "1024", "--clients", "64")
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_as_the_documentation_has_it(service: Service, labelled: Path, table: Path) -> None:
    def curl(*arguments: str) -> Any:
        done = subprocess.run(["curl", "-sS", *arguments], capture_output=True, text=True, check=True, cwd=labelled)
        return check_serve.json.loads(done.stdout)

    labels = {Path(line[0]).name: line[2] for line in check_serve.csv.reader(table.read_text("utf-8").splitlines())}
    address = f"{service.address}/v2/models/m/infer"
    (result,) = curl("--data-binary", "@photo-0.jpg", address)["results"]
    assert (result["status"], result["label"]) == ("ok", labels["photo-0.jpg"]) and 0 < result["probability"] < 1
    answer = curl("-F", "image=@photo-0.jpg", "-F", "image=@001.png", f"{address}?top_k=3")
    assert [(one["name"], one["label"]) for one in answer["results"]] == [
        ("photo-0.jpg", labels["photo-0.jpg"]),
        ("001.png", labels["001.png"]),
    ]
    for one in answer["results"]:
        probabilities = [label["probability"] for label in one["top"]]
        assert len(probabilities) == 3 and probabilities == sorted(probabilities, reverse=True)
        assert one["top"][0]["name"] == one["label"]


def form(*files: bytes) -> tuple[bytes, str]:
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="%d.png"\r\n\r\n%s\r\n'
    body = b"".join(part % (i, data) for i, data in enumerate(files)) + b"--b--\r\n"
    return body, "multipart/form-data; boundary=b"


def test_a_bad_picture_among_good_ones_has_an_error_of_its_own(service: Service, labelled: Path) -> None:
    good = (labelled / "001.png").read_bytes()
    body, kind = form(good, b"no picture", good)
    status, answer, _ = service.ask("/v2/models/m/infer", body, content_type=kind)
    assert status == 200 and [one["status"] for one in answer["results"]] == ["ok", "error", "ok"]
    assert answer["results"][1]["label"] is None and "not an image" in answer["results"][1]["error"]
    body, kind = form(b"no picture")
    status, answer, _ = service.ask("/v2/models/m/infer", body, content_type=kind)
    assert status == 400 and answer["error"].startswith("0.png: ")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("top_k=0", "top_k"),
        ("top_k=5", "from 1 to 4"),
        ("top_k=x", "top_k"),
        ("drift=2", "true or false"),
        ("topk=3", '"topk" is no option of an upload; did you mean "top_k"?'),
        ("limit=3", '"limit" is no option of an upload (there are top_k, drift)'),
    ],
)
def test_wrong_options_are_refused(service: Service, labelled: Path, query: str, message: str) -> None:
    status, answer, _ = service.ask(f"/v2/models/m/infer?{query}", (labelled / "001.png").read_bytes())
    assert status == 400 and message in answer["error"]


def test_an_option_in_the_form_is_refused(service: Service, labelled: Path) -> None:
    body, kind = form((labelled / "001.png").read_bytes())
    option = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n2\r\n'
    status, answer, _ = service.ask("/v2/models/m/infer", option % b"top_k" + body, content_type=kind)
    assert status == 400
    assert answer["error"] == "top_k belongs into the address, as in infer?top_k=..., not into the form"
    status, _, _ = service.ask("/v2/models/m/infer", option % b"caption" + body, content_type=kind)
    assert status == 200


def test_an_empty_body_is_told_as_that(service: Service) -> None:
    status, answer, _ = service.ask("/v2/models/m/infer", b"")
    assert status == 400 and answer["error"].startswith("the body is empty: send an image file")
    body, kind = form(b"")
    status, answer, _ = service.ask("/v2/models/m/infer", body, content_type=kind)
    assert status == 400 and answer["error"].startswith("0.png: ") and "empty" in answer["error"]


def test_base64_in_json_is_answered_with_what_to_do(service: Service) -> None:
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": ["iVBORw0KGgo="]}
    status, answer, _ = service.ask("/v2/models/m/infer", check_serve.json.dumps({"inputs": [tensor]}).encode())
    assert status == 400 and "nor in base64: send one as the body" in answer["error"]


def test_a_damaged_picture_has_its_label_and_says_so(service: Service, labelled: Path) -> None:
    whole = (labelled / "photo-0.jpg").read_bytes()
    _, answer, _ = service.ask("/v2/models/m/infer", whole[:-2])
    (result,) = answer["results"]
    assert result["status"] == "damaged" and result["label"] and "end marker" in result["error"]


def test_a_request_id_comes_back(service: Service) -> None:
    assert service.ask("/v2", x_request_id="abc-1")[2]["x-request-id"] == "abc-1"
    assert service.ask("/v2", x_request_id="a b")[2]["x-request-id"] != "a b"


def test_several_models_under_their_names(model: Any, grey_model: Any, labelled: Path) -> None:
    with serving(model.path, grey_model.path) as service:
        _, index, _ = service.ask("/v2/repository/index", b"")
        assert {entry["name"] for entry in index} == {"target_predictor", "grey"}
        for reference, name in ((model, "target_predictor"), (grey_model, "grey")):
            _, answer, _ = service.ask(f"/v2/models/{name}/infer", (labelled / "photo-1.jpg").read_bytes())
            assert answer["results"][0]["label"] == reference.labels(labelled / "photo-1.jpg")[0]
        status, answer, _ = service.ask("/v2/models/gray/infer", b"")
        assert status == 404 and answer["error"] == 'unknown model: gray; did you mean "grey"?'
        service.wait_for(r"POST /v2/models/grey/infer 200 [\d.]+ ms client=127.0.0.1 request_id=\w+")


def test_the_log_in_json(model: Any) -> None:
    with serving(model.path, "--log-format", "json") as service:
        service.ask("/v2/no/such", x_request_id="here")
        service.wait_for("request_id")
        entries = [check_serve.json.loads(line) for line in service.log]
        assert entries[-1]["request_id"] == "here" and entries[-1]["status"] == 404 and entries[-1]["level"] == "info"


def test_pages_load_nothing_from_elsewhere(service: Service) -> None:
    for path in ("/", "/docs"):
        status, page, headers = service.ask(path)
        assert status == 200 and b"http://" not in page and b"https://" not in page
        assert "default-src 'none'" in headers["content-security-policy"]
