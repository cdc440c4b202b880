"""The ImageData layer: the original's batches, order and randomness, and what it refuses."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from check_images import FOLDER, differences, load

from autodial.data.image_data import ImageData, init_worker
from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.proto import parse_net

CASES = load()


def image_data(
    folder: Path, options: str, transform: str = "", *, name: str = "data", phase: int = pb.TEST, seed: int = 1
) -> ImageData:
    """The layer of these image_data_param and transform_param, in a prototxt that lies in `folder`."""
    text = f"""layer {{
      name: "{name}" type: "ImageData" top: "data" top: "label"
      transform_param {{ {transform} }} image_data_param {{ {options} }}
    }}"""
    return ImageData(parse_net(text).layer[0], phase=phase, seed=seed, base_dir=folder)


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """A folder with list.txt: 7 grey images of 4 x 5 pixels, number k all of grey k and labelled k."""
    for k in range(7):
        cv2.imwrite(str(tmp_path / f"{k}.png"), np.full((4, 5), k, dtype=np.uint8))
    (tmp_path / "list.txt").write_text("".join(f"{k}.png {k}\n" for k in range(7)))
    return tmp_path


def labels(data: ImageData, count: int) -> list[int]:
    """The labels of the first `count` batches, one after the other."""
    return [int(label) for index in range(count) for label in data.batch(index)[1]]


@pytest.mark.parametrize("case", CASES)
def test_batches_are_the_originals(case: str) -> None:
    param = parse_net(str(CASES[case]["prototxt"])).layer[0]
    data = ImageData(param, phase=pb.TEST, seed=0, base_dir=FOLDER)
    images, image_labels = data.batch(0)
    assert (images.shape, image_labels.shape) == data.top_shapes
    assert images.dtype == image_labels.dtype == np.float32
    assert differences(CASES[case], images, image_labels) == []


def test_there_are_records() -> None:
    assert len(CASES) == 7


def test_a_list_is_read_in_its_order_round_and_round(numbered: Path) -> None:
    data = image_data(numbered, 'source: "list.txt" batch_size: 3')
    assert labels(data, 5) == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0]
    assert [entry.line for entry in data.rows(2)] == [7, 1, 2]


def test_images_and_rows_go_with_their_labels(numbered: Path) -> None:
    data = image_data(numbered, 'source: "list.txt" batch_size: 10 shuffle: true')
    for index in range(3):
        images, image_labels = data.batch(index)
        np.testing.assert_array_equal(images, np.broadcast_to(image_labels.reshape(10, 1, 1, 1), (10, 3, 4, 5)))
        assert [entry.label for entry in data.rows(index)] == image_labels.tolist()


@pytest.mark.parametrize("phase", [pb.TRAIN, pb.TEST])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 20])
def test_shuffle_gives_every_epoch_an_order_of_its_own(numbered: Path, phase: int, batch_size: int) -> None:
    data = image_data(numbered, f'source: "list.txt" batch_size: {batch_size} shuffle: true', phase=phase)
    sequence = labels(data, 140 // batch_size)
    epochs = [tuple(sequence[i : i + 7]) for i in range(0, len(sequence) - 6, 7)]
    assert len(epochs) >= 19
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(epochs)) == len(epochs)  # 19 of 5040 orders; a repetition would have a chance of 3%


def test_the_batch_size_does_not_change_the_sequence(numbered: Path) -> None:
    sequences = {
        tuple(labels(image_data(numbered, f'source: "list.txt" batch_size: {size} shuffle: true'), 30 // size))
        for size in (1, 2, 5, 15, 30)
    }
    assert len(sequences) == 1


def test_seed_and_name_decide_the_order(numbered: Path) -> None:
    options = 'source: "list.txt" batch_size: 30 shuffle: true'
    sequences = [
        labels(image_data(numbered, options, seed=seed, name=name), 1)
        for seed, name in ((1, "data"), (2, "data"), (-1, "data"), (1, "data-target"))
    ]
    assert len({tuple(sequence) for sequence in sequences}) == 4
    assert labels(image_data(numbered, options), 1) == sequences[0]


def test_rand_skip_starts_within_its_range(numbered: Path) -> None:
    plain = image_data(numbered, 'source: "list.txt" batch_size: 20 shuffle: true')
    starts = set()
    for seed in range(60):
        data = image_data(numbered, 'source: "list.txt" batch_size: 9 rand_skip: 4', seed=seed)
        start, *rest = labels(data, 1)
        assert rest == [(start + i) % 7 for i in range(1, 9)]
        starts.add(start)
    assert starts == {0, 1, 2, 3}
    skipped = image_data(numbered, 'source: "list.txt" batch_size: 10 shuffle: true rand_skip: 7')
    assert any(labels(plain, 1)[k : k + 10] == labels(skipped, 1) for k in range(7))


RANDOM = 'source: "list.txt" batch_size: 4 shuffle: true rand_skip: 5 new_height: 40 new_width: 44'
RANDOM_TRANSFORM = 'mirror: true crop_size: 27 mean_file: "mean.binaryproto"'


@pytest.fixture(scope="module")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records' images with a mean image of 40 x 44."""
    folder = tmp_path_factory.mktemp("random")
    lines = (FOLDER / "list.txt").read_text().splitlines()
    (folder / "list.txt").write_text("".join(f"{FOLDER / line}\n" for line in lines))
    mean = np.random.default_rng(0).uniform(0, 255, 3 * 40 * 44)
    blob = pb.BlobProto(shape=pb.BlobShape(dim=[1, 3, 40, 44]), data=mean)
    (folder / "mean.binaryproto").write_bytes(blob.SerializeToString())
    return folder


def random_data(folder: Path, seed: int = 1) -> ImageData:
    """A layer with everything that can be random."""
    return image_data(folder, RANDOM, RANDOM_TRANSFORM, phase=pb.TRAIN, seed=seed)


def test_a_batch_does_not_depend_on_the_batches_before(random_folder: Path) -> None:
    data = random_data(random_folder)
    in_order = [data.batch(index) for index in range(8)]
    for index in (5, 0, 7, 3, 3):
        for fresh in (data, random_data(random_folder)):
            for got, expected in zip(fresh.batch(index), in_order[index], strict=True):
                np.testing.assert_array_equal(got, expected)
    assert len({images.tobytes() for images, _ in in_order}) == 8
    other = random_data(random_folder, seed=2).batch(0)
    assert not np.array_equal(other[0], in_order[0][0])


def test_a_batch_does_not_depend_on_the_process(random_folder: Path) -> None:
    data = random_data(random_folder)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=init_worker) as pool:
        assert pool.submit(cv2.getNumThreads).result() == 1
        batches = list(pool.map(data.batch, [2, 0]))
    for (images, image_labels), index in zip(batches, [2, 0], strict=True):
        np.testing.assert_array_equal(images, data.batch(index)[0])
        np.testing.assert_array_equal(image_labels, data.batch(index)[1])


def test_flips_occur_in_test_and_random_crops_do_not(tmp_path: Path) -> None:
    image = np.arange(7 * 8, dtype=np.uint8).reshape(7, 8)
    cv2.imwrite(str(tmp_path / "a.png"), image)
    (tmp_path / "list.txt").write_text("a.png 0\n")
    options = 'source: "list.txt" batch_size: 200 is_color: false'
    centre = image[1:6, 1:6].astype(np.float32)
    test, _ = image_data(tmp_path, options, "crop_size: 5 mirror: true").batch(0)
    assert {result.tobytes() for result in test} == {centre.tobytes(), centre[:, ::-1].tobytes()}
    train, _ = image_data(tmp_path, options, "crop_size: 5 mirror: true", phase=pb.TRAIN).batch(0)
    windows = [image[y : y + 5, x : x + 5].astype(np.float32) for y in range(3) for x in range(4)]
    assert {result.tobytes() for result in train} == {
        result.tobytes() for window in windows for result in (window, window[:, ::-1])
    }


def test_root_folder_is_put_before_the_path_as_it_stands(numbered: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "lists"
    elsewhere.mkdir()
    (elsewhere / "names.txt").write_text(".png 3\n")
    for root in (f"{numbered.as_posix()}/3", "3"):
        data = image_data(numbered, f'source: "lists/names.txt" root_folder: "{root}"')
        assert data.batch(0)[0].max() == 3


def test_relative_images_are_found_beside_their_list_second(
    numbered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    data = image_data(tmp_path / "other", f'source: "{(numbered / "list.txt").as_posix()}"')
    assert data.batch(3)[0].max() == 3
    cv2.imwrite("3.png", np.full((4, 5), 99, dtype=np.uint8))
    assert data.batch(3)[0].max() == 99


def test_a_list_named_relative_to_the_working_directory_survives_a_change_of_it(
    numbered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(numbered)
    data = image_data(Path("nowhere"), 'source: "list.txt"')
    monkeypatch.chdir(numbered.parent)
    assert data.batch(2)[0].max() == 2


def test_without_new_height_the_first_image_decides_the_shape(numbered: Path) -> None:
    data = image_data(numbered, 'source: "list.txt" batch_size: 3 is_color: false')
    assert data.image_shape == (4, 5, 1)
    assert data.top_shapes == ((3, 1, 4, 5), (3,))
    cv2.imwrite(str(numbered / "4.png"), np.zeros((6, 3), dtype=np.uint8))
    data.batch(0)
    with pytest.raises(InputError, match=r"list.txt:5: 6 x 3 pixels, where the first image has 4 x 5: .*new_height"):
        data.batch(1)


def test_with_a_crop_the_sizes_may_differ(numbered: Path) -> None:
    cv2.imwrite(str(numbered / "4.png"), np.full((6, 3), 4, dtype=np.uint8))
    data = image_data(numbered, 'source: "list.txt" batch_size: 7', "crop_size: 3", phase=pb.TRAIN)
    assert data.image_shape == (4, 5, 3)
    assert data.batch(0)[0].shape == (7, 3, 3, 3)
    data = image_data(numbered, 'source: "list.txt" batch_size: 7', "crop_size: 4", phase=pb.TRAIN)
    with pytest.raises(InputError, match=r"list.txt:5: an image of 6 x 3 is smaller than crop_size 4"):
        data.batch(0)


@pytest.mark.parametrize(
    ("options", "transform", "reason"),
    [
        ("", "", "image_data_param.source, the list of images, is missing"),
        ('source: "none.txt"', "", '"none.txt" does not exist'),
        ('source: "list.txt" batch_size: 0', "", "batch_size is 0"),
        ('source: "list.txt" new_height: 8', "", "new_height or new_width alone"),
        ('source: "list.txt" new_width: 8', "", "new_height or new_width alone"),
        ('source: "list.txt" rand_skip: 8', "", "rand_skip 8 is beyond the 7 images"),
        ('source: "list.txt" scale: 1', "", "image_data_param.scale is out of date: move it to transform_param"),
        ('source: "list.txt" mean_file: "m"', "", "image_data_param.mean_file is out of date"),
        ('source: "list.txt" crop_size: 0', "", "image_data_param.crop_size is out of date"),
        ('source: "list.txt" mirror: false', "", "image_data_param.mirror is out of date"),
        ('source: "list.txt"', "crop_size: 5", "an image of 4 x 5 is smaller than crop_size 5"),
        ('source: "list.txt" new_height: 8 new_width: 8', "crop_size: 9", "8 x 8 is smaller than crop_size 9"),
        ('source: "list.txt"', "mean_value: 1 mean_value: 2", "2 mean_values"),
        ('source: "list.txt" is_color: false', "force_color: true", "force_color contradicts"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_layer_name(
    numbered: Path, options: str, transform: str, reason: str
) -> None:
    with pytest.raises(InputError) as error:
        image_data(numbered, options, transform, name="data/source")
    assert str(error.value).startswith('layer "data/source" (ImageData): ')
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_broken_list_is_refused_by_layer_and_line(numbered: Path) -> None:
    (numbered / "list.txt").write_text("0.png 0\n1.png cat\n")
    with pytest.raises(InputError, match=r'layer "data" \(ImageData\): .*list.txt:2: the label "cat"'):
        image_data(numbered, 'source: "list.txt"')


@pytest.mark.parametrize(("content", "reason"), [(None, "does not exist"), (b"", "is empty"), (b"cut", "cut short")])
def test_a_broken_image_is_refused_by_line(numbered: Path, content: bytes | None, reason: str) -> None:
    data = image_data(numbered, 'source: "list.txt" batch_size: 4')
    path = numbered / "5.png"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:60] if content else b"")
    data.batch(0)
    with pytest.raises(InputError, match=rf"list.txt:6: .*5.png.*{reason}"):
        data.batch(1)


def test_check_passes_what_can_be_read() -> None:
    image_data(FOLDER, 'source: "list.txt" new_height: 8 new_width: 8').check()


def test_check_counts_every_bad_image_and_names_the_first(numbered: Path) -> None:
    data = image_data(numbered, 'source: "list.txt"')
    (numbered / "1.png").unlink()
    (numbered / "2.png").write_bytes(b"")
    (numbered / "3.png").unlink()
    (numbered / "3.png").mkdir()
    (numbered / "5.png").write_text("text")
    with pytest.raises(InputError) as error:
        data.check()
    message = str(error.value)
    assert message.startswith('layer "data" (ImageData): 4 of 7 images can\'t be used: ')
    for part in (
        'list.txt:2: "1.png" does not exist',
        "list.txt:3: ",
        "2.png is empty",
        "list.txt:4: ",
        "; and 1 more",
    ):
        assert part in message
    assert "list.txt:6" not in message
    assert "\n" not in message


def test_check_looks_at_each_file_once(numbered: Path) -> None:
    (numbered / "list.txt").write_text("1.png 1\n" * 300_000 + "missing.png 2\n" * 5)
    begun = time.process_time()
    with pytest.raises(InputError, match=r"5 of 300005 images can't be used: .*:300001: .*; and 2 more$"):
        image_data(numbered, 'source: "list.txt"').check()
    assert time.process_time() - begun < 5  # 10 microseconds for each line's file would not do


def test_check_looks_beyond_the_first_chunk(numbered: Path) -> None:
    lines = ["0.png 0\n"] * 2000
    lines[1900] = "missing.png 0\n"
    (numbered / "list.txt").write_text("".join(lines))
    with pytest.raises(InputError, match=r"1 of 2000 images can't be used: .*list.txt:1901: [^;]*$"):
        image_data(numbered, 'source: "list.txt"').check()


def test_neither_torch_nor_onnx_is_imported() -> None:
    code = """
import sys
import autodial.data.image_data, autodial.data.transforms, autodial.data.image_list
print(sorted({"torch", "onnx", "onnxruntime", "google.protobuf"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("size", ["new_height: 12 new_width: 11", ""])
def test_rows_are_the_same_without_the_others(tmp_path: Path, size: str) -> None:
    rng = np.random.default_rng(5)
    for i in range(9):  # of as many sizes, on which the crops' draws depend
        cv2.imwrite(str(tmp_path / f"{i}.png"), rng.integers(0, 256, (9 + i, 20 - i, 3), dtype=np.uint8))
    (tmp_path / "list.txt").write_text("".join(f"{i}.png {i}\n" for i in range(9)))
    data = image_data(
        tmp_path, f'source: "list.txt" batch_size: 7 shuffle: true {size}', "crop_size: 6 mirror: true", phase=pb.TRAIN
    )
    for index in range(3):
        images, labels = data.batch(index)
        for rows in (slice(0, 3), slice(3, 7), slice(6, 7)):
            got = data.batch(index, rows)
            np.testing.assert_array_equal(got[0], images[rows])
            np.testing.assert_array_equal(got[1], labels[rows])
