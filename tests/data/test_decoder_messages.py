"""Damage that a decoder goes on behind is tied to its image, and nothing else that is written to stderr is lost."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import zlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from damaged import DEFLATE, JPEG, LZW, PROGRESSIVE, damaged_jpeg, encoded, flipped, said_of

from autodial.data.decoder_messages import watch_decoders, watch_worker
from autodial.data.transforms import DataError, decode, read_bytes, read_image

if not hasattr(os, "pread"):
    pytest.skip("Windows has no os.pread", allow_module_level=True)

Capture = pytest.CaptureFixture[str]


def written(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_libjpegs_words_are_the_images_damage(tmp_path: Path, capfd: Capture) -> None:
    path = written(tmp_path, "a.jpg", damaged_jpeg())
    expected, words = cv2.imread(str(path)), said_of(path, capfd)
    with watch_decoders():
        image = read_image(path, color=True)
        assert read_bytes(np.frombuffer(path.read_bytes(), np.uint8), None).damage == words
        assert read_image(written(tmp_path, "b.jpg", encoded(".jpg")), color=True).damage == ""
    assert image.damage == words
    assert np.array_equal(image.pixels, expected)
    assert capfd.readouterr().err == ""
    assert read_image(path, color=True).damage == ""  # nobody watches
    assert capfd.readouterr().err.strip() == words


@pytest.mark.parametrize("parameters", [LZW, DEFLATE])
def test_libtiffs_words_are_the_images_damage(parameters: list[int], tmp_path: Path, capfd: Capture) -> None:
    whole = encoded(".tif", parameters)
    pixels = read_image(written(tmp_path, "whole.tif", whole), color=True).pixels
    seen = 0
    with watch_decoders():
        assert read_image(tmp_path / "whole.tif", color=True).damage == ""
        for place in range(200, len(whole) - 300, len(whole) // 40):
            try:
                image = read_image(written(tmp_path, "a.tif", flipped(whole, place, 3)), color=True)
            except DataError:
                continue
            if image.damage:
                seen += 1
                assert "Decode" in image.damage or "table" in image.damage
                assert "[" not in image.damage and "grfmt" not in image.damage  # OpenCV's time and place
                assert parameters == DEFLATE or not np.array_equal(image.pixels, pixels)
    assert seen >= 3
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("threads", [1, 2, 9])
def test_words_find_their_image_among_many_threads(threads: int, tmp_path: Path, capfd: Capture) -> None:
    expected = {}
    for i in range(60):
        damaged = i % 3 == 0
        path = written(tmp_path, f"{i}.jpg", damaged_jpeg(i) if damaged else encoded(".jpg", seed=i))
        expected[path] = said_of(path, capfd) if damaged else ""
    stop = threading.Event()
    lines = []

    def write_lines() -> None:
        while not stop.wait(0.0005):
            lines.append(f"line {len(lines)} of another library")
            os.write(2, f"{lines[-1]}\n".encode())

    with watch_decoders(), ThreadPoolExecutor(threads + 1) as pool:
        pool.submit(write_lines)
        try:
            found = list(pool.map(lambda path: read_image(path, True).damage, [*expected] * 3))
        finally:
            stop.set()
    assert found == [*expected.values()] * 3
    assert capfd.readouterr().err.splitlines() == lines


def test_lines_about_refused_images_and_odd_metadata_go_nowhere(tmp_path: Path, capfd: Capture) -> None:
    png = encoded(".png")

    def with_chunk(kind: bytes, body: bytes, wrong: int = 0) -> bytes:
        checksum = zlib.crc32(kind + body) ^ wrong
        return png[:33] + len(body).to_bytes(4, "big") + kind + body + checksum.to_bytes(4, "big") + png[33:]

    odd = written(tmp_path, "odd.png", with_chunk(b"iCCP", b"ICC profile\0\0" + zlib.compress(bytes(200))))
    changed = written(tmp_path, "changed.png", with_chunk(b"tEXt", b"a\0b", wrong=1))
    broken = written(tmp_path, "broken.png", flipped(png, len(png) // 2))
    for path in (odd, changed, broken):
        cv2.imread(str(path))
        assert "libpng" in capfd.readouterr().err
    with watch_decoders():
        assert read_image(odd, color=True).damage == ""
        assert read_image(changed, color=True).damage == "libpng warning: tEXt: CRC error"
        with pytest.raises(DataError, match=r"broken.png .*damaged"):
            read_image(broken, color=True)
    assert capfd.readouterr().err == ""


def test_a_warning_names_the_file_once(tmp_path: Path, capfd: Capture, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, "a.jpg", damaged_jpeg())
    words = said_of(path, capfd)
    with watch_decoders(), caplog.at_level(logging.WARNING):
        for _ in range(3):
            decode(path, color=True)
    assert caplog.messages == [f"{path} is damaged: {words}"]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.parametrize("watched", [False, True])
def test_workers_see_damage_however_they_are_started(
    method: str, watched: bool, tmp_path: Path, capfd: Capture
) -> None:
    path = written(tmp_path, "a.jpg", damaged_jpeg())
    words = said_of(path, capfd)
    context = multiprocessing.get_context(method)

    def in_workers() -> set[str]:
        with ProcessPoolExecutor(2, mp_context=context, initializer=watch_worker) as pool:
            return {image.damage for image in pool.map(read_image, [path] * 8, [True] * 8)}

    if watched:
        with watch_decoders():
            assert read_image(path, color=True).damage == words
            assert in_workers() == {words}
    else:
        assert in_workers() == {words}
    assert capfd.readouterr().err == ""


def program(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
        ("import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)", -signal.SIGSEGV),
        ("os._exit(3)", 3),
        ("raise ValueError('a traceback')", 1),
    ],
)
def test_last_words_are_not_lost(end: str, status: int, tmp_path: Path, capfd: Capture) -> None:
    path = written(tmp_path, "a.jpg", damaged_jpeg())
    said = said_of(path, capfd)
    text = f"""
        import os, sys
        from autodial.data.decoder_messages import watch_decoders
        from autodial.data.transforms import read_image
        with watch_decoders():
            print(read_image({str(path)!r}, True).damage, flush=True)
            os.write(2, b"last words\\n")
            {end}
    """
    done = subprocess.run(program(text), capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert done.stdout.strip() == said
    assert "last words" in done.stderr and "JPEG" not in done.stderr
    assert ("Segmentation fault" in done.stderr) == (status == -signal.SIGSEGV)
    assert ("ValueError: a traceback" in done.stderr) == (status == 1)


def test_a_closed_standard_error_takes_no_lines_into_other_files(tmp_path: Path, capfd: Capture) -> None:
    path = written(tmp_path, "a.jpg", damaged_jpeg())
    said = said_of(path, capfd)
    text = f"""
        import os, sys
        os.close(2)
        from autodial.data.decoder_messages import watch_decoders
        from autodial.data.transforms import read_image
        with watch_decoders():
            with open({str(tmp_path / "table")!r}, "w") as file:
                print(file.fileno(), read_image({str(path)!r}, True).damage)
        print("end")
    """
    done = subprocess.run(program(text), capture_output=True, text=True, timeout=60)
    number, words = done.stdout.splitlines()[0].split(" ", 1)
    assert done.returncode == 0 and int(number) > 2 and words == said
    assert (tmp_path / "table").read_bytes() == b""


def test_python_writes_to_the_real_standard_error_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jpg", damaged_jpeg())
    text = f"""
        import os, sys
        from autodial.data.decoder_messages import watch_decoders
        from autodial.data.transforms import read_image
        given = sys.stderr
        with watch_decoders():
            read_image({str(path)!r}, True)
            print("now", file=sys.stderr)
            os.write(2, b"within a second\\n")
            input()
        assert sys.stderr is given
    """
    with subprocess.Popen(program(text), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        assert process.stderr.readline() == b"now\n"
        assert process.stderr.readline() == b"within a second\n"
        process.communicate(b"\n")
    assert process.returncode == 0


@pytest.mark.parametrize("parameters", [JPEG, PROGRESSIVE, [*JPEG, cv2.IMWRITE_JPEG_RST_INTERVAL, 2]])
def test_a_jpeg_without_its_end_marker_is_read_and_one_without_pixels_is_not(
    parameters: list[int], tmp_path: Path
) -> None:
    whole = encoded(".jpg", parameters)
    for color in (True, False):
        flag = cv2.IMREAD_COLOR if color else cv2.IMREAD_GRAYSCALE
        expected = cv2.imdecode(np.frombuffer(whole, np.uint8), flag)
        for cut in (1, 2):
            path = written(tmp_path, "a.jpg", whole[:-cut])
            image = read_image(path, color=color)
            assert image.damage == "the end marker of the JPEG is missing"
            assert np.array_equal(image.pixels.squeeze(), expected)
            assert np.array_equal(image.pixels.squeeze(), cv2.imread(str(path), flag))
    scans = [place for place in range(len(whole)) if whole[place : place + 2] == b"\xff\xda"]
    restarts = [place for place in range(scans[-1], len(whole)) if whole[place : place + 1] == b"\xff"]
    tables = [place for place in range(scans[0], len(whole)) if whole[place : place + 2] == b"\xff\xc4"]
    whole_image = cv2.imdecode(np.frombuffer(whole, np.uint8), cv2.IMREAD_COLOR)
    refused = 0
    ends = {*range(len(whole) - 4, len(whole) - 40, -1), *scans, *restarts[:-1], *tables}
    for end in ends:
        try:
            image = read_image(written(tmp_path, "a.jpg", whole[:end]), color=True)
        except DataError as error:
            refused += "cut short" in str(error)
        else:
            assert np.array_equal(image.pixels, whole_image)  # only padding is missing
    assert refused >= len(ends) - 2
