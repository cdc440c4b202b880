"""Layers that read data, in nets: shapes, feeding, checks and scores."""

from __future__ import annotations

from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
import torch
from originals import shared

from autodial.errors import InputError
from autodial.evaluation.scoring import Scorer
from autodial.layers.data_sources import MemoryDataLayer
from autodial.net.data_checks import check_data
from autodial.net.feed import Feed, sources
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net, read_net, read_weights

CPU = torch.device("cpu")

LMDB = """
layer { name: "digits" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 4 backend: LMDB } }
"""
HDF5 = """
layer { name: "rows" type: "HDF5Data" top: "label" top: "data" hdf5_data_param { source: "list.txt" batch_size: 4 } }
"""
CLASSIFIER = """
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`db` and, listed in list.txt, rows.h5: ten images of 1 x 2 x 2 and labels in [0, 3)."""
    images = np.random.default_rng(0).integers(0, 256, (10, 1, 2, 2), dtype=np.uint8)
    labels = np.arange(10) % 3
    environment = lmdb.open(str(tmp_path / "db"), map_size=2**22, lock=False)
    with environment.begin(write=True) as txn:
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            datum = pb.Datum(channels=1, height=2, width=2, data=image.tobytes(), label=int(label))
            txn.put(f"image {i}".encode(), datum.SerializeToString())
    environment.close()
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"], file["label"] = images, labels
    (tmp_path / "list.txt").write_text("rows.h5\n")
    return tmp_path


def net(folder: Path, text: str, phase: int = pb.TEST) -> Net:
    return Net(parse_net(text), phase, base_dir=folder)


def test_the_tops_have_the_shapes_of_the_data(folder: Path) -> None:
    assert net(folder, LMDB).blob_shapes == {"data": (4, 1, 2, 2), "label": (4,)}
    assert net(folder, HDF5).blob_shapes == {"data": (4, 1, 2, 2), "label": (4,)}
    memory = 'layer { name: "m" type: "MemoryData" top: "d" top: "l" memory_data_param { %s } }'
    sizes = "batch_size: 4 channels: 1 height: 2 width: 3"
    assert net(folder, memory % sizes).blob_shapes == {"d": (4, 1, 2, 3), "l": (4,)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('layer { name: "a" type: "Data" top: "d" }', 'layer "a" (Data): data_param.source, the folder'),
        ('layer { name: "a" type: "HDF5Data" top: "d" }', 'layer "a" (HDF5Data): hdf5_data_param.source, the list'),
        ('layer { name: "a" type: "ImageData" top: "d" top: "l" }', 'layer "a" (ImageData): image_data_param.source'),
        ('layer { name: "a" type: "MemoryData" top: "d" top: "l" }', 'layer "a" (MemoryData): memory_data_param must'),
        ('layer { name: "a" type: "MemoryData" top: "d" }', 'layer "a" (MemoryData): takes 2 top blobs'),
        ('layer { name: "a" type: "Data" top: "d" top: "e" top: "f" }', 'layer "a" (Data): takes 1 to 2 top blobs'),
    ],
)
def test_an_error_names_the_layer_once(folder: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError) as error:
        net(folder, text)
    assert str(error.value).startswith(reason)


@pytest.mark.parametrize("text", [LMDB, HDF5])
def test_worker_processes_feed_what_the_source_reads(folder: Path, text: str) -> None:
    reading = net(folder, text)
    (source,) = sources(reading).values()
    expected = [source.batch(index) for index in range(7)]
    for workers in (0, 2):
        feed = Feed(reading, range(7), device=CPU, workers=workers)
        for tops, inputs in zip(expected, feed, strict=True):
            for name, top in zip(reading.inputs, tops, strict=True):
                np.testing.assert_array_equal(inputs[name].numpy(), top)


def test_only_a_program_fills_a_memory_data_layer(folder: Path) -> None:
    text = """layer { name: "m" type: "MemoryData" top: "data" top: "label"
      memory_data_param { batch_size: 2 channels: 1 height: 2 width: 2 } }"""
    built = net(folder, text + CLASSIFIER)
    with pytest.raises(InputError, match=r'layer "m" \(MemoryData\) gets its data from a Python program'):
        Feed(built, range(1), device=CPU, workers=0)
    layer = built.layer("m")
    assert isinstance(layer, MemoryDataLayer)
    layer.source.set(np.ones((4, 1, 2, 2)), [0, 1, 2, 0])
    inputs = dict(zip(built.inputs, map(torch.from_numpy, layer.source.batch(1)), strict=True))
    assert built(inputs)["loss"].isfinite()


@pytest.mark.parametrize(
    ("text", "where"),
    [(LMDB, r'data\.mdb, key "image 2"'), (HDF5, r'rows\.h5: dataset "label", row 2')],
)
def test_labels_out_of_range_are_found_before_the_first_batch(folder: Path, text: str, where: str) -> None:
    check_data(net(folder, text + CLASSIFIER))
    two_classes = net(folder, text + CLASSIFIER.replace("num_output: 3", "num_output: 2"))
    with pytest.raises(InputError, match=rf'{where}: label 2 is not in \[0, 2\), the classes that layer "loss"'):
        check_data(two_classes)


def test_labels_of_an_infogain_loss_are_checked_too(folder: Path) -> None:
    text = """
    layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 2 } }
    layer { name: "gain" type: "DummyData" top: "gain" dummy_data_param { shape { dim: 2 dim: 2 } } }
    layer { name: "loss" type: "InfogainLoss" bottom: "fc" bottom: "label" bottom: "gain" top: "loss" }
    """
    with pytest.raises(InputError, match=r'label 2 is not in \[0, 2\), the classes that layer "loss"'):
        check_data(net(folder, LMDB + text))
    check_data(net(folder, LMDB + text.replace('"loss" }', '"loss" loss_param { ignore_label: 2 } }')))


@pytest.mark.parametrize(("text", "name"), [(LMDB, "image {}"), (HDF5, "rows.h5:{}")])
def test_every_row_is_scored_once(folder: Path, text: str, name: str) -> None:
    built = net(folder, text + CLASSIFIER)
    scorer = Scorer(built, device=CPU, workers=0, logits="fc")
    assert scorer.batches == 3
    for _ in scorer.run():
        pass
    assert [Path(row.path).name for row in scorer.rows] == [name.format(i) for i in range(10)]
    assert [row.label for row in scorer.rows] == [i % 3 for i in range(10)]
    assert scorer.accuracy() == pytest.approx(scorer.means()["accuracy"][0])


def test_rows_without_labels_are_scored(folder: Path) -> None:
    text = LMDB.replace('top: "label"', "") + CLASSIFIER.split("\nlayer")[1].join(["layer", ""])
    scorer = Scorer(net(folder, text), device=CPU, workers=0, logits="fc")
    for _ in scorer.run():
        pass
    assert len(scorer.rows) == 10
    assert {row.label for row in scorer.rows} == {row.loss for row in scorer.rows} == {None}


@pytest.mark.parametrize("name", ["adabn", "dial", "fixed", "source"])
def test_the_originals_training_nets_find_their_databases(digits: Path, name: str) -> None:
    path = digits / f"{name}_train_val.prototxt"
    for phase, rows in ((pb.TRAIN, 64), (pb.TEST, 100)):
        built = Net(read_net(path), phase, base_dir=path.parent)
        for source in sources(built).values():
            assert source.top_shapes == ((rows, 1, 28, 28), (rows,))
            images, labels = source.batch(0)
            assert images.max() == 255 / 256
            assert set(labels) <= set(range(10))


def test_the_original_lenet_labels_the_mnist_database() -> None:
    lenet_files = shared("data/lenet")
    param = read_net(lenet_files / "lenet.prototxt")
    data = parse_net(f"""
    layer {{ name: "data" type: "Data" top: "data" top: "label" transform_param {{ scale: 0.00390625 }}
      data_param {{ source: "{shared("data/mnist_test_lmdb").as_posix()}" batch_size: 100 backend: LMDB }} }}
    layer {{ name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" }}
    """)
    param.layer[0].CopyFrom(data.layer[0])
    param.layer.append(data.layer[1])
    lenet = Net(param, pb.TEST)
    lenet.load_weights(read_weights(lenet_files / "lenet_iter_10000.caffemodel"))
    scorer = Scorer(lenet, device=CPU, workers=0, logits="ip2")
    for _ in scorer.run():
        pass
    assert len(scorer.rows) == 2000
    assert scorer.means()["accuracy"][0] == pytest.approx(0.999, abs=0.0005)
