from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from autodial.deploy import Predictor
from autodial.errors import InputError, WorkError


def test_arrays(model: Any) -> None:
    images = list(np.random.default_rng(0).integers(0, 256, (5, 6, 9, 3), dtype=np.uint8))
    logits, probabilities = Predictor(model.path).predict(images)
    assert logits.dtype == probabilities.dtype == np.float32
    np.testing.assert_allclose(logits, model.logits(*images), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(probabilities, model.probabilities(*images), atol=1e-4)


def test_files_are_decoded_and_resized_as_opencv_does(model: Any, grey_model: Any, photos: Path) -> None:
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    assert {cv2.imread(str(path)).shape for path in files} == {(6, 9, 3), (11, 7, 3)}
    for reference in (model, grey_model):
        logits, probabilities = Predictor(reference.path).predict([str(files[0]), *files[1:]])
        np.testing.assert_allclose(logits, reference.logits(*files), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(probabilities, reference.probabilities(*files), atol=1e-4)


def test_any_number_of_images(model: Any) -> None:
    predictor = Predictor(model.path)
    images = list(np.random.default_rng(0).integers(0, 256, (65, 6, 9, 3), dtype=np.uint8))
    for count in (0, 1, 32, 33, 65):
        logits, probabilities = predictor.predict(images[:count])
        assert logits.shape == probabilities.shape == (count, 4)
        if count:
            np.testing.assert_allclose(logits, model.logits(*images[:count]), rtol=1e-4, atol=1e-4)


def test_grey_arrays_with_and_without_a_channel(grey_model: Any) -> None:
    predictor = Predictor(grey_model.path)
    image = np.random.default_rng(0).integers(0, 256, (12, 5), dtype=np.uint8)
    logits, _ = predictor.predict([image, image[:, :, np.newaxis]])
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_allclose(logits[:1], grey_model.logits(image), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((6, 9, 3), np.float32), "array of uint8, and this one is of float32"),
        (np.zeros((6, 9), np.uint8), r"\(height, width, 3\), not \(6, 9, 1\)"),
        (np.zeros((6, 9, 4), np.uint8), r"not \(6, 9, 4\)"),
        (np.zeros((1, 6, 9, 3), np.uint8), r"not \(1, 6, 9, 3\)"),
        (np.zeros((0, 9, 3), np.uint8), r"not \(0, 9, 3\)"),
        ("nowhere.png", "nowhere.png"),
    ],
)
def test_refuses_what_is_not_an_image(model: Any, image: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Predictor(model.path).predict([image])


@pytest.mark.parametrize("image", [None, 3, [[[0, 0, 0]]], b"photo.png"])
def test_refuses_what_is_neither_name_nor_array(model: Any, image: Any) -> None:
    with pytest.raises(TypeError, match=f"a file's name or an array .* this one is a {type(image).__name__}"):
        Predictor(model.path).predict([image])


@pytest.mark.parametrize("threads", [0, -1])
def test_refuses_a_run_without_threads(model: Any, threads: int) -> None:
    with pytest.raises(InputError, match=f"threads is {threads}: give 1 or more"):
        Predictor(model.path, threads=threads)


def test_a_run_that_fails_names_the_model(model: Any) -> None:
    with pytest.raises(WorkError, match=r"target_predictor.onnx: ONNX Runtime failed on a batch of 2 \(CPU.*smaller"):
        Predictor(model.path).run(np.zeros((2, 5, 5, 3), np.uint8))


def test_threads_may_share_a_predictor(model: Any) -> None:
    predictor = Predictor(model.path)
    images = list(np.random.default_rng(0).integers(0, 256, (40, 6, 9, 3), dtype=np.uint8))
    with ThreadPoolExecutor(4) as pool:
        logits = np.concatenate([result[0] for result in pool.map(lambda image: predictor.predict([image]), images)])
    np.testing.assert_allclose(logits, model.logits(*images), rtol=1e-4, atol=1e-4)


def test_one_file_s_name_is_no_sequence_of_images(model: Any) -> None:
    with pytest.raises(TypeError, match=r"predict takes a sequence of images: write predict\(\['x.png'\]\)"):
        Predictor(model.path).predict("x.png")


@pytest.mark.parametrize("shape", [(28, 28, 3), (28, 28, 1), (28, 28), (3, 28)])
def test_one_image_is_no_sequence_of_its_rows(model: Any, grey_model: Any, shape: tuple[int, ...]) -> None:
    for reference in (model, grey_model):
        with pytest.raises(TypeError, match=r"an array of \(.*\) is one of them: write predict\(\[image\]\)"):
            Predictor(reference.path).predict(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("image", [b"\xff\xd8", bytearray(b"x"), Path("a.png")])
def test_one_file_or_its_bytes_are_no_sequence_of_images(model: Any, image: Any) -> None:
    with pytest.raises(TypeError, match=r"predict takes a sequence of images: write predict\(\["):
        Predictor(model.path).predict(image)


def test_an_array_of_a_whole_batch(model: Any, grey_model: Any) -> None:
    for reference, channels in ((model, 3), (grey_model, 1)):
        images = np.random.default_rng(0).integers(0, 256, (5, 6, 9, channels), dtype=np.uint8)
        logits, _ = Predictor(reference.path).predict(images)
        np.testing.assert_allclose(logits, reference.logits(*images), rtol=1e-4, atol=1e-4)
