"""The demo's images, against Pillow's rendering of the same fonts and scikit-learn's arrays."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from autodial.data.image_list import ImageList
from autodial.demo import images
from autodial.demo.images import CLASSES, FONTS, RENDERINGS, SIZE, handwritten_digits, rendered_digits, write_images

pytest.importorskip("PIL")
matplotlib = pytest.importorskip("matplotlib")
datasets = pytest.importorskip("sklearn.datasets")


def cut_out(image: np.ndarray) -> np.ndarray:
    """The ink's bounding box as 16x16 zero-mean, unit-norm values."""
    rows, columns = np.nonzero(image > 64)
    box = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].astype(np.float64)
    values = cv2.resize(box, (16, 16), interpolation=cv2.INTER_AREA)
    values -= values.mean()
    return values.ravel() / np.linalg.norm(values)


def test_renderings_look_most_like_their_digit_in_their_font() -> None:
    from PIL import Image, ImageDraw, ImageFont

    rendered, labels, _ = rendered_digits(seed=5, renderings=[6] * 10)
    mean = np.stack([cut_out(image) for image in rendered]).reshape(len(FONTS), len(CLASSES), 6, -1).mean(axis=2)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for font, digits in zip(FONTS, mean, strict=True):
        references = []
        for digit in CLASSES:
            canvas = Image.new("L", (120, 120))
            ImageDraw.Draw(canvas).text((30, 10), digit, fill=255, font=ImageFont.truetype(folder / f"{font}.ttf", 60))
            references.append(cut_out(np.asarray(canvas)))
        assert np.argmax(digits @ np.stack(references).T, axis=1).tolist() == list(range(10)), font
    assert labels.reshape(len(FONTS), len(CLASSES), 6)[3, :, 2].tolist() == list(range(10))


def test_renderings_are_a_function_of_the_seed() -> None:
    counts = [3, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    first, labels, names = rendered_digits(seed=3, renderings=counts)
    again, _, _ = rendered_digits(seed=3, renderings=counts)
    other, _, _ = rendered_digits(seed=4, renderings=counts)
    assert first.shape == (len(FONTS) * 13, SIZE, SIZE)
    assert first.dtype == np.uint8
    assert np.bincount(labels).tolist() == [len(FONTS) * count for count in counts]
    assert [name[0] for name in names] == [str(label) for label in labels]
    assert len(set(names)) == len(names)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(np.unique(first.reshape(len(first), -1), axis=0)) == len(first)


def test_files_and_lists_hold_both_domains(tmp_path: Path) -> None:
    from PIL import Image

    files = write_images(tmp_path, seed=7)
    source = ImageList.read(files.source_list)
    target = ImageList.read(files.target_list)
    scored = ImageList.read(files.target_test_list)

    digits = datasets.load_digits()
    assert [entry.label for entry in scored] == digits.target.tolist()
    assert {entry.label for entry in target} == {-1}
    assert [entry.path for entry in target] == [entry.path for entry in scored]
    assert len(source) == len(FONTS) * sum(RENDERINGS)
    assert all(entry.path.startswith(f"source/{entry.label}_") for entry in source)
    assert files.labels.read_text().split() == list(CLASSES)
    assert sorted(files.target_folder.iterdir()) == [tmp_path / entry.path for entry in target]

    for entries, array in ((source, rendered_digits(seed=7)[0]), (scored, handwritten_digits()[0])):
        for i in (0, len(array) // 2, len(array) - 1):
            with Image.open(tmp_path / entries.entries[i].path) as png:
                assert png.mode == "L"
                assert np.array_equal(np.asarray(png), array[i])


def test_handwritten_digits_are_those_of_scikit_learn() -> None:
    upscaled, labels = handwritten_digits()
    digits = datasets.load_digits()
    assert np.array_equal(labels, digits.target)
    assert upscaled.shape == (1797, SIZE, SIZE)
    small = np.stack([cv2.resize(image, (8, 8), interpolation=cv2.INTER_AREA) for image in upscaled])
    scaled = digits.images * (255 / 16)
    correlations = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(small, scaled, strict=True)]
    assert min(correlations) > 0.95
    assert abs(float(small.mean() - scaled.mean())) < 5


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autodial.errors import WorkError

    monkeypatch.setattr(images.cv2, "imwrite", lambda *_: False)
    with pytest.raises(WorkError, match=r"0_DejaVuSans_0\.png can't be written"):
        write_images(tmp_path, seed=1)
