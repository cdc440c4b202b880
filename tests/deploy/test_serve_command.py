"""What `autodial serve` refuses before it listens, and small parts that need no service."""

from __future__ import annotations

import errno
import os
import socket
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from autodial.deploy.serve import bodies
from autodial.deploy.serve.refusal import RefusalError

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model to serve"),
        (["nowhere.onnx"], "nowhere.onnx: no such file"),
        (["--name", "digits"], "--name digits: write N=PATH"),
        (["--name", "a/b={model}"], "give it another with --name"),
        (["--name", "stats={model}"], "can't name a model"),
        (["{model}", "--name", "target_predictor={model}"], "another model is named target_predictor"),
        (["--name", "a={model}", "--name", "a={model}"], "another model is named a"),
        (["{model}", "--key-file", "nowhere"], "--key-file nowhere can't be read: No such file or directory"),
        pytest.param(
            *(["{model}", "--key-file", "/"], "--key-file / can't be read: Is a directory"),
            marks=pytest.mark.skipif(sys.platform == "win32", reason="Windows says something else"),
        ),
        (["{model}", "--key-file", "{model}"], "onnx holds no text: write the key into it"),
        (["{model}", "--key-file", os.devnull], f"--key-file {os.devnull} is empty: write a key into it"),
        (["{model}", "--key-file", __file__], "the key has to be printable ASCII without spaces"),
        (["{model}", "--max-images", "600"], "--max-images is 600, and --queue holds 512"),
        (["{model}", "--certificate", "nowhere"], "nowhere: no such file"),
        (["{model}", "--certificate", "{model}"], "onnx must hold a certificate in PEM, and its private key without"),
        (["{model}", "--certificate-key", "{model}"], "--certificate-key needs --certificate"),
        (["{model}", "--log-format", "xml"], "choose text or json"),
        (["{model}", "--device", "tpu"], "device 'tpu' is not one of"),
    ],
)
def test_refused_in_one_sentence(autodial: Run, model: Any, arguments: list[str], message: str) -> None:
    status, _, err = autodial("serve", "--port", "0", *[word.format(model=model.path) for word in arguments])
    assert status == 2 and err.count("autodial: error: ") == 1 and message in err.splitlines()[-1]
    assert not err.rstrip().endswith(".")


def test_a_port_that_is_taken(autodial: Run, model: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, _, err = autodial("serve", model.path, "--port", str(taken.getsockname()[1]))
    *log, said = err.splitlines()
    reason = os.strerror(errno.EADDRINUSE)
    assert status == 1 and said.endswith(f"can't be listened on ({reason}): choose another --host or --port")
    assert log and all(" INFO " in line for line in log)


def test_without_the_extra(autodial: Run, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("autodial.deploy.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    status, _, err = autodial("serve", model.path)
    assert status == 1 and "serving needs uvicorn" in err and ".[serve]" in err


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0.2, deflate;q=0.8", "deflate"),
        ("gzip;q=0, *;q=0.5", "deflate"),
        ("br, zstd", None),
        ("*", "gzip"),
        ("gzip;q=0", None),
        ("identity, gzip;q=0.5", None),
        ("GZIP ; Q=1", "gzip"),
        ("gzip;q=2", None),
    ],
)
def test_the_encoding_that_a_client_likes_best(accepted: str, encoding: str | None) -> None:
    """RFC 9110, 12.5.3."""
    assert bodies.chosen_encoding(accepted) == encoding


def test_unpacking_stops_at_the_limit() -> None:
    assert bodies.unpack(zlib.compress(bytes(1000)), "deflate", 1000) == bytes(1000)
    for packed, limit, message in (
        (zlib.compress(bytes(1001)), 1000, "larger than"),
        (zlib.compress(bytes(9))[:-1], 1000, "cut short"),
        (zlib.compress(bytes(9)) + b"x", 1000, "bytes behind"),
        (zlib.compress(bytes(9)), 1000, None),
        (b"plain", 1000, "not deflate"),
    ):
        if message is not None:
            with pytest.raises(RefusalError, match=message):
                bodies.unpack(packed, "deflate", limit)


def test_what_a_request_takes_of_the_memory_is_given_back() -> None:
    memory = bodies.Memory(100)
    with memory.share() as share:
        share.grow_to(60)
        share.grow_to(50)
        with pytest.raises(RefusalError, match="later"), memory.share() as other:
            other.grow_to(41)
        assert memory.taken == 60
    assert memory.taken == 0


def test_the_openapi_document_is_valid(tmp_path: Path) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    from autodial.deploy.serve.limits import Limits
    from autodial.deploy.serve.openapi import document

    validator.validate(document(["m"], Limits()))
