from __future__ import annotations

import io
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
from exported_model import save_apart

from autodial.deploy import Predictions, Predictor
from autodial.deploy.weights_file import weights_file
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


@pytest.mark.parametrize("image", [None, 3, [[[0, 0, 0]]]])
def test_refuses_what_is_neither_file_nor_array(model: Any, image: Any) -> None:
    with pytest.raises(TypeError, match=f"a file's name, its bytes, .* this one is a {type(image).__name__}"):
        Predictor(model.path).predict([image])


def test_refuses_a_file_that_is_open_for_text(model: Any) -> None:
    with pytest.raises(TypeError, match="open it with mode 'rb'"):
        Predictor(model.path).predict([io.StringIO("x")])


def formats(folder: Path) -> list[Path]:
    """A file per format, with and without transparency, EXIF orientation and 16 bits."""
    image_module = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(5).integers(0, 256, (40, 30, 4), dtype=np.uint8)
    files = []
    for suffix in (".bmp", ".jpg", ".png", ".webp", ".tif", ".gif", ".jp2", ".pgm", ".ppm", ".ras", ".avif", ".pam"):
        path = folder / f"plain{suffix}"
        image = pixels[:, :, 0] if suffix == ".pgm" else np.ascontiguousarray(pixels[:, :, :3])
        if cv2.haveImageWriter(str(path)) and cv2.imwrite(str(path), image):
            files.append(path)
    for suffix in (".png", ".webp", ".tif"):
        files.append(folder / f"alpha{suffix}")
        files[-1].write_bytes(cv2.imencode(suffix, pixels)[1])
    for suffix in (".png", ".tif"):
        files.append(folder / f"deep{suffix}")
        files[-1].write_bytes(cv2.imencode(suffix, pixels[:, :, :3].astype(np.uint16) * 257)[1])
    turned = image_module.Exif()
    turned[0x0112] = 6
    for suffix in (".jpg", ".png", ".webp"):
        files.append(folder / f"turned{suffix}")
        image_module.fromarray(pixels[:, :, :3]).save(files[-1], exif=turned)
    return files


def test_one_image_gives_the_same_bits_whichever_way_it_comes(model: Any, grey_model: Any, tmp_path: Path) -> None:
    files = formats(tmp_path)
    assert len(files) > 15
    for reference in (model, grey_model):
        predictor = Predictor(reference.path)
        logits, _ = predictor.predict(files)
        opened = [path.open("rb") for path in files]
        for images in (
            [path.read_bytes() for path in files],
            [bytearray(path.read_bytes()) for path in files],
            [memoryview(path.read_bytes()) for path in files],
            [io.BytesIO(path.read_bytes()) for path in files],
            opened,
            [str(path) if i % 2 else path.read_bytes() for i, path in enumerate(files)],
        ):
            np.testing.assert_array_equal(predictor.predict(images).logits, logits)
        for file in opened:
            file.close()
    read = [cv2.imread(str(path)) for path in files if not path.stem.startswith(("alpha", "deep"))]
    np.testing.assert_allclose(
        Predictor(model.path).predict([path for path in files if not path.stem.startswith(("alpha", "deep"))])[0],
        model.logits(*read),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("bad", [b"", b"no image", "nowhere.png", np.zeros((6, 9), np.uint8), io.BytesIO(b"\x89PNG")])
def test_one_bad_image_among_64_is_one_failed_result(model: Any, photos: Path, bad: Any) -> None:
    good = (photos / "a.png").read_bytes()
    images = [good] * 40 + [bad] + [good] * 23
    predictor = Predictor(model.path)
    with pytest.raises(ValueError):
        predictor.predict(images)
    got = predictor.predict(images, on_error="status")
    assert got.statuses == ["ok"] * 40 + ["error"] + ["ok"] * 23
    assert np.isnan(got.logits[40]).all() and np.isnan(got.probabilities[40]).all()
    expected = model.labels(photos / "a.png")[0]
    assert got.labels == [expected] * 40 + [None] + [expected] * 23
    assert [bool(error) for error in got.errors] == [False] * 40 + [True] + [False] * 23
    np.testing.assert_allclose(np.delete(got.logits, 40, 0), model.logits(*[photos / "a.png"] * 63), rtol=1e-4)


def test_a_damaged_image_has_labels_and_a_status_of_its_own(model: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = cv2.imencode(".jpg", pixels)[1].tobytes()
    got = Predictor(model.path).predict([whole, whole[:-2]], on_error="status")
    assert got.statuses == ["ok", "damaged"] and "end marker" in got.damage[1]
    np.testing.assert_array_equal(*got.logits)


def test_the_best_labels_in_order(model: Any, photos: Path) -> None:
    got = Predictor(model.path).predict([photos / "a.png", b""], on_error="status")
    order = np.argsort(-model.probabilities(photos / "a.png")[0])
    assert [label.name for label in got.top(3)[0]] == [model.classes[i] for i in order[:3]]
    np.testing.assert_allclose(
        [label.probability for label in got.top(3)[0]], model.probabilities(photos / "a.png")[0][order[:3]], atol=1e-5
    )
    assert got.top(3)[1] == []
    assert Predictor(model.path).predict([]).top(2) == []
    equal = np.array([[0.2, 0.3, 0.2, 0.3]], np.float32)
    best = [label.name for label in Predictions(equal, equal, model.classes, [None], [""]).top(4)[0]]
    assert best == [model.classes[i] for i in (1, 3, 0, 2)]
    assert Predictions(equal, equal, model.classes, [None], [""]).labels == best[:1]


def test_a_predictor_and_its_predictions_pickle(model: Any, photos: Path, tmp_path: Path) -> None:
    predictor = Predictor(model.path, "cpu", 1)
    there = pickle.loads(pickle.dumps(predictor))
    got = predictor.predict([photos / "a.png", b""], on_error="status")
    np.testing.assert_array_equal(there.predict([photos / "a.png"])[0][0], got.logits[0])
    assert (there.device, there.reason) == ("cpu", "asked for")
    back = pickle.loads(pickle.dumps(got))
    np.testing.assert_array_equal(back.probabilities, got.probabilities)
    assert (back.statuses, back.labels, back.classes) == (got.statuses, got.labels, got.classes)


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


def test_a_model_whose_weights_lie_in_a_second_file(model: Any, photos: Path, tmp_path: Path) -> None:
    path = save_apart(model.path, tmp_path / "large.onnx")
    files = sorted(photos.rglob("*.png"))
    np.testing.assert_array_equal(Predictor(path).predict(files).logits, Predictor(model.path).predict(files).logits)

    path = path.rename(tmp_path / "renamed.onnx")  # the second file keeps the name that the model knows
    assert Predictor(path).info.classes == model.classes
    second = tmp_path / "large.onnx.data"
    whole = second.read_bytes()
    for damaged in (whole[:-1], b""):
        second.write_bytes(damaged)
        with pytest.raises(
            InputError, match=r"large\.onnx\.data is cut short, or is not the file with the weights of renamed\.onnx: "
        ):
            Predictor(path)
    second.write_bytes(whole[::-1])  # other weights
    with pytest.raises(InputError, match="is not the file with the weights of"):
        Predictor(path)
    second.unlink()
    with pytest.raises(
        InputError,
        match=re.escape(f"renamed.onnx: its weights lie in a second file, which is not at {second}: copy it there"),
    ):
        Predictor(path)


def test_links_to_a_model_whose_weights_lie_in_a_second_file(model: Any, photos: Path, tmp_path: Path) -> None:
    """ONNX Runtime looks for the weights beside the link, and takes them if they lie in the folder of its target."""
    (real := tmp_path / "real").mkdir()
    (linked := tmp_path / "linked").mkdir()
    path = save_apart(model.path, real / "large.onnx")
    link, second = linked / "m.onnx", linked / "large.onnx.data"
    link.symlink_to(path)
    looked = (
        rf"m\.onnx: its weights lie in a second file, which is not at {re.escape(str(second))}: copy or link it there"
    )
    with pytest.raises(InputError, match=looked):
        Predictor(link)
    second.symlink_to(real / second.name)
    files = sorted(photos.rglob("*.png"))
    np.testing.assert_array_equal(Predictor(link).predict(files).logits, Predictor(model.path).predict(files).logits)


def test_a_link_in_the_place_of_a_second_file(model: Any, tmp_path: Path) -> None:
    """ONNX Runtime 1.31 refuses it, as it leads out of the model's folder; it is not said to be another model's."""
    (real := tmp_path / "real").mkdir()
    path = save_apart(model.path, tmp_path / "large.onnx")
    second = Path(f"{path}.data")
    second.symlink_to(second.rename(real / second.name))
    try:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        said = f"{second} is a link to {real.resolve() / second.name}, and ONNX Runtime reads a model's weights from"
        with pytest.raises(InputError, match=re.escape(said)):
            Predictor(path)
    else:
        assert Predictor(path).info.classes == model.classes


@pytest.mark.parametrize("start", [b"", b"\x08\x08:\x80\x80\x80\x08"], ids=["zeros", "cut short"])
@pytest.mark.parametrize("rest", [b"\0", b"\x08"])
def test_a_large_file_that_is_no_model_is_soon_told(start: bytes, rest: bytes, tmp_path: Path) -> None:
    """A download that was cut short may have the right size, with zeros for what has not come."""
    path = tmp_path / "model.onnx"
    path.write_bytes(start + rest * 2**24)
    began = time.process_time()
    assert weights_file(path) is None
    assert time.process_time() - began < 5  # field by field it takes a minute


def test_a_file_whose_lengths_reach_beyond_its_end_names_no_second_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    length = b"\xff" * 9 + b"\x01"
    path.write_bytes(b"\x3a" + length + b"\x2a" + length + b"\x6a" + length + b"\x0a" + length + bytes(80))
    assert weights_file(path) is None


@pytest.mark.parametrize("letters", [117, 118, 200])
def test_the_second_file_of_a_model_with_a_long_name(model: Any, letters: int, tmp_path: Path) -> None:
    path = save_apart(model.path, tmp_path / f"{'m' * letters}.onnx")
    second = Path(f"{path}.data")
    assert len(second.name) == letters + 10 and weights_file(path) == second
    second.unlink()
    with pytest.raises(InputError, match=re.escape(f"lie in a second file, which is not at {second}: copy it there")):
        Predictor(path)
