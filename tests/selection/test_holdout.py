"""The parts of the source that are held out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from autodial.data.image_data import ImageData
from autodial.data.image_list import ImageList
from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.selection.holdout import PARTS, stratified_parts, write_lists


def test_classes_are_spread_evenly() -> None:
    labels = [0] * 50 + [1] * 13 + [2] * 4 + [7] * 33
    parts = stratified_parts(labels, seed=3)
    for label, count in Counter(labels).items():
        shares = np.bincount(parts[np.array(labels) == label], minlength=PARTS)
        assert sorted(shares)[0] >= count // PARTS
        assert sorted(shares)[-1] <= -(-count // PARTS)
    assert np.ptp(np.bincount(parts)) <= 1


def test_seed_decides() -> None:
    labels = list(range(5)) * 20
    first = stratified_parts(labels, seed=1).tolist()
    assert first == stratified_parts(labels, seed=1).tolist()
    assert first != stratified_parts(labels, seed=2).tolist()


def test_only_image_of_a_class_is_never_held_out() -> None:
    assert stratified_parts([4, *[1] * 10, 9], seed=0)[[0, -1]].tolist() == [-1, -1]


@pytest.fixture
def source(tmp_path: Path) -> ImageData:
    """20 images of two classes, beside their list and named relative to it, one with a space in its name."""
    folder = tmp_path / "ünï images"
    folder.mkdir()
    names = [f"{i} {'' if i else 'with space'}.png" for i in range(20)]
    for name in names:
        _, data = cv2.imencode(".png", np.zeros((4, 4), np.uint8))
        (folder / name).write_bytes(data.tobytes())
    (folder / "list.txt").write_text("".join(f"{name} {i % 2}\n" for i, name in enumerate(names)), "utf-8")
    param = pb.LayerParameter(name="source", type="ImageData")
    param.image_data_param.source = str(folder / "list.txt")
    param.image_data_param.batch_size = 4
    return ImageData(param, phase=pb.TRAIN, seed=0)


def entries(path: Path | None) -> list[tuple[str, int]]:
    assert path is not None
    return [(entry.path, entry.label) for entry in ImageList.read(path)]


def test_a_fifth_is_held_out(source: ImageData, tmp_path: Path) -> None:
    lists = write_lists(source, tmp_path / "lists", seed=5, hold_out=True)
    everything = {(str(source.path(entry).absolute()), entry.label) for entry in source.entries}
    training, held_out = entries(lists.training), entries(lists.held_out)
    assert sorted(training + held_out) == sorted(everything)
    assert Counter(label for _, label in held_out) == {0: 2, 1: 2}
    assert sorted(entries(lists.sample)) == sorted(training)  # of which there are fewer than 2,000
    assert lists.held_out is not None
    written = lists.held_out.read_bytes()
    write_lists(source, tmp_path / "lists", seed=5, hold_out=True)
    assert lists.held_out.read_bytes() == written


def test_nothing_is_held_out_unless_asked_for(source: ImageData, tmp_path: Path) -> None:
    source.entries = source.entries[:4]  # too few to hold out any
    lists = write_lists(source, tmp_path / "lists", seed=5, hold_out=False)
    assert lists.training is None
    assert lists.held_out is None
    assert [label for _, label in entries(lists.sample)] == [0, 1, 0, 1]


def test_too_few_images(source: ImageData, tmp_path: Path) -> None:
    source.entries = source.entries[:4]
    with pytest.raises(InputError, match=r"list\.txt has too few images to hold out a fifth of them"):
        write_lists(source, tmp_path / "lists", seed=5, hold_out=True)
    assert not (tmp_path / "lists").exists()
